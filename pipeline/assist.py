"""What a model may do for a question before anything is searched: say it without its conversation, in other words, in the documents' words.

Each step is off unless it is asked for, shows itself in the trace, is kept in the answer cache, and leaves the question as it was when the
model is away. What is quoted, refused and cited stays the question as it was asked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from pipeline import packs, pricing, prompt, retrieve
from pipeline.contracts import Hit, Mode, Question, SearchResult, Step, Usage
from pipeline.errors import BadRequest, BrokenContract, PipelineError
from pipeline.protocols import LLM, Generation, Reranker
from pipeline.retrieve import GraphRetriever, Retrieval, Target
from pipeline.shelf import Shelf
from pipeline.structured import ask_json

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


@dataclass(frozen=True, slots=True)
class Assisted:
    """The texts that are searched for one question."""

    texts: tuple[str, ...]
    """The first one is the question, or what it was rewritten to."""
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
            texts = [self._one("rewrite", "question", texts[0], history=_spoken(question.history))]
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
        found: Mapping[str, Any] | None = self._shelf.get(key, _loaded)
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
    """As `retrieve.find`, over every text that the question was given; the reranker sees what all of them found, once. Raises as it does."""

    def first(text: str) -> Sequence[Hit]:
        understood, _ = retrieve.begin(replace(question, text=text, k=TITLES, assist=()))
        return retrieve.find(understood, targets, graph=graph, options=options).hits

    helped = Assistant(llm, shelf, first).assist(question)
    results: list[SearchResult] = []
    for one in _searched(question, helped):
        understood, _ = retrieve.begin(one)
        results.append(retrieve.find(understood, targets, graph=graph, options=options))
    hits = merged([result.hits for result in results])
    steps = [*helped.steps, *(step for result in results for step in result.steps)]
    usage = {"query": pricing.added([helped.usage, *(result.usage["query"] for result in results)])}
    if reranker is not None and hits:
        hits, step, usage["rerank"] = retrieve.reranked(question, hits[: max(options.rerank_depth, question.k)], reranker)
        steps.append(step)
    return SearchResult(question.text, question.mode, tuple(hits[: question.k]), tuple(steps), usage)


def merged(lists: Sequence[Sequence[Hit]]) -> list[Hit]:
    """Hits of several texts for one question: each chunk once, with its best score; ties by (key, ordinal)."""
    best: dict[tuple[str, str], Hit] = {}
    for hits in lists:
        for hit in hits:
            known = best.get((hit.collection, hit.chunk_id))
            if known is None or hit.score > known.score:
                best[hit.collection, hit.chunk_id] = hit
    return sorted(best.values(), key=lambda hit: (-round(hit.score, 12), hit.key, hit.ordinal, hit.collection))


def _searched(question: Question, helped: Assisted) -> list[Question]:
    """One question for each text; keywords go to full text alone."""
    plain = replace(question, assist=())
    found = [replace(plain, text=text) for text in helped.texts]
    if helped.keywords and question.mode is not Mode.SEMANTIC:
        found.append(replace(plain, text=helped.keywords, mode=Mode.PARTICIPLE))
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
