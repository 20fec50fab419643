"""What a model may do for a question before anything is searched: say it without its conversation, in other words, in the documents' words.

Each step is off unless it is asked for, shows itself in the trace, is kept in the answer cache, and leaves the question as it was when the
model is away. What is quoted, refused and cited stays the question as it was asked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from pipeline import packs, pricing, prompt, retrieve
from pipeline.contracts import Hit, Mode, Question, SearchResult, Step, Usage
from pipeline.errors import BadRequest, BrokenContract, PipelineError
from pipeline.fusion import ordered, scored
from pipeline.protocols import LLM, Generation, Reranker
from pipeline.retrieve import Candidates, GraphRetriever, Retrieval, Target
from pipeline.shelf import Shelf
from pipeline.structured import ask_json
from pipeline.text import query_terms

KINDS = ("rewrite", "align", "multi_query", "keywords")
"""In the order in which they are done."""
QUERIES = 3
"""Other wordings of one question."""
KEYWORDS = 12
TITLES = 12
"""Titles and headings that a question is said in the words of."""
LONGEST = 2_000
"""Characters of a rewritten question."""
ANSWER_TOKENS = 400
WAIT_S = 30.0
"""Longest wait for another process that asks the model the same."""
WORDING = 0.8
"""What a score is worth that another wording of the question got."""
KEYWORD = 0.6
"""The same for keywords: one that a chunk holds in full scores 1.0, however little it says."""
INVENTED = 0.3
"""Most of a rewritten question's words that stand neither in the question nor in its conversation: "located", "used"."""


@dataclass(frozen=True, slots=True)
class Assisted:
    """The texts that are searched for one question."""

    texts: tuple[str, ...]
    """The first one is the question, or what it was rewritten to: what the others find is measured by it."""
    keywords: str = ""
    """For full text alone; empty where none were asked for."""
    steps: tuple[Step, ...] = ()
    usage: Usage = field(default_factory=Usage)


def check(kinds: Sequence[str]) -> tuple[str, ...]:
    """Each kind once, in order. Raises BadRequest for one that there is not."""
    wrong = [kind for kind in kinds if kind not in KINDS]
    if wrong:
        raise BadRequest(f"there is no assistance {wrong[0]!r}", pointer="/assist", hint=f"Use {', '.join(KINDS)}.", code="unknown_assist")
    return tuple(kind for kind in KINDS if kind in kinds)


def versions(kinds: Sequence[str]) -> tuple[str, ...]:
    """Of the templates: part of what decides which evidence is found."""
    return tuple(prompt.fill_version(kind) for kind in kinds)


class Assistant:
    """One question's help. `first` gives the best hits for a text, for `align`."""

    def __init__(self, llm: LLM, shelf: Shelf, first: Callable[[str], Sequence[Hit]]) -> None:
        self._llm, self._shelf, self._first = llm, shelf, first
        self._steps: list[Step] = []
        self._spent: list[Usage] = []

    def assist(self, question: Question) -> Assisted:
        """All that `question.assist` asks for. Raises BadRequest for a kind that there is not."""
        kinds = check(question.assist)
        texts, keywords = [question.text], ""
        if "rewrite" in kinds and question.history:
            texts = self._rewritten(question)
        if "align" in kinds:
            titles = _titles(self._first(texts[0]))
            if titles:
                texts.append(self._one("align", "question", texts[0], titles=titles))
        if "multi_query" in kinds:
            texts += self._several("multi_query", "queries", texts[0], QUERIES)
        if "keywords" in kinds:
            keywords = " ".join(self._several("keywords", "keywords", texts[0], KEYWORDS))
        distinct = tuple(dict.fromkeys(text.strip()[:LONGEST] for text in texts if text.strip()))
        return Assisted(distinct, keywords, tuple(self._steps), pricing.added(self._spent))

    def _rewritten(self, question: Question) -> list[str]:
        """The question in full, in the place of what was asked; only beside it where it says what nobody has said."""
        full = self._one("rewrite", "question", question.text, history=_spoken(question.history))
        said, _ = query_terms(" ".join([question.text, *(turn for _, turn in question.history)]))
        words, _ = query_terms(full)
        if len(set(words) - set(said)) <= INVENTED * len(words):
            return [full]
        lost = "the rewritten question says what nobody said: it is searched beside the one that was asked"
        self._steps[-1] = replace(self._steps[-1], degraded=lost)
        return [question.text, full]

    def _one(self, kind: str, name: str, text: str, **values: str) -> str:
        """The text that the model gives, or the one that it was given."""
        schema = {"type": "object", "properties": {name: {"type": "string", "maxLength": LONGEST}}, "required": [name]}
        found = self._asked(kind, schema, question=prompt.shield(text), **values)
        return str(found.get(name) or text)

    def _several(self, kind: str, name: str, text: str, most: int) -> list[str]:
        items = {"type": "array", "items": {"type": "string", "maxLength": 200}, "maxItems": most}
        schema = {"type": "object", "properties": {name: items}, "required": [name]}
        found = self._asked(kind, schema, question=prompt.shield(text), most=str(most))
        return [str(one) for one in found.get(name) or ()]

    def _asked(self, kind: str, schema: Mapping[str, Any], **values: str) -> Mapping[str, Any]:
        """What the model gives, from the cache where it is known; nothing, said in the trace, where it gives nothing."""
        started, lost = perf_counter(), ""
        messages, version = prompt.fill(kind, **values)
        key = packs.cache_key("assist", kind, self._llm.name, self._llm.revision, version, messages)
        with ExitStack() as held:
            found: Mapping[str, Any] | None = self._shelf.get(key, _loaded)
            if found is None:
                self._shelf.lead(held, key, WAIT_S)
                found = self._shelf.get(key, _loaded)
            known = found is not None
            if found is None:
                try:
                    made = ask_json(self._llm, messages, schema, options=Generation(temperature=0.0, max_tokens=ANSWER_TOKENS))
                    found = made.value
                    self._spent.append(made.usage)
                    self._shelf.put(key, json.dumps(found).encode())
                except PipelineError as error:
                    found, lost = {}, f"the question goes without {kind}: {error.detail}"
        detail = {"assist": kind, "model": self._llm.name, "cached": known, "transient": bool(lost), "found": dict(found), "version": version}
        self._steps.append(Step("understand", perf_counter() - started, detail, lost))
        return found


def find(
    question: Question,
    targets: Sequence[Target],
    llm: LLM,
    shelf: Shelf,
    *,
    reranker: Reranker | None = None,
    graph: GraphRetriever | None = None,
    options: Retrieval = Retrieval(),
) -> SearchResult:
    """As `retrieve.find`, over every text that the question was given. Reranker, thresholds and graph see what all of them found, once.

    What the model wrote widens the search and is no measure of what it finds: coverage and cosine are always the question's own. Raises as it does.
    """

    def first(text: str) -> Sequence[Hit]:
        understood, _ = retrieve.begin(replace(question, text=text, mode=_flat(question.mode), k=TITLES, assist=()))
        return retrieve.find(understood, targets, options=options).hits

    helped = Assistant(llm, shelf, first).assist(question)
    searched = _searched(question, helped)
    asked = [retrieve.begin(one)[0] for one, _ in searched]
    found = [retrieve.candidates(one, targets, options) for one in asked]
    own, others = found[0], [(worth, part) for (_, worth), part in zip(searched[1:], found[1:], strict=True)]
    spent = pricing.added([helped.usage, *(part.usage for part in found)])
    steps = [*helped.steps, *(step for part in found for step in part.steps)]
    gathered = replace(own, hits=merged(own, others), steps=steps, usage=spent)
    shown = retrieve.finish(asked[0], targets, gathered, reranker=reranker, graph=graph, options=options)
    return replace(shown, query=question.text, mode=question.mode)


def merged(own: Candidates, others: Sequence[tuple[float, Candidates]]) -> list[Hit]:
    """Each chunk once with its best score, best first; ties by (key, ordinal).

    Args:
        others: what each other text found, and what its scores are worth beside the question's own.

    A chunk that the question did not find keeps no figure that another text gave it: refusal goes by the question.
    """
    best = {(hit.collection, hit.chunk_id): hit for hit in own.hits}
    for worth, part in others:
        for hit in part.hits:
            place, score = (hit.collection, hit.chunk_id), worth * hit.score
            known = best.get(place)
            if known is None or known.score < score:
                best[place] = scored(known or replace(hit, scores={}), score, assisted=score)
    return ordered(best.values())


def _flat(mode: Mode) -> Mode:
    return Mode.HYBRID if mode is Mode.GRAPH else mode


def _searched(question: Question, helped: Assisted) -> list[tuple[Question, float]]:
    """One question for each text, and what its scores are worth; keywords go to full text alone."""
    plain = replace(question, assist=())
    found = [(replace(plain, text=text), 1.0 if place == 0 else WORDING) for place, text in enumerate(helped.texts)]
    if helped.keywords and question.mode is not Mode.SEMANTIC:
        found.append((replace(plain, text=helped.keywords, mode=Mode.PARTICIPLE), KEYWORD))
    return found


def _loaded(data: bytes) -> Mapping[str, Any]:
    try:
        found: object = json.loads(data)
    except ValueError as error:
        raise BrokenContract("a kept answer cannot be read") from error
    return found if isinstance(found, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def _spoken(history: Sequence[tuple[str, str]]) -> str:
    """The latest turns that matter, shielded."""
    turns = [(role, text) for role, text in history if role in {"user", "assistant"}][-8:]
    return "\n".join(f"{role}: {prompt.shield(text[:LONGEST])}" for role, text in turns)


def _titles(hits: Sequence[Hit]) -> str:
    names = dict.fromkeys(" > ".join(part for part in (hit.title, *hit.heading_path) if part) for hit in hits)
    return "\n".join(prompt.shield(name[:200]) for name in list(names)[:TITLES] if name)
