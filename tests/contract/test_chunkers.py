"""Every registered chunker: verbatim, in order, nothing lost, nothing damaged, the same twice."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import tokens
from pipeline.chunk import CHUNKERS, chunk, create, fingerprint
from pipeline.contracts import ParsedDocument, Section, Table
from pipeline.errors import BadRequest, Unsupported

ALPHABET = "林岑批准這次出差搭高鐵。，！？한국어를カタカナab Cd.!? \n\n\t😀👩\u200d👧e\u0301\U0001f44d\U0001f3fd12|#\ud800𠀀"
TEXTS = st.text(alphabet=ALPHABET, max_size=700)
SPECS = [spec for name in sorted(CHUNKERS) for spec in (name, f"{name}:16/0", f"{name}:40/8")]


@st.composite
def documents(draw: st.DrawFn) -> ParsedDocument:
    """Text with sections and tables of every kind at arbitrary places."""
    text = draw(TEXTS)
    edges = sorted(draw(st.lists(st.integers(0, len(text)), max_size=10)))
    sections = [
        Section(
            start,
            end,
            tag=draw(st.sampled_from(["Title", "Text", "List", "Code", "Table", "Turn"])),
            level=draw(st.integers(0, 3)),
            heading_path=draw(st.sampled_from([(), ("Guide",), ("Guide", "安裝")])),
            page=draw(st.sampled_from([None, 1, 2])),
            at=draw(st.sampled_from([None, datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 3, 4, tzinfo=UTC)])),
        )
        for start, end in zip(edges[::2], edges[1::2], strict=False)
    ]
    tables = []
    for section in sections:
        if section.tag == "Table":
            rows, at = [], section.start
            for line in text[section.start : section.end].splitlines(keepends=True):
                rows.append((at, at + len(line)))
                at += len(line)
            if rows:
                tables.append(Table(section.start, section.end, tuple(rows), header=rows[0] if draw(st.booleans()) else None))
    return ParsedDocument(text, tuple(sections), tuple(tables))


@pytest.mark.parametrize("spec", SPECS)
@settings(deadline=None, max_examples=60)
@given(document=documents())
def test_chunks_are_verbatim_in_order_and_lose_only_what_is_declared(spec: str, document: ParsedDocument) -> None:
    document.check()
    chunker = create(spec)
    pieces = chunk(document, "doc", chunker)
    covered: set[int] = set()
    before = -1
    for ordinal, piece in enumerate(pieces):
        assert piece.text == document.text[piece.start : piece.end] != ""
        assert piece.ordinal == ordinal
        assert piece.start > before
        before = piece.start
        covered.update(range(piece.start, piece.end))
    lost = {document.text[at] for at in set(range(len(document.text))) - covered}
    assert all(character.isspace() for character in lost)
    assert not lost or chunker.drops


@pytest.mark.parametrize("spec", SPECS)
@settings(deadline=None, max_examples=60)
@given(document=documents())
def test_token_figures_are_those_of_the_encoding(spec: str, document: ParsedDocument) -> None:
    starts = tokens.starts(document.text)
    for piece in create(spec)(document, "doc"):
        assert piece.tokens == tokens.count(piece.text)
        assert 0 <= piece.token_start < piece.token_end <= len(starts) - 1
        # the token span holds the chunk, and no token less would
        assert starts[piece.token_start] <= piece.start
        assert starts[piece.token_start + 1] > piece.start or starts[piece.token_start] == piece.start
        assert starts[piece.token_end] >= piece.end


@pytest.mark.parametrize("spec", SPECS)
@settings(deadline=None, max_examples=30)
@given(document=documents())
def test_the_same_document_is_cut_the_same_way_twice_with_distinct_ids(spec: str, document: ParsedDocument) -> None:
    first = chunk(document, "doc", create(spec))
    assert first == chunk(document, "doc", create(spec))
    assert len({piece.chunk_id for piece in first}) == len(first)
    assert {piece.chunk_id for piece in first}.isdisjoint(piece.chunk_id for piece in chunk(document, "other", create(spec)))


@pytest.mark.parametrize("spec", SPECS)
@settings(deadline=None, max_examples=30)
@given(document=documents())
def test_places_come_from_the_sections_that_a_chunk_touches(spec: str, document: ParsedDocument) -> None:
    for piece in chunk(document, "doc", create(spec)):
        touched = [s for s in document.sections if s.end > piece.start and s.start < piece.end]
        times = [s.at for s in touched if s.at is not None]
        pages = [s.page for s in touched if s.page is not None]
        assert piece.valid_from == max(times, default=None)
        assert (piece.page, piece.page_end) == ((min(pages), max(pages)) if pages else (None, None))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("text", ["", " \n\t ", "x", "世", "\ud800", "👩\u200d👧"])
def test_the_smallest_texts_are_no_trouble(spec: str, text: str) -> None:
    pieces = chunk(ParsedDocument(text), "doc", create(spec))
    assert "".join(piece.text for piece in pieces).strip() == text.strip()


@pytest.mark.parametrize("spec", SPECS)
def test_accents_and_joined_emoji_are_not_parted(spec: str) -> None:
    text = "e\u0301" * 300 + "👩\u200d👧\u200d👦" * 100 + "👍\U0001f3fd" * 100
    for piece in create(spec)(ParsedDocument(text), "doc"):
        assert piece.text[0] not in "\u0301\u200d\U0001f3fd"
        assert piece.text[-1] != "\u200d"


@pytest.mark.parametrize("name", sorted(CHUNKERS))
@pytest.mark.parametrize("text", ["word " * 60_000, "世" * 60_000, "x" * 200_000, "a\n" * 60_000, "e" + "\u0301" * 20_000], ids=range(5))
def test_one_huge_line_is_cut_like_any_other(name: str, text: str) -> None:
    pieces = create(name)(ParsedDocument(text, (Section(0, len(text)),)), "doc")
    assert sum(len(piece.text) for piece in pieces) >= len(text) * 0.9
    assert max(piece.tokens for piece in pieces) <= 260


def test_two_ways_of_writing_a_chunker_are_the_same_chunker() -> None:
    assert fingerprint("windows", {}, "cl100k_base") == fingerprint("windows:256/32", {}, "cl100k_base")
    assert fingerprint("sections:400/0", {}, "cl100k_base") == fingerprint("sections", {"chunk_token_num": "400"}, "cl100k_base")
    different = [
        ("windows", {}, "o200k_base"),
        ("windows:128/32", {}, "cl100k_base"),
        ("sections", {}, "cl100k_base"),
        ("sections", {"delimiter": "。"}, "cl100k_base"),
    ]
    assert len({fingerprint(*case) for case in [("windows", {}, "cl100k_base"), *different]}) == 5


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        ("windows:abc", {}),
        ("windows:4/0", {}),
        ("windows:256/200", {}),
        ("windows:256/32/1", {}),
        ("windows", {"delimiter": "。"}),
        ("sections", {"chunk_token_num": "many"}),
        ("sections", {"size": "3"}),
    ],
)
def test_a_wrong_size_or_option_is_refused_with_a_cure(spec: str, options: dict[str, str]) -> None:
    with pytest.raises(BadRequest) as caught:
        create(spec, options=options)
    assert caught.value.hint


def test_an_unknown_chunker_or_encoding_is_refused() -> None:
    with pytest.raises(Unsupported, match="bricks"):
        create("bricks")
    with pytest.raises(Unsupported, match="p50k"):
        create("windows", encoding="p50k_base")
