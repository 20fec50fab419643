"""The second look: a model that reads the best candidates with the question."""

from __future__ import annotations

import math
from collections.abc import Sequence
from time import perf_counter
from typing import Protocol, runtime_checkable

from pipeline.contracts import Hit, Question, Step, Usage
from pipeline.errors import BrokenContract, PipelineError
from pipeline.fusion import ordered, passage, scored
from pipeline.protocols import Reranker


@runtime_checkable
class Metered(Protocol):
    """A reranker that also says what a call cost."""

    def score(self, question: str, passages: Sequence[str]) -> tuple[list[float], Usage]: ...


def reranked(question: Question, hits: list[Hit], reranker: Reranker) -> tuple[list[Hit], Step, Usage]:
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
        hits = ordered(scored(hit, min(max(score, 0.0), 1.0), rerank=score) for hit, score in zip(hits, scores, strict=True))
    except PipelineError as error:
        lost = f"reranker {reranker.name} failed ({error.code}): the order of retrieval is kept"
    detail = {"reranker": reranker.name, "passages": len(passages), "transient": bool(lost), "candidates": table(hits[: question.k])}
    return hits, Step("rerank", perf_counter() - started, detail, lost), usage


def table(hits: Sequence[Hit]) -> list[dict[str, object]]:
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
