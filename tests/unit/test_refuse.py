"""Weak evidence is told from strong, in one language and across two."""

from __future__ import annotations

import pytest

from pipeline.contracts import Hit, Question
from pipeline.refuse import LEXICAL_REFUSE_BELOW, Threshold, evidence_score, judge
from tests.fakes_answer import hit

ASKED = Question("Who approved the trip?", ("handbook",))


def found(body: str = "Lin Cen approved it.", **scores: float) -> Hit:
    return hit(body, scores=scores, collection="handbook")


def needs(**thresholds: float) -> dict[str, Threshold]:
    return {name: Threshold(value, "setting") for name, value in thresholds.items()}


def test_the_score_is_the_mean_of_coverage_and_cosine() -> None:
    assert evidence_score(found(coverage=0.8, similarity=0.4), "en") == pytest.approx(0.6)
    assert evidence_score(found(coverage=0.8), "en") == 0.8
    assert evidence_score(found(coverage=0.4, similarity=-0.5), "en") == 0.2


def test_across_languages_the_cosine_speaks_for_itself() -> None:
    assert evidence_score(found("林岑批准了出差。", coverage=0.0, similarity=0.6), "en") == 0.6
    assert evidence_score(found("Lin Cen approved it.", coverage=0.0, similarity=0.6), "en") == 0.3
    assert evidence_score(found("12 | 13", coverage=0.0, similarity=0.6), "en") == 0.3


def test_each_hit_is_held_against_its_own_collections_threshold() -> None:
    near = hit("a", scores={"coverage": 0.5, "similarity": 0.5}, collection="strict")
    far = hit("b", scores={"coverage": 0.3, "similarity": 0.3}, collection="lenient")
    verdict = judge(ASKED, "en", [near, far], needs(strict=0.9, lenient=0.2))
    assert not verdict.refused and verdict.best is far and verdict.threshold == 0.2


def test_full_text_alone_has_a_threshold_of_its_own() -> None:
    assert judge(ASKED, "en", [found(coverage=LEXICAL_REFUSE_BELOW - 0.01)], needs(handbook=0.1)).refused
    assert not judge(ASKED, "en", [found(coverage=LEXICAL_REFUSE_BELOW)], needs(handbook=0.9)).refused


def test_a_threshold_of_zero_refuses_only_when_nothing_was_found() -> None:
    assert not judge(ASKED, "en", [found(coverage=0.0)], needs(handbook=0.0)).refused
    assert judge(ASKED, "en", [], needs(handbook=0.0)).refused


def test_the_reason_names_what_was_searched_the_nearest_document_and_both_figures() -> None:
    verdict = judge(ASKED, "en", [found(coverage=0.2, similarity=0.1)], needs(handbook=0.36))
    assert all(part in verdict.reason for part in ('"handbook"', "“A”", "0.15", "0.36", "1 passage"))
    assert "证据得分 0.15" in judge(ASKED, "zh", [found(coverage=0.2, similarity=0.1)], needs(handbook=0.36)).reason
