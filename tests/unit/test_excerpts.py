"""Slices of a document under a limit of characters and a limit of time."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.contracts import ParsedDocument, Section
from pipeline.errors import BadRequest, NotFound
from workers.excerpts import excerpt


def day(number: int) -> datetime:
    return datetime(2024, 5, number, tzinfo=UTC)


def document(*days: int | None) -> ParsedDocument:
    """A line of ten characters a section, an empty line between two."""
    lines = [f"section {number}." for number in range(len(days))]
    sections = tuple(Section(12 * place, 12 * place + 10, at=day(at) if at else None) for place, at in enumerate(days))
    return ParsedDocument("\n\n".join(lines), sections)


@given(
    text=st.text(alphabet="林岑批准😀 ab\n", max_size=80), most=st.integers(1, 90), start=st.integers(0, 90), length=st.none() | st.integers(0, 90)
)
def test_an_excerpt_is_verbatim_and_says_when_it_was_cut(text: str, most: int, start: int, length: int | None) -> None:
    end = None if length is None else start + length
    found = excerpt(ParsedDocument(text), "d", start, end, most=most)
    assert found.text == text[found.start_char : found.end_char] == text[start:end][:most]
    assert found.length == len(text)
    assert (found.cut == "limit") == (len(text[start:end]) > most)


@pytest.mark.parametrize(
    ("days", "start", "known"),
    [
        ((1, 2, 3), 0, "section 0.\n\nsection 1.\n\n"),
        ((1, 2, 3), 14, "ction 1.\n\n"),
        ((1, None, 3), 0, "section 0.\n\nsection 1.\n\n"),
        ((None, 1, 3), 0, "section 0.\n\nsection 1.\n\n"),
        ((3, 1, 3), 12, "section 1.\n\n"),
        ((1, 2), 0, "section 0.\n\nsection 1."),
        ((1, 2), 500, ""),
    ],
    ids=str,
)
def test_what_is_later_is_cut_and_what_has_no_time_has_that_of_what_stands_above(days: tuple[int | None, ...], start: int, known: str) -> None:
    found = excerpt(document(*days), "d", start, None, as_of=day(2))
    assert found.text == known
    assert found.cut == ("" if found.end_char == found.length else "as_of")


@pytest.mark.parametrize(
    ("days", "start", "code"), [((3, 1), 0, "later_than_as_of"), ((1, 3), 12, "later_than_as_of"), ((None, None), 0, "undated"), ((), 0, "undated")]
)
def test_what_was_not_known_then_is_refused_by_name(days: tuple[int | None, ...], start: int, code: str) -> None:
    with pytest.raises(NotFound) as raised:
        excerpt(document(*days), "d", start, None, as_of=day(2))
    assert raised.value.code == code


def test_the_nearer_of_the_two_limits_is_named() -> None:
    assert excerpt(document(1, 3), "d", 0, None, most=4, as_of=day(2)).cut == "limit"
    assert excerpt(document(1, 3), "d", 0, None, most=12, as_of=day(2)).cut == "as_of"


@pytest.mark.parametrize(("start", "end"), [(-1, 3), (4, 3)])
def test_what_is_no_span_is_refused(start: int, end: int) -> None:
    with pytest.raises(BadRequest):
        excerpt(ParsedDocument("some text"), "d", start, end)
