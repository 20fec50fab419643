"""How near a passage comes to a question's wording: its phrases, and how closely its terms stand together.

BM25 sees single terms. Among passages on one subject, which all hold the terms, the one that answers a question mostly repeats its
phrases and has its terms in one sentence. Weights were chosen on cmrc2018, drcd and hotpotqa (docs/decisions/0016).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pipeline import highlight, text

PHRASES, NEARNESS = 1.0, 1.0
"""Of the share of phrases held, and of the densest stretch, beside BM25 divided by its maximum."""
DEPTH = 30
"""Best lexical candidates that are looked at."""
_UNIT = re.compile(r"[぀-ヿ㐀-鿿가-힯]|[^\W_぀-ヿ㐀-鿿가-힯]+")


def nearness(passage: str, weights: Mapping[str, float], doubled: frozenset[str]) -> float:
    """Summed weight of the distinct terms in the passage's densest stretch, on BM25's scale.

    Args:
        weights: term → informativeness; `doubled`: terms that are searched both as word and as gram.
    """
    return highlight.densest(passage, {term: weight * (2.0 if term in doubled else 1.0) for term, weight in weights.items()})[2]


def shares(question: str, passages: Sequence[str]) -> list[float]:
    """Share of the question's runs of two and of three units that each passage holds, in [0, 1]; 0 for a single word."""
    asked = _units(question)
    runs = {f" {' '.join(asked[start : start + size])} " for size in (2, 3) for start in range(len(asked) - size + 1)}
    if not runs:
        return [0.0] * len(passages)
    return [sum(run in line for run in runs) / len(runs) for line in map(_line, passages)]


def _units(content: str) -> list[str]:
    return _UNIT.findall(text.fold(content))


def _line(passage: str) -> str:
    return f" {' '.join(_units(passage))} "
