"""What every registered parser promises."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.errors import PipelineError
from pipeline.parse import PARSERS, RISKY, SUFFIXES, parse, sniff
from pipeline.parse.magic import VENDOR, XLS
from pipeline.parse.packed import dump, load
from tests.contract.parser_vectors import SENTENCE, raw, sample

KINDS = sorted(PARSERS)
TEXTUAL = sorted(set(KINDS) - RISKY - VENDOR)


@pytest.mark.parametrize("kind", KINDS)
def test_content_decides_the_parser(kind: str) -> None:
    document = sample(kind)
    assert sniff(document.data, document.item.path, document.media_type) == (kind, ())
    assert parse(document).media_type == kind


@pytest.mark.parametrize("kind", KINDS)
def test_sections_and_tables_are_slices_in_order_and_cover_all_words(kind: str) -> None:
    document = parse(sample(kind))
    document.check()
    assert document.sections
    inside = "\n".join(document.text[s.start : s.end] for s in document.sections)
    assert sorted(inside.split()) == sorted(document.text.split())
    for table in document.tables:
        assert table.start <= table.rows[0][0] and table.rows[-1][1] <= table.end
        assert all(a[1] < b[0] for a, b in zip(table.rows, table.rows[1:], strict=False))
        assert all("\n" not in document.text[a:b] for a, b in table.rows)
        assert any((s.start, s.end, s.tag) == (table.start, table.end, "Table") for s in document.sections)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {XLS}))
def test_what_the_document_says_is_found_word_for_word_under_its_heading(kind: str) -> None:
    document = parse(sample(kind))
    place = document.text.index(SENTENCE)
    section = next(s for s in document.sections if s.start <= place < s.end)
    if kind == "application/jsonl":
        assert section.heading_path == ("#1 Weir",)
    elif kind not in {"text/plain", "text/csv", "text/tab-separated-values"}:
        assert section.heading_path[0].startswith("Weir")


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {XLS, "text/plain", "application/json", "application/jsonl", "application/pdf"}))
def test_a_table_knows_its_header_row(kind: str) -> None:
    document = parse(sample(kind))
    (table,) = document.tables
    assert table.header is not None
    assert document.text[slice(*table.header)].strip("| ").startswith("Item | Litres")
    assert any("Fish mouth | 120" in document.text[a:b] for a, b in table.rows)


@pytest.mark.parametrize("kind", KINDS)
def test_packing_loses_nothing(kind: str) -> None:
    document = parse(sample(kind))
    assert load(dump(document)) == document


@pytest.mark.parametrize("kind", KINDS)
def test_parsing_twice_gives_the_same(kind: str) -> None:
    assert parse(sample(kind)) == parse(sample(kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_file_cut_off_anywhere_is_parsed_or_refused_but_never_a_crash(kind: str, share: float) -> None:
    whole = sample(kind)
    try:
        parse(raw(whole.data[: int(len(whole.data) * share)], whole.item.path.rsplit("/", 1)[-1], media_type=whole.media_type)).check()
    except PipelineError as error:
        assert error.detail and error.hint


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_bytes_are_parsed_or_refused_but_never_a_crash(kind: str, data: st.DataObject) -> None:
    whole = sample(kind)
    broken = bytearray(whole.data)
    for _ in range(data.draw(st.integers(1, 6))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    try:
        parse(raw(bytes(broken), whole.item.path.rsplit("/", 1)[-1], media_type=whole.media_type)).check()
    except PipelineError as error:
        assert error.detail and error.hint


@pytest.mark.parametrize("kind", TEXTUAL)
@settings(max_examples=60, deadline=None)
@given(text=st.text(alphabet=st.sampled_from('# |-*`>\n\r\t<p/>[]{}":,;.1a都江\ufeff\x00é😀=_~+!'), max_size=300))
def test_any_text_gives_sections_that_lie_in_the_text(kind: str, text: str) -> None:
    suffix = next(end for end, media_type in SUFFIXES.items() if media_type == kind)
    try:
        document = parse(raw(text.encode(), f"x{suffix}"))
    except PipelineError:
        return
    document.check()
    assert load(dump(document)) == document
    assert "\r" not in document.text and "\x00" not in document.text and not document.text.startswith("\ufeff")
    inside = "".join(document.text[s.start : s.end] for s in document.sections)
    rules = {"-", "*", "_", " ", "\t"} if kind == "text/markdown" else set()
    left = list(document.text)
    for section in document.sections:
        left[section.start : section.end] = [""] * (section.end - section.start)
    assert inside and all(not c or c.isspace() or c in rules for c in left)
