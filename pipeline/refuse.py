"""Whether the evidence is strong enough to be read at all.

The figure tells foreign questions from answerable ones. It cannot see a false premise about things that the
documents do talk of: the reader and the grounding check stand for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline import text
from pipeline.contracts import Hit, Question

LEXICAL_REFUSE_BELOW = 0.36
"""For evidence found without vectors, whose score is its coverage alone. Measured on 220 questions each of cmrc2018 and drcd
against the other's, and 64 of hotpotqa against 135 of other sets: 0, 2 and 0 % of the answerable ones are refused, and 78 to 80 %
of the foreign ones; what is left is for the reader to decline. Scores of foreign questions fall with the collection's size."""
LOOKED_AT = 500
"""Characters of a hit that tell its script."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Refused or not, and the figures it rests on."""

    refused: bool
    confidence: float
    """Best evidence score, in [0, 1]."""
    threshold: float
    reason: str
    """In the question's language; empty when not refused."""
    best: Hit | None = None
    source: str = ""
    """What the threshold is: calibrated, embedder profile, setting, or full text for a hit without a cosine."""


def evidence_score(hit: Hit, language: str = "") -> float:
    """How well one hit supports an answer, in [0, 1].

    The mean of its coverage (idf-weighted share of the question's terms that it holds) and its cosine: their AUC for
    foreign questions is 0.98 to 1.00 with either embedder of this house, on five sets. Coverage alone where no vector was
    compared; the cosine alone where it is higher and the hit is written in another script than the question's `language`,
    so that terms cannot meet. How near a graph says a hit is
    to what the question names is no evidence: the best one is always near.
    """
    covered = hit.scores.get("coverage", 0.0)
    if "similarity" not in hit.scores:
        return covered
    similar = min(max(hit.scores["similarity"], 0.0), 1.0)
    mean = (covered + similar) / 2
    foreign = bool(language) and similar > covered and text.language(hit.text[:LOOKED_AT]) not in {language, ""}
    return similar if foreign else mean


@dataclass(frozen=True, slots=True)
class Threshold:
    """Least evidence score of a collection's hits, and where it comes from."""

    value: float
    source: str


def judge(question: Question, language: str, hits: Sequence[Hit], thresholds: Mapping[str, Threshold]) -> Verdict:
    """Refuse when no hit's evidence score reaches its collection's threshold.

    Args:
        language: the question's, as `text.language` gives it.
        thresholds: collection → least score of a hit with a cosine. `LEXICAL_REFUSE_BELOW` holds for hits without
            one, unless the threshold is 0, which refuses nothing that was found.
    """
    best = max(hits, key=lambda hit: evidence_score(hit, language) - _needed(hit, thresholds).value, default=None)
    if best is None:
        least = min(thresholds.values(), key=lambda one: one.value, default=Threshold(0.0, ""))
        return Verdict(True, 0.0, least.value, _reason(question, language, None, 0, 0.0, least.value), None, least.source)
    confidence, needed = evidence_score(best, language), _needed(best, thresholds)
    if confidence >= needed.value:
        return Verdict(False, confidence, needed.value, "", best, needed.source)
    reason = _reason(question, language, best, len(hits), confidence, needed.value)
    return Verdict(True, confidence, needed.value, reason, best, needed.source)


def _needed(hit: Hit, thresholds: Mapping[str, Threshold]) -> Threshold:
    needed = thresholds.get(hit.collection, Threshold(0.0, ""))
    return needed if "similarity" in hit.scores or needed.value <= 0.0 else Threshold(LEXICAL_REFUSE_BELOW, "full text")


def _reason(question: Question, language: str, best: Hit | None, hits: int, confidence: float, needed: float) -> str:
    names = question.collections
    if language == "zh":
        searched = "、".join(f"“{name}”" for name in names)
        if best is None:
            return f"在{searched}中没有找到与问题有关的内容，因此不作回答。"
        return (
            f"在{searched}中没有足以回答该问题的内容：检索了 {hits} 个段落，最接近的是《{best.title or best.key}》，"
            f"证据得分 {confidence:.2f}，低于所需的 {needed:.2f}。"
        )
    searched = ", ".join(f'"{name}"' for name in names)
    if best is None:
        return f"Nothing in {searched} has to do with this question, so it is not answered."
    return (
        f"Nothing in {searched} is close enough to answer this: of {hits} passages, the nearest is in “{best.title or best.key}”, "
        f"with an evidence score of {confidence:.2f} where {needed:.2f} is needed."
    )
