"""A store query as Elasticsearch requests, and its candidates with both scores."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from pipeline.contracts import StoreQuery, Vectors
from pipeline.stores import elasticsearch_filters as conditions
from pipeline.stores.elasticsearch_client import Client, Json, SearchHit
from pipeline.stores.elasticsearch_rows import HIT_FIELDS, Head

MAX_WINDOW = 10_000
"""Most candidates of one request, and of kNN: Elasticsearch's own default limit."""
MAX_TERMS = 1000
"""Most terms of a question that are asked for; Elasticsearch refuses more than 1,024 clauses."""
PLACES = 200
"""Chunks that are asked for by their places in one request."""
OVERSAMPLE = 2.0
"""kNN on int8 finds this many times k, and the exact vectors decide: without it a cosine is off by up to 0.05."""
ROUNDS = 4
"""Most repeats of a search whose candidates were partly rows of invisible versions."""

Heads = Callable[[Sequence[str]], Mapping[str, Head]]
"""Document ids → heads of those that exist, in real time."""


@dataclass(slots=True)
class Candidate:
    """One visible row with what each side said of it."""

    found: SearchHit
    scores: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def text(self) -> str:
        """The row's chunk, verbatim."""
        return cast("str", cast("Json", self.found["_source"]["shown"])["text"])

    @property
    def place(self) -> tuple[str, int]:
        """What breaks ties."""
        source = self.found["_source"]
        return cast("str", source["key"]), cast("int", source["ordinal"])


@dataclass(frozen=True, slots=True)
class Plan:
    """The two sides of a query; None for a side that was not asked for."""

    lexical: Json | None
    semantic: Vectors | None
    filters: list[Json]
    query: StoreQuery
    as_base64: bool

    def lexical_body(self, size: int) -> Json:
        """Best rows by BM25. Ties at the cut go by key and ordinal."""
        return self._fetch(size) | {"query": _filtered(self.lexical or {}, self.filters), "sort": ["_score", {"key": "asc"}, {"ordinal": "asc"}]}

    def semantic_body(self, size: int) -> Json:
        """Best rows by cosine."""
        return self._fetch(size) | {"knn": self._knn(size, self.filters)}

    def lexical_of(self, ids: list[str]) -> Json:
        """BM25 of given rows, computed as in the search itself."""
        terms = cast("dict[str, object]", cast("Json", self.lexical)["bool"]) | {"minimum_should_match": 1}
        return {"size": len(ids), "_source": False, "query": _filtered({"bool": terms}, [{"ids": {"values": ids}}])}

    def semantic_of(self, ids: list[str]) -> Json:
        """Exact cosine of given rows."""
        return {"size": len(ids), "_source": False, "knn": self._knn(len(ids), [{"ids": {"values": ids}}])}

    def _fetch(self, size: int) -> dict[str, object]:
        body: dict[str, object] = {"size": size, "_source": list(HIT_FIELDS), "track_total_hits": False}
        if self.query.with_vectors:
            body["docvalue_fields"] = [{"field": "vector", "format": "binary"}]
        return body

    def _knn(self, size: int, filters: list[Json]) -> Json:
        """Recall first: four times k, a hundred at least, are looked at in each segment."""
        wanted = cast("Vectors", self.semantic)
        encoded = base64.b64encode(wanted.astype(">f4").tobytes()).decode("ascii") if self.as_base64 else wanted.astype(np.float32).tolist()
        return {
            "field": "vector",
            "query_vector": encoded,
            "k": size,
            "num_candidates": min(MAX_WINDOW, max(100, 4 * size)),
            "filter": filters,
            "rescore_vector": {"oversample": OVERSAMPLE},
        }


def plan(query: StoreQuery, *, as_base64: bool) -> Plan:
    """Divide a query. A vector of zeros has no direction, so nothing is near it."""
    asked = dict.fromkeys([("words", word) for word in query.words] + [("grams", gram) for gram in query.grams])
    terms: list[Json] = [{"term": {name: term}} for name, term in list(asked)[:MAX_TERMS]]
    least = max(1, math.ceil(query.min_match * (len(query.words) + len(query.grams)) - 1e-9))
    vector = query.vector if query.vector is not None and np.any(query.vector) else None
    return Plan(
        lexical={"bool": {"should": terms, "minimum_should_match": least}} if terms else None,
        semantic=vector,
        filters=conditions.clauses(query.filters, query.as_of),
        query=query,
        as_base64=as_base64,
    )


def candidates(client: Client, index: str, wanted: Plan, heads: Heads) -> list[Candidate]:
    """Up to k visible rows of each side, united and in order, with both scores where the query had both sides.

    Rows of a version that its document does not show (half written, or not yet deleted) take up places, so
    the search is repeated with more places until k visible ones are found or there are no more.
    """
    k = min(wanted.query.k, MAX_WINDOW)
    size = k
    sides: list[list[SearchHit]] = []
    for _ in range(ROUNDS):
        raw = _ask(client, index, wanted, size)
        documents = {cast("str", found["_source"]["document_id"]) for side in raw for found in side}
        shown = heads(sorted(documents))
        sides = [[found for found in side if _visible(found, shown)] for side in raw]
        hidden = max((len(before) - len(after) for before, after in zip(raw, sides, strict=True)), default=0)
        short = any(len(after) < k and len(before) == size for before, after in zip(raw, sides, strict=True))
        if not hidden or (size > k and not short) or size >= MAX_WINDOW:
            break
        size = min(MAX_WINDOW, max(size + 2 * hidden, k + 10))
    return _united(client, index, wanted, [side[:k] for side in sides])


def at_places(client: Client, index: str, places: Sequence[tuple[str, int]], filters: list[Json], heads: Heads) -> list[SearchHit]:
    """Visible rows at (document id, ordinal) that the filters let through, in that order."""
    rows: dict[tuple[str, int], SearchHit] = {}
    distinct = list(dict.fromkeys(places))
    shown = heads(sorted({document_id for document_id, _ in distinct}))
    for start in range(0, len(distinct), PLACES):
        page = distinct[start : start + PLACES]
        either: list[Json] = [{"bool": {"filter": [{"term": {"document_id": one}}, {"term": {"ordinal": at}}]}} for one, at in page]
        query: Json = {"bool": {"should": either, "minimum_should_match": 1, "filter": filters}}
        # a document may have rows of several versions while it is being written
        answer = client.search(f"/{index}/_search", {"size": 4 * len(page), "_source": list(HIT_FIELDS), "query": query})
        for found in answer["hits"]["hits"]:
            source = found["_source"]
            if _visible(found, shown):
                rows[cast("str", source["document_id"]), cast("int", source["ordinal"])] = found
    return [rows[place] for place in places if place in rows]


def _ask(client: Client, index: str, wanted: Plan, size: int) -> list[list[SearchHit]]:
    """Both sides in one request, lexical first; an empty list for a side that was not asked for."""
    bodies = [wanted.lexical_body(size)] if wanted.lexical is not None else []
    if wanted.semantic is not None:
        bodies.append(wanted.semantic_body(size))
    answers = [answer["hits"]["hits"] for answer in client.multi_search(index, bodies)] if bodies else []
    if wanted.lexical is None:
        answers.insert(0, [])
    return answers if len(answers) > 1 else [*answers, []]


def _visible(found: SearchHit, heads: Mapping[str, Head]) -> bool:
    source = found["_source"]
    head = heads.get(cast("str", source["document_id"]))
    return head is not None and head.shows(cast("int", source["version"]), cast("int", source["ordinal"]))


def _united(client: Client, index: str, wanted: Plan, sides: list[list[SearchHit]]) -> list[Candidate]:
    lexical, semantic = sides
    both = bool(wanted.query.words or wanted.query.grams) and wanted.query.vector is not None
    united: dict[str, Candidate] = {}
    for found in lexical:
        united.setdefault(found["_id"], Candidate(found)).scores["lexical"] = _bm25(found)
    for found in semantic:
        if (cosine := _cosine(found)) >= wanted.query.min_similarity:
            united.setdefault(found["_id"], Candidate(found)).scores["similarity"] = cosine
    if both:
        _complete(client, index, wanted, united)
    return _ordered(list(united.values()))


def _ordered(found: list[Candidate]) -> list[Candidate]:
    """Best first: BM25 as a share of the highest, plus the cosine; ties by key and ordinal."""
    top = max((one.scores.get("lexical", 0.0) for one in found), default=0.0) or 1.0

    def merit(one: Candidate) -> float:
        return round(one.scores.get("lexical", 0.0) / top + one.scores.get("similarity", 0.0), 6)

    return sorted(found, key=lambda one: (-merit(one), *one.place))


def _complete(client: Client, index: str, wanted: Plan, united: Mapping[str, Candidate]) -> None:
    """Ask for the score of the side that did not find a candidate. No term in common is 0.0, no vector as well."""
    requests: list[tuple[str, Json, Callable[[SearchHit], float]]] = []
    for name, asked, body, read in (
        ("lexical", wanted.lexical is not None, wanted.lexical_of, _bm25),
        ("similarity", wanted.semantic is not None, wanted.semantic_of, _cosine),
    ):
        missing = [row for row, candidate in united.items() if name not in candidate.scores]
        for row in missing:
            united[row].scores[name] = 0.0
        if asked and missing:
            requests.append((name, body(missing), read))
    if requests:
        for (name, _, read), answer in zip(requests, client.multi_search(index, [body for _, body, _ in requests]), strict=True):
            for found in answer["hits"]["hits"]:
                united[found["_id"]].scores[name] = read(found)


def _bm25(found: SearchHit) -> float:
    """Sorted answers carry the score as the first sort value."""
    return float(cast("float", found["sort"][0])) if "sort" in found else float(found["_score"])


def _cosine(found: SearchHit) -> float:
    """Elasticsearch gives (1 + cosine) / 2, so that no score is negative."""
    return max(-1.0, min(1.0, 2.0 * found["_score"] - 1.0))


def _filtered(query: Json, filters: list[Json]) -> Json:
    return {"bool": {"must": [query], "filter": filters}}
