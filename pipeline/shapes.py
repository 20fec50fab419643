"""The JSON shapes of a hit, a search and an answer, for every way in.

They are published: fields may be added, none renamed. Offsets count code points of the parsed document's text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from pipeline.contracts import Answer, Citation, Evidence, Grounding, Hit, SearchResult, Step, Usage

Shape: TypeAlias = dict[str, object]


def hit_json(hit: Hit) -> Shape:
    """`score` and `scores` are rounded to 6 decimals."""
    return {
        "chunk_id": hit.chunk_id,
        "document_id": hit.document_id,
        "ordinal": hit.ordinal,
        "title": hit.title,
        "url": hit.url,
        "score": round(hit.score, 6),
        "scores": {name: round(score, 6) for name, score in hit.scores.items()},
        "text": hit.text,
        "lead": hit.lead,
        "kind": hit.kind,
        "start_char": hit.start,
        "end_char": hit.end,
        "page": hit.page,
        "line_start": hit.line_start,
        "line_end": hit.line_end,
        "heading_path": list(hit.heading_path),
        "highlight": hit.highlight,
        "metadata": dict(hit.metadata),
        "collection": hit.collection,
    }


def search_json(result: SearchResult, *, trace: bool = True) -> Shape:
    """`trace` is null when it was not asked for."""
    return {
        "query": result.query,
        "mode": str(result.mode),
        "hits": [hit_json(hit) for hit in result.hits],
        "usage": usage_json(result.usage),
        "trace": [step_json(step) for step in result.steps] if trace else None,
    }


def answer_json(answer: Answer, *, trace: bool = False) -> Shape:
    """`trace` and `evidence` are null when they were not asked for; `degraded` always names what did not work."""
    return {
        "answer": answer.text,
        "refused": answer.refused,
        "reason": answer.reason,
        "citations": [citation_json(citation) for citation in answer.citations],
        "grounding": grounding_json(answer.grounding),
        "usage": usage_json(answer.usage),
        "cache": answer.cache,
        "degraded": [step.degraded for step in answer.steps if step.degraded],
        "evidence": [evidence_json(evidence) for evidence in answer.evidence] if trace else None,
        "trace": [step_json(step) for step in answer.steps] if trace else None,
    }


def citation_json(citation: Citation) -> Shape:
    return {
        "marker": citation.marker,
        "chunk_id": citation.chunk_id,
        "document_id": citation.document_id,
        "title": citation.title,
        "url": citation.url,
        "page": citation.page,
        "line_start": citation.line_start,
        "line_end": citation.line_end,
        "start_char": citation.start_char,
        "end_char": citation.end_char,
        "quote": citation.quote,
        "answer_start": citation.answer_start,
        "answer_end": citation.answer_end,
        "collection": citation.collection,
        "supported": citation.supported,
    }


def grounding_json(grounding: Grounding) -> Shape:
    """`threshold` is 0 where none is set, and then nothing is flagged."""
    return {
        "score": round(grounding.score, 6),
        "unsupported": list(grounding.unsupported),
        "unsupported_sentences": list(grounding.unsupported_sentences),
        "threshold": grounding.threshold,
        "flagged": grounding.flagged,
    }


def evidence_json(evidence: Evidence) -> Shape:
    """`text` is what the reader was really sent, `start_char`/`end_char` the span of the document it shows."""
    return {
        "marker": evidence.marker,
        "text": evidence.text,
        "start_char": evidence.start,
        "end_char": evidence.end,
        "truncated": evidence.truncated,
        "hit": hit_json(evidence.hit),
    }


def usage_json(usage: Mapping[str, Usage]) -> Shape:
    """All four parts, whether or not they took part; what was not reported is null."""
    return {part: _usage(usage.get(part, Usage())) for part in ("build", "query", "rerank", "reader")}


def step_json(step: Step) -> Shape:
    return {"stage": step.stage, "seconds": round(step.seconds, 6), "detail": dict(step.detail), "degraded": step.degraded}


def _usage(usage: Usage) -> Shape:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "requests": usage.requests,
        "retries": usage.retries,
        "cost": usage.cost,
        "currency": usage.currency,
        "cached_tokens": usage.cached_tokens,
    }
