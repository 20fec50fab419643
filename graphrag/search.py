"""A question over graphs: the entities it names, a walk from them, and the chunks it reaches.

The ranking is over structure alone; whatever is shown is read from the store under the asker's own limits (filters, `as_of`), so that nothing
that the asker may not see is shown or lends its words.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from graphrag import ranking
from graphrag.contracts import GraphFound
from graphrag.ranking import Walk
from graphrag.resolve import key
from graphrag.snapshot import Snapshot
from pipeline.contracts import Hit, Question, StoreQuery
from pipeline.protocols import Store
from pipeline.text import fold
from pipeline.understand import Understood

SEED_SHARE = 0.5
"""Of the walk's start that the best chunk by full text has beside the entities. Between .2 and .5 nothing much changes for bridge questions."""
WINDOW_WORDS = 9
"""Words of the longest name that is looked for in a question."""
WINDOW_LETTERS = 16
"""The same for scripts without blanks."""
PAGE = 100
"""Chunks that are asked for at once where the asker's limits may hide most of them."""

_WORD = re.compile(r"[^\s,;:!?，。；：！？、（）()\[\]{}“”\"]+")
_HAN_RUN = re.compile(r"[\u3400-\u9fff\uf900-\ufaff][\u3400-\u9fff\uf900-\ufaffA-Za-z0-9·・]*")
_ASKED = frozenset(
    "who whom whose what which when where why how is are was were be been do does did has have had the a an of in on at to for from by with and or "
    "if as it its his her their this that these those there can could may might shall should will would many much".split()
)


class Place(Protocol):
    """A collection that is searched: what `retrieve.Target` tells of it."""

    @property
    def collection(self) -> str: ...

    @property
    def index(self) -> str: ...

    @property
    def store(self) -> Store: ...


@dataclass(frozen=True, slots=True, eq=False)
class Ready:
    """One collection's snapshot with what is made of it once."""

    snapshot: Snapshot
    walk: Walk
    numbers: Mapping[str, int]
    """Key → number of the entity."""
    made_at: float = 0.0
    """When the snapshot was made, in seconds since 1970."""


def ready(snapshot: Snapshot, *, made_at: float = 0.0) -> Ready:
    return Ready(snapshot, ranking.prepare(snapshot), {name: number for number, name in enumerate(snapshot.keys)}, made_at)


class GraphSearch:
    """One more way to find evidence. Safe for threads.

    Args:
        load: gives a collection's graph; None where there is none yet.
    """

    def __init__(self, load: Callable[[Place], Ready | None]) -> None:
        self._load = load

    def state(self, targets: Sequence[Place]) -> str:
        """The generation of each collection's snapshot."""
        graphs = [self._load(target) for target in targets]
        return ",".join(str(graph.snapshot.generation) if graph else "" for graph in graphs)

    def find(self, question: Understood, targets: Sequence[Place], k: int) -> GraphFound:
        """At most `k` chunks over all collections, best first, scores in [0, 1]: 1 for the best of each collection.

        `detail` tells linked entities, seeds and sweeps, and names collections that have no graph yet.
        """
        hits: list[Hit] = []
        told: list[dict[str, object]] = []
        missing: list[str] = []
        for target in targets:
            graph = self._load(target)
            if graph is None:
                missing.append(target.collection)
                continue
            found, detail = _one(question, target, graph, k)
            hits += found
            told.append({"collection": target.collection, **detail})
        hits.sort(key=lambda hit: (-round(hit.score, 12), hit.key, hit.ordinal, hit.collection))
        return GraphFound(tuple(hits[:k]), detail={"collections": told, "missing": missing})


def link(text: str, numbers: Mapping[str, int]) -> list[int]:
    """Entities that a question names, in order: the longest known name at each place, by its key."""
    found: dict[int, None] = {}
    words = [match[0] for match in _WORD.finditer(text)]
    at = 0
    while at < len(words):
        step = 1
        for length in range(min(WINDOW_WORDS, len(words) - at), 0, -1):
            number = _known(words[at : at + length], numbers)
            if number is not None:
                found[number] = None
                step = length
                break
        at += step
    for run in _HAN_RUN.finditer(fold(text)):
        for number in _inside(run[0], numbers):
            found[number] = None
    return list(found)


def _known(words: Sequence[str], numbers: Mapping[str, int]) -> int | None:
    """A single word counts only where it is written like a name."""
    telling = [word for word in words if word.lower().strip(".'’") not in _ASKED]
    if not telling or words[-1].lower() in _ASKED:
        return None
    if len(telling) == 1 and telling[0].isascii() and not any(letter.isupper() or letter.isdigit() for letter in telling[0]):
        return None
    name = " ".join(words).rstrip(".")
    for form in (name, name.removesuffix("'s").removesuffix("’s")):
        number = numbers.get(key(form))
        if number is not None:
            return number
    return None


def _inside(run: str, numbers: Mapping[str, int]) -> Iterable[int]:
    at = 0
    while at < len(run):
        step = 1
        for length in range(min(WINDOW_LETTERS, len(run) - at), 1, -1):
            number = numbers.get(key(run[at : at + length]))
            if number is not None:
                yield number
                step = length
                break
        at += step


def _one(question: Understood, target: Place, graph: Ready, k: int) -> tuple[list[Hit], dict[str, object]]:
    asked = question.question
    snapshot, walk = graph.snapshot, graph.walk
    if asked.as_of is not None:
        walk = ranking.prepare(
            snapshot, np.array([one.valid_from is not None and one.valid_from <= asked.as_of for one in snapshot.chunks], dtype=np.bool_)
        )
    linked = link(asked.text, graph.numbers)
    seeds = _seeds(question, target, snapshot)
    start = np.zeros(walk.entities)
    start[linked] = walk.idf[linked]
    begin = np.zeros(walk.chunks)
    begin[seeds] = 1.0
    if linked and seeds:
        start *= (1.0 - SEED_SHARE) / start.sum()
        begin *= SEED_SHARE / begin.sum()
    _, scores, sweeps = ranking.rank(walk, start, begin)
    hits, stale = _shown(asked, target, snapshot, scores, k)
    detail: dict[str, object] = {"linked": [snapshot.keys[number] for number in linked], "seeds": len(seeds), "sweeps": sweeps, "hits": len(hits)}
    return hits, detail | {"generation": snapshot.generation, "stale": stale}


def _seeds(question: Understood, target: Place, snapshot: Snapshot) -> list[int]:
    """The best chunk by full text, as the graph numbers it; the graph may lag behind the index and not know it yet."""
    asked = question.question
    query = StoreQuery(words=question.words, grams=question.grams, k=1, filters=asked.filters, as_of=asked.as_of)
    best = target.store.search(target.index, query)[:1] if question.words or question.grams else []
    return [number for hit in best if (number := _number(snapshot, hit)) is not None]


def _number(snapshot: Snapshot, hit: Hit) -> int | None:
    owner = bisect_left(snapshot.documents, hit.document_id)
    if owner >= len(snapshot.documents) or snapshot.documents[owner] != hit.document_id:
        return None
    first, last = np.searchsorted(snapshot.owners, owner), np.searchsorted(snapshot.owners, owner, side="right")
    return next((number for number in range(int(first), int(last)) if snapshot.chunks[number].ordinal == hit.ordinal), None)


def _shown(asked: Question, target: Place, snapshot: Snapshot, scores: ranking.Floats, k: int) -> tuple[list[Hit], int]:
    """The best chunks as the store shows them to this asker, the best one with score 1; and how many the graph knows in an older cut.

    Page after page is asked for until enough are shown: filters may let only a few of many through.
    """
    reached = np.flatnonzero(scores > 0.0)
    order = reached[np.argsort(-scores[reached], kind="stable")]
    limits = StoreQuery(filters=asked.filters, as_of=asked.as_of)
    hits: list[Hit] = []
    stale = 0
    page = max(k + 8, PAGE if asked.filters or asked.as_of is not None else 0)
    for start in range(0, len(order), page):
        numbers = [int(number) for number in order[start : start + page]]
        places = [(snapshot.documents[int(snapshot.owners[number])], snapshot.chunks[number].ordinal) for number in numbers]
        found = {(hit.document_id, hit.ordinal): hit for hit in target.store.chunks(target.index, places, limits)}
        for place, number in zip(places, numbers, strict=True):
            hit = found.get(place)
            if hit is None:
                continue
            if hit.chunk_id != snapshot.chunks[number].chunk_id:
                stale += 1
                continue
            score = float(scores[number] / scores[order[0]])
            hits.append(replace(hit, score=score, scores={**hit.scores, "graph": score}, collection=target.collection))
            if len(hits) == k:
                return hits, stale
    return hits, stale
