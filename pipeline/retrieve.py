"""Find the chunks that may answer a question, in one or several collections, with one comparable score.

Scores, all in [0, 1], so that a threshold means the same for every question:

* PARTICIPLE: BM25 divided by the list's maximum, times the coverage of the list's best hit, which is the
  idf-weighted share of the question's terms that it holds. The order is BM25's own; 1.0 means every term is there.
* SEMANTIC: the cosine, negative ones as 0.
* HYBRID: `fusion.weighted`, or `fusion.ranked` where that is asked for. Of several collections, each one's lexical side is scaled
  by its coverage against the best one's, so that a list whose best hit hardly touches the question does not take the front. Figures
  and ranks do not compare: where collections are set to different strategies and the question names none, all are weighted.
* after a reranker: the reranker's score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Protocol, cast

from pipeline import pricing
from pipeline.contracts import Hit, Mode, Question, SearchResult, Step, StoreQuery, Usage, Vectors
from pipeline.errors import BadRequest, Retryable, Unsupported
from pipeline.fusion import distinct, fuse, ordered, passage, ranked, scored, weighted
from pipeline.pricing import Price
from pipeline.protocols import Embedder, EmbedderProfile, Reranker, Store
from pipeline.reranking import Metered, reranked, table
from pipeline.tuning import Tuning
from pipeline.understand import Understood, coverage, informativeness, understand
from pipeline.widen import Shown, widen

__all__ = ["GraphRetriever", "Metered", "Retrieval", "Target", "begin", "find", "fuse", "passage", "search", "widened"]

MIN_SIMILARITY = 0.2
GRAPH_SLOTS = 8
"""Most hits that a graph puts in front, outside `k`."""
WIDEN_TOKENS = 6_000
"""All hits of a search with their surroundings: as much as a reader is sent by default."""
RELAXED_MATCH = 0.1
RELAXED_SIMILARITY = 0.17
"""The second try's limits where the first found nothing; RAGFlow's figures."""


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
    tuning: Tuning = field(default_factory=Tuning)
    """The collection's own settings; a question's and `Retrieval`'s values come first."""
    calibrated: float | None = None
    """Evidence score under which nothing is read, from labelled questions for this generation."""


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
    """Share of full text in HYBRID; None: the collection's, else the embedder profile's."""
    merge: str | None = None
    """weighted or rrf; None: the collections', else weighted."""
    rerank_depth: int = 32
    """Best hits that a reranker reads; `k` at least."""


class Reached(Protocol):
    """What a graph leads to."""

    @property
    def hits(self) -> Sequence[Hit]:
        """Best first, scores in [0, 1]."""
        ...

    @property
    def detail(self) -> Mapping[str, object]:
        """For the trace: what it began from, and collections without a graph."""
        ...


class GraphRetriever(Protocol):
    """One more way to find evidence; its hits stand in front of the others."""

    def find(self, question: Understood, targets: Sequence[Target], k: int) -> Reached:
        """At most `k` hits."""
        ...

    def state(self, targets: Sequence[Target]) -> str:
        """Another one whenever the same question may lead elsewhere."""
        ...


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
    hits, around = widened(understood.question, found.hits, targets)
    return replace(found, hits=hits, steps=(step, *found.steps, *around))


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
    _askable(understood.question, targets, graph)
    return finish(understood, targets, candidates(understood, targets, options), reranker=reranker, graph=graph, options=options)


@dataclass(frozen=True, slots=True)
class Candidates:
    """What the collections gave for one text."""

    hits: list[Hit]
    """Best first."""
    weights: Mapping[str, Mapping[str, float]]
    """Collection → how informative each of the text's terms is there."""
    steps: list[Step]
    usage: Usage


def candidates(understood: Understood, targets: Sequence[Target], options: Retrieval) -> Candidates:
    """All scored hits for a text, before any limit. Raises as `search` does."""
    vectors, steps, spent = ({}, [], Usage()) if understood.question.mode is Mode.PARTICIPLE else _embed(understood.question, targets)
    hits, step, weights = _candidates(understood, targets, vectors, options)
    return Candidates(hits, weights, [*steps, step], spent)


def finish(
    understood: Understood,
    targets: Sequence[Target],
    found: Candidates,
    *,
    reranker: Reranker | None = None,
    graph: GraphRetriever | None = None,
    options: Retrieval = Retrieval(),
) -> SearchResult:
    """From candidates to what is shown: reranked, held to the thresholds, cut to `k`, the graph's hits in front, coverage measured."""
    question, steps, usage = understood.question, [*found.steps], {"query": found.usage}
    _askable(question, targets, graph)
    hits = distinct(found.hits)
    if reranker is not None and hits:
        hits, step, usage["rerank"] = reranked(question, hits[: max(options.rerank_depth, question.k)], reranker)
        steps.append(step)
    least = {target.collection: _threshold(question, target) for target in targets}
    hits = [hit for hit in hits if hit.score >= least[hit.collection]]
    hits = hits[: question.k]
    if question.mode is Mode.GRAPH and graph is not None:
        front, step = _graph(understood, targets, graph)
        steps.append(step)
        # Slots of their own, in front: what the graph leads to takes no place from what the question itself finds.
        hits = distinct([*(hit for hit in front if hit.score >= least.get(hit.collection, 0.0)), *hits])
    shown = tuple(_covered(hit, found.weights) for hit in hits)
    return SearchResult(question.text, question.mode, shown, tuple(steps), usage)


def _askable(question: Question, targets: Sequence[Target], graph: GraphRetriever | None) -> None:
    if not targets:
        raise BadRequest("no collection to search", pointer="/collections", code="no_collection")
    if question.mode is Mode.GRAPH and graph is None:
        raise Unsupported("mode graph: no graph is built here", hint="Set DUJIANG_GRAPH=terms, or use another mode.", code="no_graph")


def widened(
    question: Question, hits: Sequence[Hit], targets: Sequence[Target], *, budget_tokens: int = WIDEN_TOKENS, encoding: str = "cl100k_base"
) -> tuple[tuple[Hit, ...], tuple[Step, ...]]:
    """The hits with the surroundings that the question, or else each collection, asks for; a step where any does."""
    shown = {target.collection: Shown(target.store, target.index, question.widen or target.tuning.widen or "off") for target in targets}
    found, step = widen(hits, shown, budget_tokens=budget_tokens, encoding=encoding, as_of=question.as_of)
    return found, (step,) if step else ()


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
    found = _asked(targets, queries)
    degraded: list[str] = []
    if not any(found) and (relaxed := [_relaxed(query) for query in queries]) != queries:
        degraded.append(f"nothing met {_limits(queries)}: relaxed to {_limits(relaxed)}")
        queries = relaxed
        found = _asked(targets, queries)
    informative: list[Mapping[str, float]] = []
    reached: list[float] = []
    for target, hits in zip(targets, found, strict=True):
        informative.append(informativeness(*target.store.frequencies(target.index, understood.terms), understood.terms))
        best = max(hits, key=lambda hit: hit.scores.get("lexical", 0.0), default=None)
        reached.append(coverage(informative[-1], passage(best)) if best and best.scores.get("lexical", 0.0) > 0.0 else 0.0)
    merge, lost = _strategy(question, targets, queries, options)
    degraded += [lost] * bool(lost)
    shares = [_share(query, _weight(question, target, options)) for target, query in zip(targets, queries, strict=True)]
    if merge == "rrf":
        near = (max(reached) + max((hit.scores.get("similarity", 0.0) for hits in found for hit in hits), default=0.0)) / 2.0
        merged = ranked(found, reached, understood, informative, min(max(near, 0.0), 1.0))
    else:
        scales = [
            reach if query.vector is None else reach / max(reached) if reach > 0.0 else 0.0 for query, reach in zip(queries, reached, strict=True)
        ]
        parts = zip(found, shares, scales, informative, strict=True)
        merged = [hit for hits, share, scale, weights in parts for hit in weighted(hits, share, scale, understood, weights)]
    merged = ordered(merged)
    listed = [
        _searched(question, target, query) | {"lexical_weight": None if merge == "rrf" else share, "candidates": len(hits), "coverage": reach}
        for target, query, hits, share, reach in zip(targets, queries, found, shares, reached, strict=True)
    ]
    detail: dict[str, object] = {
        "mode": str(question.mode),
        "merge": merge,
        "k": question.k,
        "depth": queries[0].k,
        "score_threshold": question.score_threshold,
        "filters": len(question.filters),
        "as_of": question.as_of.isoformat() if question.as_of else None,
        "collections": listed,
        "candidates": table(merged[: question.k]),
    }
    step = Step("retrieve", perf_counter() - started, detail, "; ".join(degraded))
    return merged, step, {target.collection: weights for target, weights in zip(targets, informative, strict=True)}


def _asked(targets: Sequence[Target], queries: Sequence[StoreQuery]) -> list[list[Hit]]:
    """Each target's candidates."""
    asked = zip(targets, queries, strict=True)
    return [[replace(hit, collection=target.collection) for hit in target.store.search(target.index, query)] for target, query in asked]


def _searched(question: Question, target: Target, query: StoreQuery) -> dict[str, object]:
    """What was searched with which limits, for the trace."""
    return {
        "collection": target.collection,
        "index": target.index,
        "revision": target.revision,
        "min_match": query.min_match,
        "min_similarity": query.min_similarity,
        "score_threshold": _threshold(question, target) or None,
    }


def _strategy(question: Question, targets: Sequence[Target], queries: Sequence[StoreQuery], options: Retrieval) -> tuple[str, str]:
    """weighted or rrf, and what of the wishes could not be followed."""
    named = question.merge or options.merge
    wished = {named} if named else {target.tuning.merge or "weighted" for target in targets}
    if "rrf" not in wished or question.mode is not Mode.HYBRID:
        return "weighted", ""
    if len(wished) > 1:
        return "weighted", "the collections are set to different merge strategies: all are weighted"
    if any(query.vector is None for query in queries):
        return "weighted", "ranks cannot be merged where an embedder is away: all are weighted"
    return "rrf", ""


def _weight(question: Question, target: Target, options: Retrieval) -> float:
    """The lexical share asked for: the question's, the caller's, the collection's, the embedder's, whichever is said first."""
    said = (question.lexical_weight, options.lexical_weight, target.tuning.lexical_weight)
    return next((weight for weight in said if weight is not None), target.embedder.profile.lexical_weight)


def _threshold(question: Question, target: Target) -> float:
    """Least score of a hit: the question's, else the collection's, else none."""
    return (target.tuning.score_threshold or 0.0) if question.score_threshold is None else question.score_threshold


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


def _graph(understood: Understood, targets: Sequence[Target], graph: GraphRetriever) -> tuple[list[Hit], Step]:
    started = perf_counter()
    reached = graph.find(understood, targets, min(understood.question.k, GRAPH_SLOTS))
    hits, missing = list(reached.hits), cast("Sequence[str]", reached.detail.get("missing", ()))
    lost = f"no graph is built yet of {', '.join(missing)}" if missing else ""
    return hits, Step("retrieve", perf_counter() - started, {"mode": "graph", **reached.detail, "candidates": table(hits)}, lost)


def _covered(hit: Hit, weights: Mapping[str, Mapping[str, float]]) -> Hit:
    """With the share of the question's terms that it holds, by how informative they are in its collection."""
    return scored(hit, hit.score, coverage=coverage(weights.get(hit.collection, {}), passage(hit)))


def _space(profile: EmbedderProfile) -> str:
    """Two targets with the same embedder share one query vector."""
    return f"{profile.name}@{profile.revision}"
