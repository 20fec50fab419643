"""A question's whole way: gather evidence, read it, cite it; with a cache around each half.

`gather` and `read` are apart so that one frozen pack can be given to several readers. `ask` and `stream` join
them behind two levels of cache: tenant, access, revisions, question and options lead to evidence and answer;
model, settings and the very prompt lead to a completion. A revision that changed is a miss of the first level
only, so that unchanged evidence is not read twice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from time import perf_counter
from typing import TypeVar

from pipeline import cite, packs, prompt, refuse, retrieve
from pipeline.contracts import Answer, Completion, EvidencePack, Grounding, Prompt, Question, Step, Usage
from pipeline.errors import BrokenContract, Unavailable
from pipeline.prompt import NO_ANSWER
from pipeline.protocols import LLM, Cache, Generation, Reranker
from pipeline.retrieve import GraphRetriever, Retrieval, Target
from pipeline.understand import understand

TTL_S = 86_400.0
WAIT_S = 120.0
"""Longest wait for another process that computes the same answer; after that it is computed here too."""
LOSS_S = 5.0
"""An answer that lost something for the moment is kept for those who wait for it now, and then tried anew."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reading:
    """How to search, what to send and when to refuse."""

    retrieval: Retrieval = field(default_factory=Retrieval)
    budget_tokens: int = prompt.PASSAGE_TOKENS
    history_tokens: int = prompt.HISTORY_TOKENS
    encoding: str = "cl100k_base"
    """Counts the budget."""
    refuse_below: float | None = None
    """Evidence score under which nothing is read; None: each embedder profile's own; 0: never refuse what was found."""


def gather(
    question: Question,
    targets: Sequence[Target],
    *,
    reranker: Reranker | None = None,
    graph: GraphRetriever | None = None,
    options: Reading = Reading(),
) -> EvidencePack:
    """Search, judge and cut to the budget. Raises as `retrieve.search` does."""
    understood, first = retrieve.begin(question)
    found = retrieve.find(understood, targets, reranker=reranker, graph=graph, options=options.retrieval)
    started = perf_counter()
    thresholds = {t.collection: t.embedder.profile.refuse_below if options.refuse_below is None else options.refuse_below for t in targets}
    verdict = refuse.judge(understood.question, understood.language, found.hits, thresholds)
    judged: dict[str, object] = {
        "confidence": verdict.confidence,
        "threshold": verdict.threshold,
        "source": "embedder profile" if options.refuse_below is None else "setting",
        "refused": verdict.refused,
        "best": verdict.best.chunk_id if verdict.best else "",
    }
    steps = [first, *found.steps, Step("refuse", perf_counter() - started, judged)]
    evidence = () if verdict.refused else prompt.select(found.hits, budget_tokens=options.budget_tokens, encoding=options.encoding)
    return EvidencePack(understood.question, evidence, found.hits, verdict.refused, verdict.reason, verdict.confidence, tuple(steps), {**found.usage})


def read(pack: EvidencePack, llm: LLM, *, options: Reading = Reading()) -> Answer:
    """Have a reader answer from a pack. Raises what the reader raises, and BrokenContract for an empty answer."""
    return _last(_read(pack, llm, options, _Shelf(None, 0.0, ()), streamed=False))


def ask(
    question: Question,
    targets: Sequence[Target],
    llm: LLM,
    *,
    cache: Cache | None = None,
    ttl_s: float = TTL_S,
    access: str = "",
    reranker: Reranker | None = None,
    graph: GraphRetriever | None = None,
    options: Reading = Reading(),
) -> Answer:
    """The answer, from the cache where it is known.

    Args:
        cache: one that is away costs time only, and the trace says so.
        ttl_s: seconds that an answer is kept; 0 turns the cache off.
        access: fingerprint of all that the asker may read: nobody is served from another's view.
    Raises: as `gather` and `read` do.
    """
    return _last(_ask(question, targets, llm, _shelf(question, targets, cache, ttl_s), access, reranker, graph, options, streamed=False))


def stream(
    question: Question,
    targets: Sequence[Target],
    llm: LLM,
    *,
    cache: Cache | None = None,
    ttl_s: float = TTL_S,
    access: str = "",
    reranker: Reranker | None = None,
    graph: GraphRetriever | None = None,
    options: Reading = Reading(),
) -> Iterator[str | Answer]:
    """The same, yielding pieces of the reader's text as they come and the whole Answer last.

    Errors are raised by the first `next` unless the reader breaks off in the middle. Close the iterator to stop early.
    """
    yield from _ask(question, targets, llm, _shelf(question, targets, cache, ttl_s), access, reranker, graph, options, streamed=True)


class _Shelf:
    """The cache as one question sees it: off after its first failure, which is remembered."""

    def __init__(self, cache: Cache | None, ttl_s: float, groups: Sequence[str]) -> None:
        self._cache = cache if ttl_s > 0.0 else None
        self._ttl_s = ttl_s
        self._groups = groups or ("",)
        self.lost = ""

    @property
    def on(self) -> bool:
        return self._cache is not None

    def get(self, key: str, load: Callable[[bytes], T]) -> T | None:
        """What is kept under the key; bytes that cannot be read are as good as none."""
        if self._cache is None:
            return None
        try:
            data = self._cache.get(key)
            return None if data is None else load(data)
        except Unavailable as error:
            self._fail(error)
        except BrokenContract:
            pass
        return None

    def put(self, key: str, value: bytes, most_s: float = math.inf) -> None:
        """Keep the value, `most_s` seconds at most, in the group of every collection it came from."""
        for group in self._groups:
            if self._cache is not None:
                try:
                    self._cache.put(key, value, ttl_s=min(self._ttl_s, most_s), group=group)
                except Unavailable as error:
                    self._fail(error)

    def lead(self, stack: ExitStack, key: str, wait_s: float) -> bool:
        """True for the one who computes; the lock is held until the stack closes."""
        if self._cache is None:
            return True
        try:
            return stack.enter_context(self._cache.flight(key, wait_s=wait_s))
        except Unavailable as error:
            self._fail(error)
            return True

    def _fail(self, error: Unavailable) -> None:
        self._cache, self.lost = None, f"answer cache off for this question: {error.detail}"


def _shelf(question: Question, targets: Sequence[Target], cache: Cache | None, ttl_s: float) -> _Shelf:
    return _Shelf(cache, ttl_s, [packs.cache_group(question.tenant, target.collection) for target in targets])


def _ask(
    question: Question,
    targets: Sequence[Target],
    llm: LLM,
    shelf: _Shelf,
    access: str,
    reranker: Reranker | None,
    graph: GraphRetriever | None,
    options: Reading,
    *,
    streamed: bool,
) -> Generator[str | Answer]:
    """Cache, gather, read. Only one process at a time computes an answer that several wait for."""
    question = understand(question).question
    evidence_parts = _evidence_parts(question, targets, access, reranker, graph, options)
    pack_key = packs.cache_key("pack", *evidence_parts)
    answer_key = packs.cache_key("answer", *evidence_parts, *_reader_parts(question, llm, options))
    started, until = perf_counter(), time.monotonic() + WAIT_S
    while True:
        known = shelf.get(answer_key, packs.load_answer)
        if known is not None:
            break
        with ExitStack() as stack:
            if not shelf.lead(stack, answer_key, max(0.0, until - time.monotonic())) and time.monotonic() < until:
                continue
            # somebody may have finished between the look and the lock
            known = shelf.get(answer_key, packs.load_answer)
            if known is not None:
                break
            looked = perf_counter() - started
            pack = shelf.get(pack_key, packs.load_pack)
            if pack is None:
                pack = gather(question, targets, reranker=reranker, graph=graph, options=options)
                if not _transient(pack.steps):
                    shelf.put(pack_key, packs.dump_pack(pack))
            else:
                pack = replace(pack, question=question, usage={}, steps=_told_again(pack.steps))
            for piece in _read(pack, llm, options, shelf, streamed=streamed):
                if isinstance(piece, str):
                    yield piece
                    continue
                shelf.put(answer_key, packs.dump_answer(piece), LOSS_S if _transient(piece.steps) else math.inf)
                step = Step("cache", looked, {"level": "answer", "hit": False, "on": shelf.on}, shelf.lost)
                yield replace(piece, cache="miss" if shelf.on else "off", steps=(step, *piece.steps))
            return
    if streamed:
        yield known.text
    step = Step("cache", perf_counter() - started, {"level": "answer", "hit": True})
    yield replace(known, cache="hit", usage=_usage({}, Usage()), steps=(step, *_told_again(known.steps)))


def _read(pack: EvidencePack, llm: LLM, options: Reading, shelf: _Shelf, *, streamed: bool) -> Generator[str | Answer]:
    """Pieces of text when streamed, then the Answer."""
    language = understand(pack.question).language
    if pack.refused:
        if streamed:
            yield pack.reason
        yield _refusal(pack, pack.reason, pack.steps, Usage())
        return
    started = perf_counter()
    sent = prompt.build(pack.question, pack.evidence, language=language, history_tokens=options.history_tokens, encoding=options.encoding)
    budget: dict[str, object] = {"passages": len(sent.evidence), "tokens": sent.tokens, "budget": options.budget_tokens, "version": sent.version}
    steps = [*pack.steps, Step("prompt", perf_counter() - started, budget)]
    generation = Generation(pack.question.temperature, pack.question.top_p, pack.question.max_tokens)
    started = perf_counter()
    key = packs.cache_key("completion", llm.name, llm.revision, asdict(generation), sent.version, sent.messages)
    completion = shelf.get(key, packs.load_completion)
    known = completion is not None
    if completion is None:
        completion = yield from _complete(llm, sent, generation, streamed=streamed)
        shelf.put(key, packs.dump_completion(completion))
    elif streamed and not _declined(completion):
        yield completion.text
    usage = Usage() if known else completion.usage
    detail: dict[str, object] = {"model": completion.model, "reader": llm.name, "finish": completion.finish_reason, "cached": known}
    steps.append(Step("llm", perf_counter() - started, detail))
    if _declined(completion):
        reason = _declination(completion, language)
        if streamed:
            yield reason
        yield _refusal(pack, reason, steps, usage)
        return
    started = perf_counter()
    cited = cite.cite(completion.text, sent.evidence)
    found: dict[str, object] = {"citations": len(cited.citations), "inserted": cited.inserted, "dropped": list(cited.dropped)}
    lost = f"markers that lead to no passage: {', '.join(map(str, cited.dropped))}" if cited.dropped else ""
    steps.append(Step("cite", perf_counter() - started, found, lost))
    yield Answer(cited.text, False, "", cited.citations, sent.evidence, cited.grounding, _usage(pack.usage, usage), "off", tuple(steps))


def _complete(llm: LLM, sent: Prompt, generation: Generation, *, streamed: bool) -> Generator[str, None, Completion]:
    """Yields pieces when streamed, but keeps back what may turn out to be a refusal; returns the whole."""
    if not streamed:
        return _checked(llm, llm.complete(sent.messages, generation))
    whole: Completion | None = None
    held: str | None = ""
    for piece in llm.stream(sent.messages, generation):
        if isinstance(piece, Completion):
            whole = piece
        elif held is None:
            yield piece
        else:
            held += piece
            begun = held.lstrip()
            if not begun.startswith(NO_ANSWER) and not NO_ANSWER.startswith(begun):
                yield held
                held = None
    if whole is None:
        raise BrokenContract(f"reader {llm.name} ended its stream without a completion")
    if held and not _declined(whole):
        yield held
    return _checked(llm, whole)


def _checked(llm: LLM, completion: Completion) -> Completion:
    if not completion.text.strip() and completion.finish_reason != "no_answer":
        raise BrokenContract(f"reader {llm.name} gave an empty answer (finish reason {completion.finish_reason})", code="empty_answer")
    return completion


def _declined(completion: Completion) -> bool:
    return completion.finish_reason == "no_answer" or completion.text.lstrip().startswith(NO_ANSWER)


def _declination(completion: Completion, language: str) -> str:
    said = completion.text.strip().removeprefix(NO_ANSWER).lstrip(" :：.。,，-—\n")
    stock = "检索到的段落中没有这个问题的答案。" if language == "zh" else "The passages that were found do not hold the answer."
    return cite.strip_markers(said).strip() or stock


def _refusal(pack: EvidencePack, reason: str, steps: Sequence[Step], reader: Usage) -> Answer:
    return Answer(reason, True, reason, (), pack.evidence, Grounding(0.0), _usage(pack.usage, reader), "off", tuple(steps))


def _usage(spent: Mapping[str, Usage], reader: Usage) -> dict[str, Usage]:
    """The four parts; those without a call count no request and report no tokens."""
    return {"build": Usage(), "query": spent.get("query", Usage()), "rerank": spent.get("rerank", Usage()), "reader": reader}


def _transient(steps: Sequence[Step]) -> bool:
    """True when something was lost that may work the next time: such a result is not kept for long."""
    return any(step.degraded and step.detail.get("transient") for step in steps)


def _told_again(steps: Sequence[Step]) -> tuple[Step, ...]:
    return tuple(replace(step, detail={**step.detail, "from_cache": True}) for step in steps)


def _evidence_parts(
    question: Question, targets: Sequence[Target], access: str, reranker: Reranker | None, graph: GraphRetriever | None, options: Reading
) -> list[object]:
    """All that decides which evidence is found."""
    searched = [(t.collection, t.index, t.revision, t.embedder.profile.name, t.embedder.profile.revision) for t in targets]
    asked = (question.text, question.mode, question.k, question.score_threshold, list(map(asdict, question.filters)), question.as_of)
    ranked = (reranker.name if reranker else "", type(graph).__qualname__ if graph else "")
    return [question.tenant, access, searched, asked, ranked, asdict(options)]


def _reader_parts(question: Question, llm: LLM, options: Reading) -> list[object]:
    """All that decides what a reader makes of it."""
    settings = (question.temperature, question.top_p, question.max_tokens)
    return [question.history, question.system, settings, llm.name, llm.revision, prompt.version(), options.history_tokens]


def _last(pieces: Iterator[str | Answer]) -> Answer:
    for piece in pieces:
        if isinstance(piece, Answer):
            return piece
    raise BrokenContract("no answer came")
