"""Plain windows: the reference that figures of other systems can be compared with."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import tokens
from pipeline.chunk import chunk, create
from pipeline.contracts import Chunk, ParsedDocument, Section, Span
from pipeline.errors import BrokenContract


def test_windows_hold_256_tokens_and_share_32() -> None:
    text = "The levee divides the river into an inner and an outer stream. " * 120
    pieces = create("windows")(ParsedDocument(text), "doc")
    assert {piece.token_end - piece.token_start for piece in pieces[:-1]} == {256}
    assert {before.token_end - after.token_start for before, after in pairwise(pieces)} == {32}
    assert pieces[0].token_start == 0
    assert pieces[-1].token_end == tokens.count(text)


@settings(deadline=None)
@given(text=st.text("林岑批准這次出差搭高鐵。한국어 ab\n😀\U00020000", max_size=500), size=st.integers(16, 64), share=st.integers(0, 8))
def test_windows_leave_no_character_out_and_damage_none(text: str, size: int, share: int) -> None:
    pieces = create(f"windows:{size}/{share}")(ParsedDocument(text), "doc")
    reached = 0
    for piece in pieces:
        assert piece.start <= reached < piece.end
        assert "\ufffd" not in piece.text
        assert piece.token_end - piece.token_start <= size + 3
        reached = piece.end
    assert reached == len(text)


def test_a_window_has_the_headings_lines_and_pages_of_its_sections() -> None:
    first, second = "Inner stream.\nOuter stream.\n" * 40, "Flying sand weir.\n" * 60
    text = first + second
    sections = (
        Section(0, len(first) - 1, heading_path=("River",), page=1, line_start=1, line_end=80),
        Section(len(first), len(text) - 1, heading_path=("Weir",), page=2, line_start=90, line_end=149),
    )
    pieces = chunk(ParsedDocument(text, sections), "doc", create("windows:64/0"))
    assert {piece.heading_path for piece in pieces} == {("River",), ("Weir",)}
    for piece in pieces:
        offset = 0 if piece.start < len(first) else 9
        assert piece.line_start == text.count("\n", 0, piece.start) + 1 + offset or text[piece.start] == "\n"
    assert (pieces[0].page, pieces[-1].page_end) == (1, 2)
    assert (pieces[0].line_start, pieces[-1].line_end) == (1, 149)


class Broken:
    drops = ""

    def __init__(self, piece: Chunk) -> None:
        self.piece = piece

    def __call__(self, document: ParsedDocument, document_id: str) -> tuple[Chunk, ...]:
        return (self.piece,)


@pytest.mark.parametrize(
    "piece",
    [
        Chunk("", 0, 0, 5, "River"),
        Chunk("", 0, 0, 5, "rivers"),
        Chunk("", 0, 3, 3, ""),
        Chunk("", 0, 0, 99, "river and levee"),
        Chunk("", 0, -5, 15, "levee"),
        Chunk("", 0, 0, 5, "river", lead=((0, 99),)),
    ],
)
def test_a_chunker_that_does_not_quote_is_refused(piece: Chunk) -> None:
    with pytest.raises(BrokenContract):
        chunk(ParsedDocument("river and levee"), "doc", Broken(piece))


def test_terms_are_those_of_the_searched_text() -> None:
    lead: tuple[Span, ...] = ((0, 5),)
    [piece] = chunk(ParsedDocument("river and levee"), "doc", Broken(Chunk("", 0, 10, 15, "levee", lead=lead, search_text="river\nlevee")))
    assert piece.words == "river leve"
    assert piece.chunk_id
