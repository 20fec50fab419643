from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

import pytest

from pipeline.contracts import ParsedDocument
from pipeline.errors import BadRequest, Malformed, PipelineError, TooLarge
from pipeline.parse import archive as guard
from pipeline.parse import parse
from pipeline.parse.layout import Cell, markup, spread
from tests.contract.parser_vectors import blank_pdf, docx, pdf, raw, xlsx


def read(data: bytes | str, name: str, options: Mapping[str, str] = {}) -> ParsedDocument:
    return parse(raw(data.encode() if isinstance(data, str) else data, name), options)


def refused(data: bytes | str, name: str) -> PipelineError:
    with pytest.raises(PipelineError) as caught:
        read(data, name)
    return caught.value


def blocks(document: ParsedDocument) -> list[tuple[str, str]]:
    return [(s.tag, document.text[s.start : s.end]) for s in document.sections]


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_the_delimiter_is_found_and_a_byte_order_mark_stays_out_of_the_first_header(mark: str) -> None:
    document = read(b"\xef\xbb\xbf" + mark.join(["name", "n"]).encode() + b"\n" + mark.join(["Ann, B", "1"]).encode() + b"\n", "a.csv")
    assert document.text.splitlines()[0] == "name | n"


def test_cells_with_line_breaks_stay_one_row() -> None:
    document = read('a,b\n"x\ny",1\n', "a.csv")
    assert document.text == "a | b\nx y | 1"


def test_ragged_rows_are_kept_and_named() -> None:
    document = read("1,2,3\na,b,c,d\n", "a.csv")
    assert document.text == "1 | 2 | 3\na | b | c | d" and document.warnings == ("rows have 3 to 4 cells",)


def test_numbers_in_the_first_row_are_no_header() -> None:
    assert read("1,2\n3,4\n", "a.csv").tables[0].header is None
    assert read("name,2019,2020\nx,3,4\n", "a.csv").tables[0].header is not None


def test_every_leaf_says_whose_it_is() -> None:
    document = read('{"players": {"Ann": {"score": 12, "best": 1.10, "ok": true, "note": null}, "Bo": {"score": 7}}}', "a.json")
    assert document.text == (
        "players / Ann / score: 12\nplayers / Ann / best: 1.10\nplayers / Ann / ok: true\nplayers / Ann / note: null\n\nplayers / Bo / score: 7"
    )
    assert [s.heading_path for s in document.sections] == [("players", "Ann"), ("players", "Bo")]


def test_elements_of_lists_go_by_their_names() -> None:
    document = read('[{"name": "Ann", "tags": ["a", "b"]}, {"score": 2}]', "a.json")
    assert document.text == "#1 Ann / name: Ann\n#1 Ann / tags: a, b\n\n#2 / score: 2"


def test_long_texts_get_a_section_of_their_own() -> None:
    document = read('{"a": {"body": "one\\ntwo", "n": 1}}', "a.json")
    assert blocks(document) == [("Text", "a / body:\none\ntwo"), ("Text", "a / n: 1")]
    assert document.sections[0].heading_path == ("a", "body")


def test_long_numbers_keep_every_digit() -> None:
    assert read('{"id": 12345678901234567890123}', "a.json").text == "id: 12345678901234567890123"


def test_invalid_json_names_its_place() -> None:
    error = refused('{"a": 1,\n "b" 2}', "a.json")
    assert isinstance(error, Malformed) and "line 2, column 6" in error.detail


def test_deep_nesting_is_refused() -> None:
    assert refused("[" * 200_000, "a.json").code == "too_deep"


def test_lone_surrogates_and_zero_bytes_do_not_get_through() -> None:
    document = read('{"a": "x\\ud800y\\u0000z"}', "a.json")
    assert document.text == "a: x\ufffdyz"


def test_a_bad_line_is_a_warning_and_the_good_ones_survive() -> None:
    document = read('{"id": 1, "t": "x"}\n{"id": \n\n{"id": 3, "t": "y"}\n', "a.jsonl")
    assert document.text == "id: 1\nt: x\n\nid: 3\nt: y"
    assert document.warnings == ("line 2 is not valid JSON and was left out",)
    assert [(s.line_start, s.key) for s in document.sections] == [(1, "1"), (4, "3")]


def test_only_bad_lines_are_an_error() -> None:
    assert isinstance(refused("{\nx\n", "a.jsonl"), Malformed)


def test_json_lines_under_the_name_json_are_read_with_a_warning() -> None:
    document = read('{"a": 1}\n{"a": 2}\n', "a.json")
    assert document.text == "a: 1\n\na: 2" and "JSON Lines" in document.warnings[0]


def test_turns_keep_speaker_and_time_with_its_offset() -> None:
    document = read(
        '{"id": "e1", "ts": "2026-10-01T00:30:00+08:00", "speaker": "Lin", "text": "高鐵"}\n{"role": "user", "content": "ok"}\n', "a.jsonl"
    )
    first, second = document.sections
    assert (first.tag, first.key, first.speaker) == ("Turn", "e1", "Lin")
    assert first.at is not None and first.at.isoformat() == "2026-10-01T00:30:00+08:00"
    assert (second.tag, second.speaker, second.at) == ("Turn", "user", None)
    assert document.text == "Lin: 高鐵\n\nuser: ok"


def test_navigation_scripts_and_footers_are_left_out() -> None:
    page = "<title>T</title><body><nav>Home</nav><script>x()</script><p>Hello <a href=x>there</a></p><footer>© us</footer></body>"
    document = read(page, "a.html")
    assert (document.text, document.title) == ("Hello there", "T")


def test_the_only_main_element_is_the_content() -> None:
    page = f"<body><div>menu</div><main><h1>A</h1><p>{'word ' * 20}</p></main><div>ads</div></body>"
    document = read(page, "a.html")
    assert document.text.startswith("A\n\nword") and "ads" not in document.text and "menu" not in document.text


def test_lists_code_quotes_and_breaks_keep_their_shape() -> None:
    page = "<ul><li>a<ul><li>b</li></ul></li><li>c</li></ul><ol><li>x<li>y</ol><pre>if x:\n    y</pre><blockquote>q</blockquote><p>l1<br>l2"
    assert blocks(read(page, "a.html")) == [
        ("List", "- a\n  - b\n- c"),
        ("List", "1. x\n2. y"),
        ("Code", "if x:\n    y"),
        ("Quote", "q"),
        ("Text", "l1\nl2"),
    ]


def test_merged_cells_repeat_in_the_text_and_stay_merged_in_the_html() -> None:
    page = "<table><tr><th rowspan=2>R<th colspan=2>N<tr><th>a<th>b<tr><td>x<td>1<td>2</table>"
    document = read(page, "a.html")
    assert document.text == "R | N | N\nR | a | b\nx | 1 | 2"
    (table,) = document.tables
    assert table.header is not None and document.text[slice(*table.header)] == "R | N | N\nR | a | b"
    assert 'rowspan="2"' in table.html and 'colspan="2"' in table.html


def test_an_absurd_span_costs_nothing() -> None:
    assert len(spread([[Cell("x", 1, 10**9)], [Cell("y", 10**9)]])[1]) == 1
    assert markup([[Cell("<b>")]]) == "<table><tr><td>&lt;b&gt;</td></tr></table>"


def test_the_page_s_own_charset_is_used() -> None:
    assert read('<meta charset="gb2312"><p>分水</p>'.encode("gb18030"), "a.html").text == "分水"


def test_a_page_without_text_says_so() -> None:
    assert refused("<html><body><script>app()</script></body></html>", "a.html").code == "no_text"


def docx_of(body: str, **parts: str) -> bytes:
    """A DOCX from the XML of its body."""
    out = io.BytesIO()
    space = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as container:
        container.writestr("[Content_Types].xml", "<Types/>")
        container.writestr("word/document.xml", f"<w:document {space}><w:body>{body}</w:body></w:document>")
        for name, xml in parts.items():
            container.writestr(f"word/{name}.xml", xml.replace("<w:root", f"<w:root {space}"))
    return out.getvalue()


def test_the_core_title_names_a_docx() -> None:
    assert read(docx(title="The weir"), "a.docx").title == "The weir"
    assert read(docx(), "a.docx").title == "Weir"


def test_deleted_text_is_gone_and_inserted_text_stays() -> None:
    body = "<w:p><w:r><w:t>a</w:t></w:r><w:del><w:r><w:delText>b</w:delText></w:r></w:del><w:ins><w:r><w:t>c</w:t></w:r></w:ins></w:p>"
    assert read(docx_of(body), "a.docx").text == "ac"


def test_vertical_merges_repeat_their_text() -> None:
    def cell(text: str, merge: str = "") -> str:
        return f"<w:tc><w:tcPr>{merge}</w:tcPr><w:p><w:r><w:t>{text}</w:t></w:r></w:p></w:tc>"

    rows = [
        cell("R", '<w:vMerge w:val="restart"/>') + cell("a"),
        cell("", "<w:vMerge/>") + cell("b"),
        cell("wide", '<w:gridSpan w:val="2"/>'),
    ]
    document = read(docx_of("<w:tbl>" + "".join(f"<w:tr>{row}</w:tr>" for row in rows) + "</w:tbl>"), "a.docx")
    assert document.text == "R | a\nR | b\nwide"
    assert 'rowspan="2"' in document.tables[0].html and 'colspan="2"' in document.tables[0].html


def test_lists_are_numbered_as_word_draws_them() -> None:
    numbering = (
        '<w:root><w:abstractNum w:abstractNumId="1"><w:lvl w:ilvl="0"><w:start w:val="1"/><w:numFmt w:val="decimal"/><w:lvlText w:val="%1."/></w:lvl>'
        '</w:abstractNum><w:num w:numId="5"><w:abstractNumId w:val="1"/></w:num></w:root>'
    )
    item = '<w:p><w:pPr><w:numPr><w:ilvl w:val="0"/><w:numId w:val="5"/></w:numPr></w:pPr><w:r><w:t>{}</w:t></w:r></w:p>'
    assert read(docx_of(item.format("x") + item.format("y"), numbering=numbering), "a.docx").text == "1. x\n2. y"


def test_a_docx_without_words_suggests_ocr() -> None:
    error = refused(docx_of("<w:p/>"), "a.docx")
    assert error.code == "no_text" and "OCR" in error.hint


def test_a_cut_off_docx_says_so() -> None:
    error = refused(docx()[:2000], "a.docx")
    assert isinstance(error, Malformed) and error.code == "truncated"


@pytest.mark.parametrize("name", ["a.docx", "a.xlsx"])
def test_a_zip_bomb_is_refused_by_its_directory(name: str) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as container:
        container.writestr("word/document.xml" if name == "a.docx" else "xl/workbook.xml", b"x" * (30 << 20))
    error = refused(out.getvalue(), name)
    assert isinstance(error, TooLarge) and error.code == "zip_bomb"


def test_a_directory_that_lies_about_sizes_is_found_out_while_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as container:
        container.writestr("xl/workbook.xml", b"x" * 2_000_000)
    data = out.getvalue().replace((2_000_000).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    monkeypatch.setattr(guard, "MOST_BYTES", 1_000_000)
    with guard.opened(data, "workbook"):
        pass
    with pytest.raises(TooLarge):
        guard.count(data, "workbook")


def test_too_many_parts_are_refused() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as container:
        for number in range(guard.MOST_ENTRIES + 1):
            container.writestr(f"word/{number}", b"")
    assert refused(out.getvalue(), "a.docx").code == "zip_bomb"


def test_sheets_are_headings_and_rows_keep_their_numbers() -> None:
    document = read(xlsx(), "a.xlsx")
    caption, table = document.sections[1:]
    assert (caption.tag, caption.line_start, caption.heading_path) == ("Caption", 1, ("Weir",))
    assert (table.line_start, table.line_end) == (2, 4)


def test_hidden_sheets_and_dates() -> None:
    from datetime import date, datetime

    from openpyxl import Workbook

    book = Workbook()
    sheet = book.active
    assert sheet is not None
    sheet.append(["day", "at", "share"])
    sheet.append([date(2026, 11, 30), datetime(2026, 11, 30, 8, 5), 0.25])  # noqa: DTZ001
    secret = book.create_sheet("secret")
    secret.append(["do not read"])
    secret.sheet_state = "hidden"
    out = io.BytesIO()
    book.save(out)
    document = read(out.getvalue(), "a.xlsx")
    assert "2026-11-30 | 2026-11-30 08:05:00 | 0.25" in document.text
    assert "do not read" not in document.text and "hidden" in document.warnings[0]


def test_paragraphs_have_page_and_box_and_stand_under_their_heading() -> None:
    document = read(pdf(2), "a.pdf")
    section = next(s for s in document.sections if "Li Bing" in document.text[s.start : s.end] and s.page == 2)
    assert section.heading_path == ("Weir 2",) and section.box is not None
    x0, top, x1, bottom = section.box
    assert 38 < x0 < 42 and 75 < top < 90 < bottom < 110 and 300 < x1 + 60
    assert "weir. It still works" in document.text and document.pages == 2


def test_a_page_range_is_obeyed() -> None:
    document = read(pdf(8), "a.pdf", {"pages": "1-2, 7"})
    assert {s.page for s in document.sections} == {1, 2, 7} and document.pages == 8


@pytest.mark.parametrize("spec", ["0", "x", "3-1", "1,,2", "-2"])
def test_a_bad_page_range_is_a_bad_request(spec: str) -> None:
    with pytest.raises(BadRequest):
        read(pdf(), "a.pdf", {"pages": spec})


def test_pages_that_do_not_exist_are_named() -> None:
    with pytest.raises(Malformed) as caught:
        read(pdf(3), "a.pdf", {"pages": "9-"})
    assert caught.value.code == "no_pages"


def test_running_headers_are_dropped_from_three_pages_on() -> None:
    from reportlab.pdfgen.canvas import Canvas

    out = io.BytesIO()
    canvas = Canvas(out, pagesize=(300, 400))
    for number in range(1, 5):
        canvas.drawString(40, 385, "Confidential handbook")
        canvas.drawString(40, 200, f"Body of page {number} speaks.")
        canvas.drawString(140, 10, f"- {number} -")
        canvas.showPage()
    canvas.save()
    assert read(out.getvalue(), "a.pdf").text == "\n\n".join(f"Body of page {number} speaks." for number in range(1, 5))


def test_a_password_is_needed_or_only_the_owner_s() -> None:
    assert refused(pdf(password="secret"), "a.pdf").code == "encrypted"
    assert "Li Bing" in read(pdf(owner="boss"), "a.pdf").text


def test_scans_and_cut_off_files_say_so() -> None:
    assert refused(blank_pdf(), "a.pdf").code == "no_text"
    assert refused(pdf(3)[:1500], "a.pdf").code == "truncated"
