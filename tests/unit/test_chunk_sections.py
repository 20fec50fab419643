"""Structure-aware chunks respect headings, tables and code, and never exceed the budget."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import tokens
from pipeline.chunk import chunk, create
from pipeline.contracts import Chunk, ParsedDocument, Section, Table

SENTENCE = "The Min river is divided by a levee of stones, and its silt is carried away by the outer stream. "


def build(*parts: tuple[str, str, int, tuple[str, ...]]) -> ParsedDocument:
    """(text, tag, level, heading path) of each section, two line breaks between them."""
    text, sections = "", []
    for body, tag, level, path in parts:
        sections.append(Section(len(text), len(text) + len(body), tag, level, path))
        text += body + "\n\n"
    return ParsedDocument(text, tuple(sections))


def table(rows: int, cells: str = "{0} | station {0} | {0}.5 m") -> ParsedDocument:
    lines = ["number | station | level", *(cells.format(row) for row in range(rows))]
    text, spans = "", []
    for line in lines:
        spans.append((len(text), len(text) + len(line)))
        text += line + "\n"
    end = len(text) - 1
    return ParsedDocument(text, (Section(0, end, "Table"),), (Table(0, end, tuple(spans), header=spans[0]),))


def cut(document: ParsedDocument, spec: str = "sections:64/0", **options: str) -> tuple[Chunk, ...]:
    return chunk(document, "doc", create(spec, options=options))


@settings(deadline=None, max_examples=120)
@given(
    parts=st.lists(
        st.tuples(
            st.text("林岑批准。 ab😀e\u0301Cd.!?\n\t한국١٢12", max_size=200),
            st.sampled_from(["Title", "Text", "Code", "List"]),
            st.integers(1, 3),
            st.just(()),
        ),
        max_size=8,
    ),
    size=st.integers(16, 60),
    encoding=st.sampled_from(["cl100k_base", "o200k_base"]),
)
def test_no_chunk_exceeds_the_budget(parts: list[tuple[str, str, int, tuple[str, ...]]], size: int, encoding: str) -> None:
    for piece in create(f"sections:{size}/0", encoding=encoding)(build(*parts), "doc"):
        assert tokens.count(piece.text, encoding) <= size


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(0, 40),
    size=st.integers(16, 90),
    cells=st.sampled_from(["{0} | station {0} | {0}.5 m", "{0} | 都江堰水文站測得的水位 | " + "流量" * 40]),
)
def test_a_lead_counts_in_the_budget(rows: int, size: int, cells: str) -> None:
    document = table(rows, cells)
    for piece in cut(document, f"sections:{size}/0"):
        lead = "".join(document.text[start:end] + "\n" for start, end in piece.lead)
        assert tokens.count(lead + piece.text) <= size


def test_a_long_table_is_split_by_rows_and_each_part_says_what_its_columns_are() -> None:
    document = table(60)
    pieces = cut(document)
    assert len(pieces) > 3
    assert {piece.kind for piece in pieces} == {"table"}
    assert pieces[0].text.startswith("number | station | level") and not pieces[0].lead
    for piece in pieces[1:]:
        assert [document.text[start:end] for start, end in piece.lead] == ["number | station | level"]
        assert piece.search_text == f"number | station | level\n{piece.text}"
        assert all(line.endswith(".5 m") for line in piece.text.splitlines())


def test_a_table_that_fits_stays_whole() -> None:
    pieces = cut(table(3))
    assert [piece.kind for piece in pieces] == ["table"]
    assert not pieces[0].lead


def test_a_top_level_heading_starts_a_new_chunk_unless_the_piece_before_is_tiny() -> None:
    document = build(
        ("River", "Title", 1, ()),
        (SENTENCE * 2, "Text", 0, ("River",)),
        ("Stone", "Title", 1, ()),
        ("Short.", "Text", 0, ("Stone",)),
        ("Silt", "Title", 1, ()),
        (SENTENCE, "Text", 0, ("Silt",)),
    )
    assert [piece.text.split("\n")[0] for piece in cut(document)] == ["River", "Stone"]


def test_a_heading_never_ends_a_chunk() -> None:
    parts = [part for n in range(12) for part in ((f"Part {n}", "Title", 2, ()), (SENTENCE * (1 + n % 3), "Text", 0, (f"Part {n}",)))]
    for piece in cut(build(*parts), "sections:80/0"):
        assert not piece.text.rpartition("\n")[2].startswith("Part")


def test_the_heading_path_stands_in_front_of_what_is_searched() -> None:
    document = build((SENTENCE * 3, "Text", 0, ("Guide", "Water")), (SENTENCE * 3, "Text", 0, ("Guide", "Stone")))
    pieces = cut(document, "sections:80/0")
    assert [piece.heading_path for piece in pieces] == [("Guide", "Water"), ("Guide", "Stone")]
    assert pieces[1].search_text == f"Guide > Stone\n{pieces[1].text}"
    assert "stone" in pieces[1].words.split()


def test_records_with_key_paths_start_new_chunks_without_headings() -> None:
    document = build(*((SENTENCE * 2, "Text", 0, ("stations", str(n))) for n in range(4)))
    assert [piece.heading_path[1] for piece in cut(document, "sections:80/0")] == ["0", "1", "2", "3"]


def test_without_headings_the_text_itself_is_searched() -> None:
    [piece] = cut(build(("One line.", "Text", 0, ())))
    assert piece.search_text == ""
    assert piece.searched == "One line."


def test_a_long_paragraph_is_cut_between_sentences() -> None:
    for piece in cut(build((SENTENCE.strip() + " 分水的魚嘴把江分成兩股。" * 3, "Text", 0, ()), (SENTENCE * 9, "Text", 0, ()))):
        assert piece.text[-1] in ".。"


def test_code_that_fits_stays_whole_and_longer_code_is_cut_between_lines() -> None:
    small = "def split(river):\n    return river / 2\n\n\ndef join(a, b):\n    return a + b"
    pieces = cut(build((SENTENCE * 2, "Text", 0, ()), (small, "Code", 0, ())))
    assert any(small in piece.text for piece in pieces)
    long = "\n".join(f"    level_{n} = measure(station={n})" for n in range(60))
    lines = {line.strip() for line in long.splitlines()}
    for piece in cut(build((long, "Code", 0, ()))):
        assert {line.strip() for line in piece.text.splitlines()} <= lines


def test_text_is_cut_at_the_delimiter_first() -> None:
    text = "alpha beta gamma delta; " * 30
    for piece in cut(build((text, "Text", 0, ())), "sections", chunk_token_num="20", delimiter=";")[:-1]:
        assert piece.text.endswith(";")
    marked = "".join(f"note {n} about water and stone ## " for n in range(30))
    for piece in cut(build((marked, "Text", 0, ())), "sections:24/0", delimiter="`##`")[:-1]:
        assert piece.text.endswith("##")


def test_overlap_repeats_the_last_sentences_of_the_chunk_before() -> None:
    text = " ".join(f"Sentence number {n} speaks of water." for n in range(40))
    pieces = cut(build((text, "Text", 0, ())), "sections:60/20")
    for before, after in pairwise(pieces):
        assert before.start < after.start < before.end < after.end
        assert after.text.startswith("Sentence")
        assert after.tokens <= 60


def test_text_that_no_section_claims_is_not_lost() -> None:
    text = "orphan before\n\nclaimed\n\norphan after"
    start = text.index("claimed")
    joined = " ".join(piece.text for piece in cut(ParsedDocument(text, (Section(start, start + 7),))))
    assert all(word in joined for word in text.split())


@pytest.mark.parametrize("encoding", ["cl100k_base", "o200k_base"])
def test_the_budget_is_counted_in_the_chosen_encoding(encoding: str) -> None:
    document = build(("都江堰將岷江一分為二，內江灌溉成都平原。" * 20, "Text", 0, ()))
    pieces = create("sections:50/0", encoding=encoding)(document, "doc")
    assert max(tokens.count(piece.text, encoding) for piece in pieces) <= 50
    assert sum(piece.tokens for piece in pieces) / len(pieces) > 25
