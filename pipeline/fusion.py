"""From the two sides of a search to one list: blended scores or blended ranks, each in [0, 1].

* `weighted`: full text and cosine are added with a share for each. The default.
* `reciprocal`: ranks instead of figures. A hit has 1/(60 + rank) from each side that found it, so that neither side's figures can drown
  the other's; a hit that one side has not found at all stays in. The list is then scaled by how near its best hits come to the question,
  without which the first hit for a foreign question would score as high as the first one for a good question.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pipeline import phrases
from pipeline.contracts import Hit
from pipeline.understand import Understood

Scores: TypeAlias = NDArray[np.float64]

RANK_CONSTANT = 60
"""Cormack, Clarke and Büttcher, SIGIR 2009; Elasticsearch's default, too."""
SAME_SPOT = 0.5
"""Two hits of one document that share more than this part of the shorter are shown once."""


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
    _check(lexical, semantic)
    if not 0.0 <= lexical_weight <= 1.0 or not 0.0 <= reach <= 1.0:
        raise ValueError(f"lexical_weight {lexical_weight} or reach {reach} is outside 0 to 1")
    top = float(lexical.max(initial=0.0))
    relative = np.clip(lexical / top, 0.0, 1.0) if top > 0.0 else np.zeros_like(lexical)
    return lexical_weight * reach * relative + (1.0 - lexical_weight) * np.clip(semantic, 0.0, 1.0)


def reciprocal(lexical: Scores, semantic: Scores) -> Scores:
    """Blend two lists for the same candidates by their ranks.

    Args:
        lexical: any figure, shape (n,); 0 and less: the side has not found it, and gives it nothing.
        semantic: cosine, shape (n,); likewise.

    Returns: shape (n,), in [0, 1]; 1.0 for the first of both sides, 0.5 for the first of one that the other has not. Equal figures share a rank.
    Raises: ValueError when shapes differ.
    """
    _check(lexical, semantic)
    return (_by_rank(lexical) + _by_rank(semantic)) / 2.0


def _by_rank(figures: Scores) -> Scores:
    found = np.sort(figures[figures > 0.0])
    ahead = found.size - np.searchsorted(found, figures, side="right")
    return np.where(figures > 0.0, (RANK_CONSTANT + 1.0) / (RANK_CONSTANT + 1.0 + ahead), 0.0)


def _check(lexical: Scores, semantic: Scores) -> None:
    if lexical.shape != semantic.shape or lexical.ndim != 1:
        raise ValueError(f"shapes {lexical.shape} and {semantic.shape} differ or are not flat")


def weighted(hits: list[Hit], share: float, reach: float, understood: Understood, weights: Mapping[str, float]) -> list[Hit]:
    """The hits of one collection with fused scores. The best lexical candidates are weighed by phrases and nearness, too."""
    if share > 0.0:
        hits = _worded(hits, understood, weights)
    fused = fuse(_lexical(hits), figures(hits, "similarity"), lexical_weight=share, reach=min(reach, 1.0))
    return [scored(hit, float(score), fused=float(score)) for hit, score in zip(hits, fused, strict=True)]


def ranked(
    lists: Sequence[list[Hit]], reaches: Sequence[float], understood: Understood, weights: Sequence[Mapping[str, float]], near: float
) -> list[Hit]:
    """The hits of all collections with reciprocal scores, ranked against each other.

    Args:
        reaches: coverage of each collection's best lexical hit; full text of several collections compares by it.
        near: how near the best hits come to the question, in [0, 1]; the scores' scale.
    """
    hits: list[Hit] = []
    lexical: list[Scores] = []
    for part, reach, informative in zip(lists, reaches, weights, strict=True):
        worded = _worded(part, understood, informative)
        side = _lexical(worded)
        top = float(side.max(initial=0.0))
        hits += worded
        lexical.append(side / top * reach if top > 0.0 else side)
    if not hits:
        return []
    fused = near * reciprocal(np.concatenate(lexical), figures(hits, "similarity"))
    return [scored(hit, float(score), fused=float(score)) for hit, score in zip(hits, fused, strict=True)]


def _lexical(hits: Sequence[Hit]) -> Scores:
    lexical, phrase, near = (figures(hits, name) for name in ("lexical", "phrase", "nearness"))
    top = float(lexical.max(initial=0.0))
    return (lexical + phrases.NEARNESS * near) / top + phrases.PHRASES * phrase if top > 0.0 else lexical


def figures(hits: Sequence[Hit], name: str) -> Scores:
    """One of `Hit.scores` of each hit, shape (n,); 0 where it has none."""
    return np.array([hit.scores.get(name, 0.0) for hit in hits], dtype=np.float64)


def _worded(hits: list[Hit], understood: Understood, weights: Mapping[str, float]) -> list[Hit]:
    best = sorted((hit for hit in hits if hit.scores.get("lexical", 0.0) > 0.0), key=lambda hit: -hit.scores["lexical"])[: phrases.DEPTH]
    doubled = frozenset(understood.words) & frozenset(understood.grams)
    told: dict[int, dict[str, float]] = {}
    for hit, held in zip(best, phrases.shares(understood.question.text, [passage(hit) for hit in best]), strict=True):
        told[id(hit)] = {"phrase": held, "nearness": phrases.nearness(hit.text, weights, doubled)}
    return [scored(hit, hit.score, **told[id(hit)]) if id(hit) in told else hit for hit in hits]


def passage(hit: Hit) -> str:
    """What a hit says, with the headings above it: what a reranker reads and coverage is measured on."""
    return "\n".join(part for part in (hit.title, " > ".join(hit.heading_path), hit.lead, hit.text) if part)


def distinct(hits: Iterable[Hit]) -> list[Hit]:
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


def ordered(hits: Iterable[Hit]) -> list[Hit]:
    """Best first. Rounded, so that float noise decides no tie."""
    return sorted(hits, key=lambda hit: (-round(hit.score, 12), hit.key, hit.ordinal, hit.collection))


def scored(hit: Hit, score: float, **figures: float) -> Hit:
    """The hit with a new score, and more of its figures told."""
    return replace(hit, score=score, scores={**hit.scores, **figures})
