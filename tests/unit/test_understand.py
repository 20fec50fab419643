"""Questions are checked, and their terms weighed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from pipeline.contracts import Filter, Op, Question
from pipeline.errors import BadRequest
from pipeline.understand import coverage, informativeness, understand

ASKED = Question("  Who approved the trip? ", ("handbook",))


def test_a_question_keeps_its_filters_and_its_time_and_loses_only_blanks() -> None:
    question = replace(ASKED, filters=(Filter("team", Op.EQ, "ops"),), as_of=datetime(2026, 1, 1, tzinfo=UTC))
    understood = understand(question)
    assert understood.question == replace(question, text="Who approved the trip?")
    assert understood.language == "en"
    assert "trip" in understood.words


def test_traditional_and_simplified_questions_have_the_same_terms() -> None:
    assert understand(replace(ASKED, text="誰批准這次出差？")).terms == understand(replace(ASKED, text="谁批准这次出差？")).terms


@pytest.mark.parametrize(
    ("changed", "pointer"),
    [
        ({"text": " \n"}, "/text"),
        ({"text": "a" * 9000}, "/text"),
        ({"collections": ()}, "/collections"),
        ({"k": 0}, "/k"),
        ({"score_threshold": 1.5}, "/score_threshold"),
        ({"as_of": datetime(2026, 1, 1)}, "/as_of"),  # noqa: DTZ001
    ],
)
def test_a_question_that_cannot_be_asked_names_the_field(changed: dict[str, object], pointer: str) -> None:
    with pytest.raises(BadRequest) as caught:
        understand(replace(ASKED, **changed))  # type: ignore[arg-type]
    assert caught.value.pointer == pointer


def test_rare_terms_weigh_more_and_unknown_ones_most() -> None:
    weights = informativeness(100, {"trip": 50, "basalt": 1}, ("trip", "basalt", "zyx"))
    assert weights["trip"] < weights["basalt"] < weights["zyx"]


def test_coverage_is_the_weighted_share_of_terms_in_a_passage() -> None:
    weights = {"trip": 1.0, "basalt": 3.0}
    assert coverage(weights, "A trip to the coast") == pytest.approx(0.25)
    assert coverage(weights, "The trips found basalt") == 1.0
    assert coverage({}, "anything") == 0.0
