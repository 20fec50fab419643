from __future__ import annotations

from pipeline.contracts import ParsedDocument
from pipeline.parse import parse
from tests.contract.parser_vectors import raw


def markdown(text: str) -> ParsedDocument:
    return parse(raw(text.encode(), "page.md"))


def outline(document: ParsedDocument) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(s.tag, document.text[s.start : s.end], s.heading_path) for s in document.sections]


def test_text_stays_word_for_word_with_its_layout() -> None:
    source = "# A\n\nsome  *text*  \nmore\n\n\n- one\n  two\n"
    assert markdown(source).text == source


def test_headings_of_every_kind_make_the_path() -> None:
    found = outline(markdown('# A #\n\nx\n\nB *b*\n---\n\ny\n\n### [C](http://c) `c` {#c}\n\nz\n\n<h1 align="center">D</h1>\n\nw\n'))
    assert [(text, path) for tag, text, path in found if tag == "Text"] == [
        ("x", ("A",)),
        ("y", ("A", "B b")),
        ("z", ("A", "B b", "C c")),
        ("w", ("D",)),
    ]


def test_a_hash_inside_code_is_no_heading() -> None:
    found = outline(markdown("# A\n\n```sh\n# not a heading\n\n| a | b |\n```\n\nafter\n\n~~~\n```\n~~~\n"))
    assert [tag for tag, _, _ in found] == ["Title", "Code", "Text", "Code"]
    assert found[2][2] == ("A",)


def test_an_open_fence_runs_to_the_end() -> None:
    assert [tag for tag, _, _ in outline(markdown("a\n\n```\n# b\n\nc"))] == ["Text", "Code"]


def test_blocks_are_told_apart() -> None:
    found = outline(markdown("para\ngoes on\n\n- a\n- b\n\n  c\n- d\n\n> q\n> r\n\n1. x\n2. y\n\n    code\n\n***\n\nend\n"))
    assert [(tag, text) for tag, text, _ in found] == [
        ("Text", "para\ngoes on"),
        ("List", "- a\n- b\n\n  c\n- d"),
        ("Quote", "> q\n> r"),
        ("List", "1. x\n2. y\n\n    code"),
        ("Text", "end"),
    ]


def test_a_table_has_rows_and_header_and_leaves_its_delimiter_out() -> None:
    document = markdown("before\n\n| a | b |\n|:--|--:|\n| 1 | 2 |\n| 3 | x\\|y |\n\nafter | not a table\n")
    (table,) = document.tables
    assert [document.text[a:b] for a, b in table.rows] == ["| a | b |", "| 1 | 2 |", "| 3 | x\\|y |"]
    assert table.header == table.rows[0]
    assert outline(document)[-1][:2] == ("Text", "after | not a table")


def test_front_matter_becomes_metadata_and_lines_still_count_from_the_file() -> None:
    document = markdown(
        "---\ntitle: 'It''s here'\ntags: [a, \"b c\"]\nauthors:\n  - Ann\n  - Bo\nyear: 2024\n"
        "draft: false\nsummary: >\n  one\n  two\nby:\n  name: Li\n---\n\n# H\n"
    )
    assert document.title == "It's here"
    assert document.metadata == {
        "title": "It's here",
        "tags": ["a", "b c"],
        "authors": ["Ann", "Bo"],
        "year": 2024,
        "draft": False,
        "summary": "one two",
        "by.name": "Li",
    }
    assert document.text == "# H\n" and document.sections[0].line_start == 16


def test_toml_front_matter_is_read_too() -> None:
    document = markdown('+++\ntitle = "T"\nweight = 3\n+++\nbody\n')
    assert (document.title, document.metadata["weight"], document.text) == ("T", 3, "body\n")


def test_a_rule_at_the_top_is_no_front_matter() -> None:
    assert "first" in markdown("---\nfirst\n\n---\nsecond\n").text


def test_a_licence_comment_at_the_top_is_left_out() -> None:
    document = markdown("<!--\nLicensed to somebody\n-->\n\n# Real\n\ntext\n")
    assert document.text.startswith("# Real") and document.sections[0].line_start == 5


def test_the_title_is_the_first_main_heading_or_the_file_name() -> None:
    assert markdown("## two\n\n# One **x**\n").title == "One x"
    assert markdown("just words").title == "page"


def test_lines_are_those_of_the_file() -> None:
    document = markdown("# A\r\n\r\nx\r\ny\r\n\r\nz")
    assert [(s.line_start, s.line_end) for s in document.sections] == [(1, 1), (3, 4), (6, 6)]


def test_fifty_megabytes_on_one_line_are_parsed() -> None:
    document = markdown("都江堰" * 5_600_000)
    assert len(document.text) == 16_800_000 and len(document.sections) == 1


def test_a_page_of_nothing_but_rules_still_has_a_section() -> None:
    document = markdown("***\n\n---\n")
    assert [document.text[section.start : section.end] for section in document.sections] == ["***\n\n---"]
