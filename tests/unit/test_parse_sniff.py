from __future__ import annotations

import pytest

from pipeline.contracts import ParsedDocument
from pipeline.errors import PipelineError, Unsupported
from pipeline.parse import parse
from pipeline.parse.magic import DOCX, XLSX
from tests.contract.parser_vectors import docx, pdf, raw, real, xlsx


def read(data: bytes | str, name: str) -> ParsedDocument:
    return parse(raw(data.encode() if isinstance(data, str) else data, name))


def refused(data: bytes | str, name: str) -> PipelineError:
    with pytest.raises(PipelineError) as caught:
        read(data, name)
    return caught.value


@pytest.mark.parametrize(
    ("data", "name", "kind"),
    [
        (pdf(), "a.docx", "application/pdf"),
        (docx(), "a.pdf", DOCX),
        (docx(), "a.txt", DOCX),
        (xlsx(), "a.csv", XLSX),
        (b"<!DOCTYPE html><html><body><table><tr><td>a<td>b</table>", "a.xls", "text/html"),
        (b"a\tb\n1\t2\n", "a.xls", "text/tab-separated-values"),
        (b"<!doctype html><p>x", "a.txt", "text/html"),
        (b"just words", "a.pdf", "text/plain"),
    ],
)
def test_content_wins_over_the_name_with_a_warning(data: bytes, name: str, kind: str) -> None:
    document = read(data, name)
    assert document.media_type == kind and "although the name says" in document.warnings[0]


def test_names_without_a_suffix_go_by_declaration_then_content() -> None:
    assert parse(raw(b"# x\n", "README", media_type="text/markdown; charset=utf-8")).media_type == "text/markdown"
    assert read("<html><body><p>x</p>", "page").media_type == "text/html"
    assert read("words", "page").warnings == ()


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"\x89PNG\r\n\x1a\n" + bytes(50), "a.png"),
        (b"\x7fELF\x02\x01\x01" + bytes(200), "program"),
        (bytes(range(256)) * 20, "a.txt"),
        (b"{\\rtf1 hello}", "a.rtf"),
        (b"Subject: x\n\ny", "a.eml"),
    ],
)
def test_what_no_parser_reads_is_unsupported_and_names_what_is(data: bytes, name: str) -> None:
    error = refused(data, name)
    assert isinstance(error, Unsupported) and "Markdown" in error.hint


def test_empty_and_blank_files_are_empty() -> None:
    assert refused(b"", "a.md").code == "empty"
    assert refused(b" \n\n\t", "a.txt").code == "empty"


def test_undecodable_text_is_an_unknown_charset() -> None:
    assert refused(bytes([0x80, 0x81, 0xFE, 0xFF, 0x9F, 0x8D] * 40), "a.txt").code == "unknown_charset"


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("docx_password.docx", "encrypted"),
        ("xlsx_password.xlsx", "encrypted"),
        ("pdf_password.pdf", "encrypted"),
        ("pdf_encrypted_aes256.pdf", "encrypted"),
        ("docx_truncated.docx", "truncated"),
        ("pdf_truncated_half.pdf", "truncated"),
        ("docx_zip_bomb_300mb.docx", "zip_bomb"),
        ("pdf_scan_3_pages.pdf", "no_text"),
        ("pdf_empty_page.pdf", "no_text"),
        ("pptx_table.pptx", "unsupported"),
        ("epub_poetry.epub", "unsupported"),
        ("msg_chinese.msg", "unsupported"),
        ("img_black.jpg", "unsupported"),
    ],
)
def test_real_files_that_cannot_be_read_say_why(name: str, code: str) -> None:
    document = real(name)
    with pytest.raises(PipelineError) as caught:
        parse(document)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pdf_owner_password_only.pdf", "本地参数引用全局参数"),
        ("pdf_chinese_embedded_font.pdf", "任务量，推荐使用"),
        ("pdf_corrupt_xref.pdf", "Beautiful is better than ugly"),
        ("pdf_two_column_paper.pdf", "models, such as TF-IDF or BM25, are the de facto method"),
        ("wrong_extension_pdf.docx", "Word Processor"),
        ("docx_chinese.docx", "节点类型 | 内存（GB） | CPU（核）"),
        ("docx_numbered_headings.docx", "1.2.1. Section"),
        ("xlsx_chinese.xlsx", "节点类型 | 资源 | 资源"),
        ("xls_formats.xls", "Currency"),
        ("csv_gbk_schools.csv", "昆士兰大学"),
        ("csv_shift_jis.csv", "佐藤太郎 | 30 | 東京"),
        ("csv_utf16_tab_schools.csv", "楚雄师范学院"),
        ("txt_big5.txt", "參與社群"),
        ("txt_gb18030.txt", "Issue 须知"),
        ("txt_utf32.txt", "Hamburgers are delicious"),
        ("html_utf16.html", "Chemical composition 成分"),
        ("html_noisy_meta_charset.html", "الاتحاد الجزائري"),
        ("html_wikipedia.html", "Microsoft"),
        ("json_nested_game_stats.json", "Attack / Range / with_Draconic_Ascension: 5.5"),
    ],
)
def test_real_files_show_their_words(name: str, words: str) -> None:
    assert words in parse(real(name)).text


def test_comments_of_a_docx_do_not_leak() -> None:
    document = parse(real("docx_comments.docx"))
    assert len(document.text) < 300
