"""A refusal threshold from labelled questions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.calibrate import Labelled, auc, calibrate, check, labelled
from pipeline.errors import BadRequest

scores = st.lists(st.floats(0, 1), min_size=1, max_size=40)


def test_kinds_that_are_apart_are_parted_halfway() -> None:
    found = calibrate([0.6, 0.7, 0.9], [0.1, 0.2, 0.4])
    assert (found.threshold, found.auc) == (0.5, 1.0)
    assert (found.answered, found.wrongly_refused, found.refused, found.wrongly_answered) == (3, 0, 3, 0)


def test_the_cap_keeps_answerable_questions_from_being_refused() -> None:
    good, bad = [0.2, *[0.8] * 9], [0.3] * 10
    assert calibrate(good, bad, cap=0.0).wrongly_refused == 0
    allowed = calibrate(good, bad, cap=0.1)
    assert (allowed.wrongly_refused, allowed.refused) == (1, 10)


@given(scores, scores, st.floats(0, 1))
def test_no_threshold_within_the_cap_tells_them_apart_better(good: list[float], bad: list[float], cap: float) -> None:
    found = calibrate(good, bad, cap=cap)
    assert found.wrongly_refused <= cap * len(good) + 1e-9
    assert found.answered == sum(score >= found.threshold for score in good) and found.refused == sum(score < found.threshold for score in bad)
    reached = found.answered / len(good) - found.wrongly_answered / len(bad)
    for other in (*good, *bad):
        if sum(score < other for score in good) <= cap * len(good):
            assert reached >= sum(score >= other for score in good) / len(good) - sum(score >= other for score in bad) / len(bad) - 1e-9


@given(scores, scores)
def test_the_auc_is_the_share_of_pairs_in_order(good: list[float], bad: list[float]) -> None:
    pairs = [(a > b) + (a == b) / 2 for a in good for b in bad]
    assert auc(good, bad) == pytest.approx(sum(pairs) / len(pairs))


def test_labels_are_read_and_a_wrong_line_is_named() -> None:
    assert labelled(['{"question": "谁？", "answerable": false, "note": 1}', ""]) == [Labelled("谁？", False)]
    for wrong in ("{", "[]", '{"question": "?"}', '{"question": " ", "answerable": true}', '{"question": "?", "answerable": 1}'):
        with pytest.raises(BadRequest, match="line 2"):
            labelled(["", wrong])


def test_questions_of_one_kind_calibrate_nothing() -> None:
    with pytest.raises(BadRequest, match="one kind"):
        check([Labelled("?", True)], 0.05)
    with pytest.raises(BadRequest, match="cap"):
        check([Labelled("?", True), Labelled("?", False)], 2.0)
