"""Excerpts show the place where the question's terms stand together, and never change what the text says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.highlight import CLOSE, EXCERPT, NEAR, OPEN, densest, highlight, occurrences
from pipeline.text import query_terms

LETTERS = "林岑批准這次出差搭高鐵。한국어 ab\nİﬁ😀.Ａ"
TEXTS = st.text(alphabet=LETTERS, max_size=400)


@settings(deadline=None)
@given(text=TEXTS, question=st.text(alphabet=LETTERS, max_size=12))
def test_without_its_marks_an_excerpt_is_part_of_the_text(text: str, question: str) -> None:
    shown = highlight(text, *query_terms(question))
    bare = shown.replace(OPEN, "").replace(CLOSE, "").strip("…")
    assert bare in " ".join(text.split())
    assert shown.count(OPEN) == shown.count(CLOSE)


@settings(deadline=None)
@given(text=TEXTS, question=st.text(alphabet=LETTERS, max_size=12))
def test_matches_are_ordered_spans_of_the_text(text: str, question: str) -> None:
    words, grams = query_terms(question)
    found = occurrences(text, (*words, *grams))
    assert found == sorted(found)
    assert all(0 <= start < end <= len(text) for start, end, _ in found)
    start, end, weight = densest(text, dict.fromkeys((*words, *grams), 1.0))
    assert (weight > 0) is bool(found) and end - start <= max(NEAR, *(stop - begin for begin, stop, _ in found), 0)


@pytest.mark.parametrize(
    ("text", "question", "expected"),
    [
        ("林岑批准這次出差搭高鐵。", "谁批准高铁", "林岑«批准»這次出差搭«高鐵»。"),
        ("The sluices were repaired.", "repairing sluice", "The «sluices» were «repaired»."),
        ("Nothing of it is here.", "水闸", "Nothing of it is here."),
        ("ＡＰＩ key", "api", "«ＡＰＩ» key"),
        ("catalogue of a cat", "cat", "catalogue of a «cat»"),
    ],
)
def test_matches_are_marked_across_scripts_and_endings(text: str, question: str, expected: str) -> None:
    assert highlight(text, *query_terms(question)) == expected


def test_an_excerpt_is_short_and_shows_the_densest_place() -> None:
    text = "gate. " * 100 + "The keeper of the gate is Lin Cen. " + "gate. " * 100
    shown = highlight(text, *query_terms("keeper of the gate"))
    assert "«keeper» of the «gate»" in shown
    assert len(shown) <= EXCERPT + 2 + 2 * shown.count(OPEN)
    assert shown.startswith("…") and shown.endswith("…")


def test_terms_said_together_weigh_more_than_scattered_ones() -> None:
    weights = {"林": 1.0, "岑": 2.0}
    assert densest("林岑", weights)[2] == 3.0
    assert densest("林" + "x" * 100 + "岑", weights)[2] == 2.0
    assert densest("林林林", weights)[2] == 1.0
    assert densest("", weights) == (0, 0, 0.0)
