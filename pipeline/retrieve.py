"""Find the chunks that may answer a question, in one or several collections, with one comparable score.

Scores, all in [0, 1], so that a threshold means the same for every question:

* PARTICIPLE: BM25 divided by the list's maximum, times the coverage of the list's best hit, which is the
  idf-weighted share of the question's terms that it holds. The order is BM25's own; 1.0 means every term is there.
* SEMANTIC: the cosine, negative ones as 0.
* HYBRID: `fuse`. Of several collections, each one's lexical side is scaled by its coverage against the best
  one's, so that a list whose best hit hardly touches the question does not take the front.
* after a reranker: the reranker's score.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pipeline import phrases, pricing
from pipeline.contracts import Hit, Mode, Question, SearchResult, Step, StoreQuery, Usage, Vectors
from pipeline.errors import BadRequest, BrokenContract, PipelineError, Retryable, Unsupported
from pipeline.pricing import Price
from pipeline.protocols import Embedder, EmbedderProfile, Reranker, Store
from pipeline.understand import Understood, coverage, informativeness, understand

Scores: TypeAlias = NDArray[np.float64]

MIN_SIMILARITY = 0.2
RELAXED_MATCH = 0.1
RELAXED_SIMILARITY = 0.17
"""The second try's limits where the first found nothing; RAGFlow's figures."""
SAME_SPOT = 0.5
"""Two hits of one document that share more than this part of the shorter are shown once."""


@dataclass(frozen=True, slots=True)
class Target:
    """One collection to search, with what its generation was built with."""

    collection: str
    """The user's name."""
    index: str
    """`CollectionSpec.name`."""
    revision: int
    """Rises with every visible change."""
    store: Store
    embedder: Embedder


@dataclass(frozen=True, slots=True)
class Retrieval:
    """How to search; the defaults hold for every collection that says nothing else."""

    depth: int = 0
    """Candidates from each side of each collection; 0: twice `k`, 32 at least."""
    min_match: float = 0.3
    """Least share of the question's terms that a lexical candidate must hold. Costs no recall on cmrc2018, drcd and hotpotqa."""
    min_similarity: float | None = None
    """Least cosine of a semantic candidate; None: `MIN_SIMILARITY` for an embedder behind a service, 0 for one in this process,
    whose cosines of good passages lie lower."""
    lexical_weight: float | None = None
    """Share of full text in HYBRID; None: the embedder profile's."""
    rerank_depth: int = 32
    """Best hits that a reranker reads; `k` at least."""


class GraphRetriever(Protocol):
    """One more way to find evidence; its hits stand in front of the others."""

    def retrieve(self, question: Understood, targets: Sequence[Target], k: int) -> list[Hit]:
        """At most `k` hits, best first, scores in [0, 1]."""
        ...


@runtime_checkable
class Metered(Protocol):
    """A reranker that also says what a call cost."""

    def score(self, question: str, passages: Sequence[str]) -> tuple[list[float], Usage]: ...


def search(
    question: Question,
    targets: Sequence[Target],
    *,
    reranker: Reranker | None = None,
    graph: GraphRetriever | None = None,
    options: Retrieval = Retrieval(),
) -> SearchResult:
    """At most `question.k` hits, best first, ties by (key, ordinal).

    Raises: BadRequest for a question that cannot be asked, Unsupported for GRAPH without a graph,
        Retryable when a store is away, or when the embedder is and nothing else can answer.
    """
    understood, step = begin(question)
    found = find(understood, targets, reranker=reranker, graph=graph, options=options)
    return replace(found, steps=(step, *found.steps))


def begin(question: Question) -> tuple[Understood, Step]:
    """The question understood, and the first line of its trace."""
    started = perf_counter()
    understood = understand(question)
    detail: dict[str, object] = {"language": understood.language, "words": list(understood.words), "grams": list(understood.grams)}
    return understood, Step("understand", perf_counter() - started, detail)


def find(
    understood: Understood,
    targets: Sequence[Target],
    *,
    reranker: Reranker | None = None,
    graph: GraphRetriever | None = None,
    options: Retrieval = Retrieval(),
) -> SearchResult:
    """The same for a question that is understood already. Each hit's `scores` has its coverage."""
    question = understood.question
    if not targets:
        raise BadRequest("no collection to search", pointer="/collections", code="no_collection")
    if question.mode is Mode.GRAPH and graph is None:
        raise Unsupported("mode graph: the graph stage is not built yet", hint="Use hybrid, semantic or participle.", code="no_graph")
    vectors, steps, spent = ({}, [], Usage()) if question.mode is Mode.PARTICIPLE else _embed(question, targets)
    hits, step, weights = _candidates(understood, targets, vectors, options)
    steps.append(step)
    usage = {"query": spent}
    hits = _distinct(hits)
    if reranker is not None and hits:
        hits, step, usage["rerank"] = _rerank(question, hits[: max(options.rerank_depth, question.k)], reranker)
        steps.append(step)
    if question.score_threshold is not None:
        hits = [hit for hit in hits if hit.score >= question.score_threshold]
    if question.mode is Mode.GRAPH and graph is not None:
        front, step = _graph(understood, targets, graph)
        steps.append(step)
        hits = _distinct([*front, *hits])
    shown = tuple(_covered(hit, weights.get(hit.collection, {})) for hit in hits[: question.k])
    return SearchResult(question.text, question.mode, shown, tuple(steps), usage)


def fuse(lexical: Scores, semantic: Scores, *, lexical_weight: float, reach: float = 1.0) -> Scores:
    """Blend two score lists for the same candidates.

    Args:
        lexical: BM25, shape (n,), non-negative, unbounded.
        semantic: cosine, shape (n,), in [-1, 1].
        lexical_weight: share of the lexical side, in [0, 1].
        reach: what the best lexical candidate is worth, in [0, 1], where lists of several collections must compare.

    Returns: shape (n,), in [0, 1]. BM25 is divided by its own maximum; cosine is clipped at 0.
    Raises: ValueError when shapes differ or a share is out of range.
    """
    if lexical.shape != semantic.shape or lexical.ndim != 1:
        raise ValueError(f"shapes {lexical.shape} and {semantic.shape} differ or are not flat")
    if not 0.0 <= lexical_weight <= 1.0 or not 0.0 <= reach <= 1.0:
        raise ValueError(f"lexical_weight {lexical_weight} or reach {reach} is outside 0 to 1")
    top = float(lexical.max(initial=0.0))
    relative = np.clip(lexical / top, 0.0, 1.0) if top > 0.0 else np.zeros_like(lexical)
    return lexical_weight * reach * relative + (1.0 - lexical_weight) * np.clip(semantic, 0.0, 1.0)


def passage(hit: Hit) -> str:
    """What a hit says, with the headings above it: what a reranker reads and coverage is measured on."""
    return "\n".join(part for part in (hit.title, " > ".join(hit.heading_path), hit.lead, hit.text) if part)


def _embed(question: Question, targets: Sequence[Target]) -> tuple[dict[str, Vectors], list[Step], Usage]:
    """One vector per embedder. In HYBRID an embedder that is away leaves full text, and the step says so."""
    vectors: dict[str, Vectors] = {}
    steps: list[Step] = []
    spent: list[Usage] = []
    for embedder in {_space(target.embedder.profile): target.embedder for target in targets}.values():
        profile, started = embedder.profile, perf_counter()
        lost, remote = "", not profile.in_process
        try:
            embedded = embedder.encode_queries([question.text])
            vectors[_space(profile)] = embedded.vectors[0]
            if remote:
                spent.append(_spent(profile, embedded.tokens, max(embedded.requests, 1)))
        except Retryable as error:
            if question.mode is not Mode.HYBRID:
                raise
            lost = f"embedder {profile.name} is away ({error.code}): its collections are searched by full text only"
            spent.append(Usage(requests=1))
        detail = {"embedder": profile.name, "revision": profile.revision, "transient": bool(lost)}
        steps.append(Step("embed", perf_counter() - started, detail, lost))
    return vectors, steps, pricing.added(spent)


def _spent(profile: EmbedderProfile, tokens: int | None, requests: int) -> Usage:
    usage = Usage(prompt_tokens=tokens, total_tokens=tokens, requests=requests)
    return usage if profile.price is None else Price(profile.currency, profile.price).of(usage)


def _candidates(
    understood: Understood, targets: Sequence[Target], vectors: Mapping[str, Vectors], options: Retrieval
) -> tuple[list[Hit], Step, dict[str, Mapping[str, float]]]:
    """Scored hits of all targets, best first, and each collection's term weights."""
    started, question = perf_counter(), understood.question
    queries = [_query(understood, target, vectors, options) for target in targets]
    found = [target.store.search(target.index, query) for target, query in zip(targets, queries, strict=True)]
    degraded = ""
    if not any(found) and (relaxed := [_relaxed(query) for query in queries]) != queries:
        degraded = f"nothing met {_limits(queries)}: relaxed to {_limits(relaxed)}"
        queries = relaxed
        found = [target.store.search(target.index, query) for target, query in zip(targets, queries, strict=True)]
    weights: dict[str, Mapping[str, float]] = {}
    reached: list[float] = []
    for target, raw in zip(targets, found, strict=True):
        chunks, frequencies = target.store.frequencies(target.index, understood.terms)
        weights[target.collection] = informativeness(chunks, frequencies, understood.terms)
        best = max(raw, key=lambda hit: hit.scores.get("lexical", 0.0), default=None)
        reached.append(coverage(weights[target.collection], passage(best)) if best and best.scores.get("lexical", 0.0) > 0.0 else 0.0)
    hits: list[Hit] = []
    listed: list[dict[str, object]] = []
    for target, query, raw, reach in zip(targets, queries, found, reached, strict=True):
        share = _share(query, target.embedder.profile.lexical_weight if options.lexical_weight is None else options.lexical_weight)
        scale = reach if query.vector is None else reach / max(reached) if reach > 0.0 else 0.0
        hits += _score([replace(hit, collection=target.collection) for hit in raw], share, scale, understood, weights[target.collection])
        row: dict[str, object] = {"collection": target.collection, "index": target.index, "revision": target.revision}
        limits: dict[str, object] = {"min_match": query.min_match, "min_similarity": query.min_similarity, "lexical_weight": share}
        listed.append({**row, **limits, "candidates": len(raw), "coverage": reach})
    hits = _ordered(hits)
    detail = {
        "mode": str(question.mode),
        "k": question.k,
        "depth": queries[0].k,
        "score_threshold": question.score_threshold,
        "filters": len(question.filters),
        "as_of": question.as_of.isoformat() if question.as_of else None,
        "collections": listed,
        "candidates": _table(hits[: question.k]),
    }
    return hits, Step("retrieve", perf_counter() - started, detail, degraded), weights


def _query(understood: Understood, target: Target, vectors: Mapping[str, Vectors], options: Retrieval) -> StoreQuery:
    question, profile = understood.question, target.embedder.profile
    lexical = question.mode is not Mode.SEMANTIC
    least = options.min_similarity
    return StoreQuery(
        words=understood.words if lexical else (),
        grams=understood.grams if lexical else (),
        vector=vectors.get(_space(profile)),
        k=options.depth or max(2 * question.k, 32),
        min_match=options.min_match,
        min_similarity=(0.0 if profile.in_process else MIN_SIMILARITY) if least is None else least,
        filters=question.filters,
        as_of=question.as_of,
    )


def _relaxed(query: StoreQuery) -> StoreQuery:
    """With the second try's limits, where they are lower."""
    return replace(query, min_match=min(query.min_match, RELAXED_MATCH), min_similarity=min(query.min_similarity, RELAXED_SIMILARITY))


def _limits(queries: Sequence[StoreQuery]) -> str:
    """The strictest limits, of the sides that were asked."""
    match = f"min_match {max(query.min_match for query in queries):g}" if queries[0].words or queries[0].grams else ""
    similarities = [query.min_similarity for query in queries if query.vector is not None]
    return " and ".join(filter(None, (match, f"similarity {max(similarities):g}" if similarities else "")))


def _share(query: StoreQuery, lexical_weight: float) -> float:
    """The lexical side's share: all or nothing where only one side was asked."""
    if query.vector is None:
        return 1.0
    return lexical_weight if query.words or query.grams else 0.0


def _score(hits: list[Hit], share: float, reach: float, understood: Understood, weights: Mapping[str, float]) -> list[Hit]:
    """The hits with fused scores in [0, 1]. The best lexical candidates are weighed by phrases and nearness, too."""
    if share > 0.0:
        hits = _worded(hits, understood, weights)
    lexical, semantic, phrase, near = (_figures(hits, name) for name in ("lexical", "similarity", "phrase", "nearness"))
    top = float(lexical.max(initial=0.0))
    if top > 0.0:
        lexical = (lexical + phrases.NEARNESS * near) / top + phrases.PHRASES * phrase
    fused = fuse(lexical, semantic, lexical_weight=share, reach=min(reach, 1.0))
    return [_scored(hit, float(score), fused=float(score)) for hit, score in zip(hits, fused, strict=True)]


def _figures(hits: Sequence[Hit], name: str) -> Scores:
    return np.array([hit.scores.get(name, 0.0) for hit in hits], dtype=np.float64)


def _worded(hits: list[Hit], understood: Understood, weights: Mapping[str, float]) -> list[Hit]:
    best = sorted((hit for hit in hits if hit.scores.get("lexical", 0.0) > 0.0), key=lambda hit: -hit.scores["lexical"])[: phrases.DEPTH]
    doubled = frozenset(understood.words) & frozenset(understood.grams)
    figures: dict[int, dict[str, float]] = {}
    for hit, held in zip(best, phrases.shares(understood.question.text, [passage(hit) for hit in best]), strict=True):
        figures[id(hit)] = {"phrase": held, "nearness": phrases.nearness(hit.text, weights, doubled)}
    return [_scored(hit, hit.score, **figures[id(hit)]) if id(hit) in figures else hit for hit in hits]


def _rerank(question: Question, hits: list[Hit], reranker: Reranker) -> tuple[list[Hit], Step, Usage]:
    """The hits in the reranker's order, or in their own when it fails."""
    started, lost, usage = perf_counter(), "", Usage(requests=1)
    passages = [passage(hit) for hit in hits]
    try:
        if isinstance(reranker, Metered):
            scores, usage = reranker.score(question.text, passages)
        else:
            scores = reranker.rerank(question.text, passages)
        if len(scores) != len(hits) or not all(map(math.isfinite, scores)):
            raise BrokenContract(f"reranker {reranker.name} gave {len(scores)} scores for {len(hits)} passages, or one that is no number")
        hits = _ordered(_scored(hit, min(max(score, 0.0), 1.0), rerank=score) for hit, score in zip(hits, scores, strict=True))
    except PipelineError as error:
        lost = f"reranker {reranker.name} failed ({error.code}): the order of retrieval is kept"
    detail = {"reranker": reranker.name, "passages": len(passages), "transient": bool(lost), "candidates": _table(hits[: question.k])}
    return hits, Step("rerank", perf_counter() - started, detail, lost), usage


def _graph(understood: Understood, targets: Sequence[Target], graph: GraphRetriever) -> tuple[list[Hit], Step]:
    started = perf_counter()
    hits = graph.retrieve(understood, targets, understood.question.k)
    return hits, Step("retrieve", perf_counter() - started, {"mode": "graph", "candidates": _table(hits)})


def _distinct(hits: Iterable[Hit]) -> list[Hit]:
    """Without texts that stood there before, nor windows that show mostly the same part of a document."""
    kept: list[Hit] = []
    texts: set[tuple[str, str]] = set()
    spans: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for hit in hits:
        seen = spans.setdefault((hit.collection, hit.document_id), [])
        if (hit.lead, hit.text) in texts or any(_overlap(span, (hit.start, hit.end)) > SAME_SPOT for span in seen):
            continue
        texts.add((hit.lead, hit.text))
        seen.append((hit.start, hit.end))
        kept.append(hit)
    return kept


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> float:
    shorter = min(one[1] - one[0], other[1] - other[0])
    return max(0, min(one[1], other[1]) - max(one[0], other[0])) / shorter if shorter > 0 else 0.0


def _ordered(hits: Iterable[Hit]) -> list[Hit]:
    """Rounded, so that float noise decides no tie."""
    return sorted(hits, key=lambda hit: (-round(hit.score, 12), hit.key, hit.ordinal, hit.collection))


def _covered(hit: Hit, weights: Mapping[str, float]) -> Hit:
    return _scored(hit, hit.score, coverage=coverage(weights, passage(hit)))


def _scored(hit: Hit, score: float, **figures: float) -> Hit:
    return replace(hit, score=score, scores={**hit.scores, **figures})


def _table(hits: Sequence[Hit]) -> list[dict[str, object]]:
    """Who stood where, for the trace."""
    return [
        {
            "chunk_id": hit.chunk_id,
            "key": hit.key,
            "ordinal": hit.ordinal,
            "collection": hit.collection,
            "score": hit.score,
            "scores": dict(hit.scores),
        }
        for hit in hits
    ]


def _space(profile: EmbedderProfile) -> str:
    """Two targets with the same embedder share one query vector."""
    return f"{profile.name}@{profile.revision}"
