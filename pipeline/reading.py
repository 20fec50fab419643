"""A reader's turn: prompt, completion, citations, and whether the answer may stand."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from time import perf_counter

from pipeline import cite, injection, markers, packs, prompt
from pipeline import grounding as grounds
from pipeline.cite import Cited
from pipeline.contracts import Answer, Completion, EvidencePack, Grounding, Prompt, Question, Step, Usage
from pipeline.errors import BrokenContract
from pipeline.grounding import Policy
from pipeline.prompt import NO_ANSWER
from pipeline.protocols import LLM, Generation
from pipeline.retrieve import Retrieval
from pipeline.shelf import Shelf
from pipeline.understand import understand


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
    grounding: Policy = field(default_factory=Policy)
    """From which share of supported sentences an answer is given unmarked."""


def read(pack: EvidencePack, llm: LLM, options: Reading, shelf: Shelf, *, streamed: bool) -> Generator[str | Answer]:
    """Pieces of text when streamed, then the Answer. Where the policy withholds, no piece comes before the answer was judged."""
    language = understand(pack.question).language
    if pack.refused:
        if streamed:
            yield pack.reason
        yield _refusal(pack, pack.reason, pack.steps, Usage())
        return
    started = perf_counter()
    sent = prompt.build(pack.question, pack.evidence, language=language, history_tokens=options.history_tokens, encoding=options.encoding)
    budget: dict[str, object] = {"passages": len(sent.evidence), "tokens": sent.tokens, "budget": options.budget_tokens, "version": sent.version}
    budget["orders"] = [passage.marker for passage in sent.evidence if injection.commands(passage.text)]
    steps = [*pack.steps, Step("prompt", perf_counter() - started, budget)]
    withheld = options.grounding.withholds
    completion, step, usage = yield from _completed(sent, pack.question, llm, shelf, streamed=streamed and not withheld)
    steps.append(step)
    reason, grounding, cited = "", Grounding(0.0), None
    if _declined(completion):
        reason = _declination(completion, language)
    else:
        cited, step = _cited(completion, sent, options.grounding)
        steps.append(step)
        grounding = cited.grounding
        if grounding.flagged and withheld:
            reason, cited = grounds.refusal(grounding, language), None
    if cited is None:
        if streamed:
            yield reason
        yield _refusal(pack, reason, steps, usage, grounding)
        return
    if streamed and withheld:
        yield cited.text
    yield Answer(cited.text, False, "", cited.citations, sent.evidence, grounding, parts(pack.usage, usage), "off", tuple(steps))


def _completed(sent: Prompt, question: Question, llm: LLM, shelf: Shelf, *, streamed: bool) -> Generator[str, None, tuple[Completion, Step, Usage]]:
    """The completion, from the cache where it is known, with the trace's line and what was spent now."""
    started = perf_counter()
    generation = Generation(question.temperature, question.top_p, question.max_tokens)
    key = packs.cache_key("completion", llm.name, llm.revision, asdict(generation), sent.version, sent.messages)
    completion = shelf.get(key, packs.load_completion)
    known = completion is not None
    if completion is None:
        completion = yield from _complete(llm, sent, generation, streamed=streamed)
        shelf.put(key, packs.dump_completion(completion))
    elif streamed and not _declined(completion):
        yield completion.text
    detail: dict[str, object] = {"model": completion.model, "reader": llm.name, "finish": completion.finish_reason, "cached": known}
    return completion, Step("llm", perf_counter() - started, detail), Usage() if known else completion.usage


def _cited(completion: Completion, sent: Prompt, policy: Policy) -> tuple[Cited, Step]:
    """The answer with its citations, its grounding judged, and the trace's line about both."""
    started = perf_counter()
    cited = cite.cite(completion.text, sent.evidence)
    cited = replace(cited, grounding=grounds.judged(cited.grounding, policy))
    grounding = cited.grounding
    detail: dict[str, object] = {
        "citations": len(cited.citations),
        "unsupported_citations": sum(not citation.supported for citation in cited.citations),
        "inserted": cited.inserted,
        "dropped": list(cited.dropped),
        "grounding": grounding.score,
        "threshold": grounding.threshold,
        "action": policy.action if policy.threshold else None,
        "flagged": grounding.flagged,
    }
    lost = [f"markers that lead to no passage: {', '.join(map(str, cited.dropped))}"] if cited.dropped else []
    lost += [f"the passages support {grounding.score:.0%} of the answer's sentences, {grounding.threshold:.0%} are asked for"] * grounding.flagged
    return cited, Step("cite", perf_counter() - started, detail, "; ".join(lost))


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
    return markers.strip(said).strip() or stock


def _refusal(pack: EvidencePack, reason: str, steps: Sequence[Step], reader: Usage, grounding: Grounding = Grounding(0.0)) -> Answer:
    return Answer(reason, True, reason, (), pack.evidence, grounding, parts(pack.usage, reader), "off", tuple(steps))


def parts(spent: Mapping[str, Usage], reader: Usage) -> dict[str, Usage]:
    """The four parts; those without a call count no request and report no tokens."""
    return {"build": Usage(), "query": spent.get("query", Usage()), "rerank": spent.get("rerank", Usage()), "reader": reader}
