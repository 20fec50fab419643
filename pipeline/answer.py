"""A question's whole way: gather evidence, read it, cite it; with a cache around each half.

`gather` and `read` are apart so that one frozen pack can be given to several readers. `ask` and `stream` join
them behind two levels of cache: tenant, access, revisions, question and options lead to evidence and answer;
model, settings and the very prompt lead to a completion. A revision that changed is a miss of the first level
only, so that unchanged evidence is not read twice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from time import perf_counter

from pipeline import assist, packs, prompt, reading, refuse, retrieve
from pipeline.contracts import Answer, Evidence, EvidencePack, Mode, Question, Step, Usage
from pipeline.errors import BrokenContract
from pipeline.grounding import Policy
from pipeline.protocols import LLM, Cache, Reranker
from pipeline.reading import Reading
from pipeline.retrieve import GraphRetriever, Target
from pipeline.shelf import Shelf
from pipeline.understand import understand

TTL_S = 86_400.0
WAIT_S = 120.0
"""Longest wait for another process that computes the same answer; after that it is computed here too."""
LOSS_S = 5.0
"""An answer that lost something for the moment is kept for those who wait for it now, and then tried anew."""

__all__ = ["LOSS_S", "TTL_S", "WAIT_S", "Reading", "ask", "gather", "read", "stream"]


def gather(
    question: Question,
    targets: Sequence[Target],
    *,
    reranker: Reranker | None = None,
    graph: GraphRetriever | None = None,
    options: Reading = Reading(),
    llm: LLM | None = None,
    shelf: Shelf | None = None,
) -> EvidencePack:
    """Search, judge and cut to the budget. Raises as `retrieve.search` does.

    Args:
        llm, shelf: for what `Question.assist` asks for, and where that is kept.
    """
    understood, first = retrieve.begin(question)
    if understood.question.assist and llm is not None:
        given = (understood.question, targets, llm, shelf or Shelf(None, 0.0, ()))
        found = assist.find(*given, reranker=reranker, graph=graph, options=options.retrieval)
    else:
        found = retrieve.find(understood, targets, reranker=reranker, graph=graph, options=options.retrieval)
    started = perf_counter()
    thresholds = {target.collection: _threshold(target, options) for target in targets}
    verdict = refuse.judge(understood.question, understood.language, found.hits, thresholds)
    judged: dict[str, object] = {
        "confidence": verdict.confidence,
        "threshold": verdict.threshold,
        "source": verdict.source,
        "refused": verdict.refused,
        "best": verdict.best.chunk_id if verdict.best else "",
    }
    steps = [first, *found.steps, Step("refuse", perf_counter() - started, judged)]
    evidence: tuple[Evidence, ...] = ()
    if not verdict.refused:
        budget, encoding = options.budget_tokens, options.encoding
        hits, around = retrieve.widened(understood.question, found.hits, targets, budget_tokens=budget, encoding=encoding)
        steps += around
        evidence = prompt.select(hits, budget_tokens=budget, encoding=encoding)
    return EvidencePack(understood.question, evidence, found.hits, verdict.refused, verdict.reason, verdict.confidence, tuple(steps), {**found.usage})


def _threshold(target: Target, options: Reading) -> refuse.Threshold:
    """The caller's, else what labelled questions said about this generation, else the embedder's."""
    if options.refuse_below is not None:
        return refuse.Threshold(options.refuse_below, "setting")
    if target.calibrated is not None:
        return refuse.Threshold(target.calibrated, "calibrated")
    return refuse.Threshold(target.embedder.profile.refuse_below, "embedder profile")


def read(pack: EvidencePack, llm: LLM, *, options: Reading = Reading()) -> Answer:
    """Have a reader answer from a pack. Raises what the reader raises, and BrokenContract for an empty answer."""
    return _last(reading.read(pack, llm, options, Shelf(None, 0.0, ()), streamed=False))


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


def _shelf(question: Question, targets: Sequence[Target], cache: Cache | None, ttl_s: float) -> Shelf:
    return Shelf(cache, ttl_s, [packs.cache_group(question.tenant, target.collection) for target in targets])


def _ask(
    question: Question,
    targets: Sequence[Target],
    llm: LLM,
    shelf: Shelf,
    access: str,
    reranker: Reranker | None,
    graph: GraphRetriever | None,
    options: Reading,
    *,
    streamed: bool,
) -> Generator[str | Answer]:
    """Cache, gather, read. Only one process at a time computes an answer that several wait for."""
    question = understand(question).question
    evidence_parts = [*_evidence_parts(question, targets, access, reranker, graph, options), *_assist_parts(question, llm)]
    pack_key = packs.cache_key("pack", *evidence_parts)
    answer_key = packs.cache_key("answer", *evidence_parts, *_reader_parts(question, llm, options))
    started, until, waited = perf_counter(), time.monotonic() + WAIT_S, False
    while True:
        known = shelf.get(answer_key, packs.load_answer)
        if known is not None:
            break
        with ExitStack() as stack:
            if not shelf.lead(stack, answer_key, max(0.0, until - time.monotonic())) and time.monotonic() < until:
                waited = True
                continue
            # somebody may have finished between the look and the lock
            known = shelf.get(answer_key, packs.load_answer)
            if known is not None:
                break
            looked = perf_counter() - started
            pack = shelf.get(pack_key, packs.load_pack)
            if pack is None:
                pack = gather(question, targets, reranker=reranker, graph=graph, options=options, llm=llm, shelf=shelf)
                if not _transient(pack.steps):
                    shelf.put(pack_key, packs.dump_pack(pack))
            else:
                pack = replace(pack, question=question, usage={}, steps=_told_again(pack.steps))
            for piece in reading.read(pack, llm, options, shelf, streamed=streamed):
                if isinstance(piece, str):
                    yield piece
                    continue
                shelf.put(answer_key, packs.dump_answer(piece), LOSS_S if _transient(piece.steps) else math.inf)
                step = Step("cache", looked, {"level": "answer", "hit": False, "on": shelf.on}, shelf.lost)
                yield replace(piece, cache="miss" if shelf.on else "off", steps=(step, *piece.steps))
            return
    if streamed:
        yield known.text
    step = Step("cache", perf_counter() - started, {"level": "answer", "hit": True, "waited": waited})
    yield replace(known, cache="hit", usage=reading.parts({}, Usage()), steps=(step, *_told_again(known.steps)))


def _transient(steps: Sequence[Step]) -> bool:
    """True when something was lost that may work the next time: such a result is not kept for long."""
    return any(step.degraded and step.detail.get("transient") for step in steps)


def _told_again(steps: Sequence[Step]) -> tuple[Step, ...]:
    return tuple(replace(step, detail={**step.detail, "from_cache": True}) for step in steps)


def _evidence_parts(
    question: Question, targets: Sequence[Target], access: str, reranker: Reranker | None, graph: GraphRetriever | None, options: Reading
) -> list[object]:
    """All that decides which evidence is found."""
    searched = [
        (t.collection, t.index, t.revision, t.embedder.profile.name, t.embedder.profile.revision, asdict(t.tuning), t.calibrated) for t in targets
    ]
    wished = (question.merge, question.lexical_weight, question.widen)
    asked = (question.text, question.mode, question.k, question.score_threshold, list(map(asdict, question.filters)), question.as_of, wished)
    ranked = (reranker.name if reranker else "", graph.state(targets) if graph and question.mode is Mode.GRAPH else "")
    # what becomes of the answer changes no evidence
    return [question.tenant, access, searched, asked, ranked, asdict(replace(options, grounding=Policy()))]


def _assist_parts(question: Question, llm: LLM) -> list[object]:
    """All that decides what a model makes of the question before the search; nothing where it is not asked."""
    if not question.assist:
        return []
    kinds = assist.check(question.assist)
    return [kinds, assist.versions(kinds), llm.name, llm.revision, question.history if "rewrite" in kinds else ()]


def _reader_parts(question: Question, llm: LLM, options: Reading) -> list[object]:
    """All that decides what a reader makes of it."""
    settings = (question.temperature, question.top_p, question.max_tokens)
    return [question.history, question.system, settings, llm.name, llm.revision, prompt.version(), options.history_tokens, asdict(options.grounding)]


def _last(pieces: Iterator[str | Answer]) -> Answer:
    for piece in pieces:
        if isinstance(piece, Answer):
            return piece
    raise BrokenContract("no answer came")
