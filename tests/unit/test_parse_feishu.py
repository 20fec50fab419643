"""Blocks, sheets and bases of Feishu as text: every kind of block, in and out of containers, and what is odd about the answers."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from pipeline.contracts import ParsedDocument, RawDocument, SourceItem
from pipeline.errors import Malformed
from pipeline.parse import parse
from tests.simulators import feishu_blocks as b

DOCX, SHEET, BITABLE = (f"application/vnd.feishu.{kind}+json" for kind in ("docx", "sheet", "bitable"))


def read(kept: Any, media_type: str = DOCX) -> ParsedDocument:
    data = kept if isinstance(kept, bytes) else orjson.dumps(kept)
    document = parse(RawDocument(SourceItem("feishu:x"), data, "", media_type))
    document.check()
    return document


def page(*blocks: b.Block, title: str = "", **kept: Any) -> ParsedDocument:
    return read({"document": {"document_id": "d", "title": title}, "blocks": b.flat("d", title, blocks), **kept})


def lines(*blocks: b.Block, **kept: Any) -> list[str]:
    return page(*blocks, **kept).text.split("\n")


# ------------------------------------------------------------ words

WORDS = [
    ("a", "a"),
    (b.run("a", bold=True), "**a**"),
    (b.run("a", bold=True, italic=True, strike=True), "~~***a***~~"),
    (b.run("a", code=True, bold=True), "**`a`**"),
    (b.run(" a ", bold=True), " **a** "),
    (b.run("a", bold=True, link="https://x.example/a b?q=1"), "[**a**](https://x.example/a b?q=1)"),
    (b.run("https://x.example/", link="https://x.example/"), "https://x.example/"),
    (b.person("ou_li"), "@李冰"),
    (b.person("ou_who"), "@someone"),
    (b.mention("t", "Plan", "https://x.example/d"), "[Plan](https://x.example/d)"),
    (b.formula(" E=mc^2 "), "$E=mc^2$"),
    (b.reminder(1_772_294_400), "2026-02-28 16:00"),
    (b.attached("boxcn"), "[file]"),
    ({"inline_block": {"block_id": "z"}}, ""),
    ({"undefined": {"content": "what was meant"}}, "what was meant"),
    ({}, ""),
]


@pytest.mark.parametrize(("element", "text"), WORDS, ids=range(len(WORDS)))
def test_inline_elements_keep_their_words_and_styles(element: Any, text: str) -> None:
    assert page(b.text("<", element, ">"), names={"ou_li": "李冰"}).text == f"<{text}>"


def test_styles_combine_and_text_outside_of_them_stays() -> None:
    assert page(b.text("Open ", b.run("slowly", bold=True), ", then wait.")).text == "Open **slowly**, then wait."


# ------------------------------------------------------------ blocks

BLOCKS = [
    (b.text("a"), "a"),
    (b.heading(1, "a"), "a"),
    (b.heading(9, "a"), "a"),
    (b.heading(2, "a", b.text("folded")), "a\n\nfolded"),
    (b.text("a", b.text("indented")), "a\n\nindented"),
    (b.bullet("a", b.bullet("b", b.text("c"))), "- a\n  - b\n    c"),
    (b.todo("a", done=True), "- [x] a"),
    (b.todo("a", b.todo("b")), "- [ ] a\n  - [ ] b"),
    (b.ordered("a", b.ordered("b")), "1. a\n  1. b"),
    (b.code("  if x:\n    y", 49), "```python\n  if x:\n    y\n```"),
    (b.code("a ``` b\n````"), "`````\na ``` b\n````\n`````"),
    (b.code("x", 999), "```\nx\n```"),
    (b.quote("a\nb"), "> a\n> b"),
    (b.quotes(b.text("a"), b.bullet("b"), b.quotes(b.text("c"))), "> a\n> - b\n> > c"),
    (b.equation("a+b"), "$$a+b$$"),
    (b.callout(b.text("a"), b.bullet("b")), "> [!NOTE]\n> a\n> - b"),
    (b.grid([b.text("a")], [b.text("b"), b.heading(1, "c")]), "a\n\nb\n\nc"),
    (b.attachment("t", "plan.pdf"), "[plan.pdf]"),
    (b.image("t", "The  weir"), "![The weir]"),
    (b.image("t"), ""),
    (b.divider(), ""),
    (b.iframe("https://x.example/v?a=1", 15), "https://x.example/v?a=1"),
    (b.preview("News", "https://x.example/n"), "https://x.example/n"),
    (b.add_on("graph TD"), "```mermaid\ngraph TD\n```"),
    (b.synced(b.text("a")), "a"),
    (b.Block(41, "jira_issue", {"id": "7", "key": "GATE-7"}), "GATE-7"),
    (b.Block(51, "sub_page_list", {"wiki_token": "w", "titles": ["a", "b"]}), "- a\n- b"),
    (b.Block(42, "wiki_catalog", {"wiki_token": "w"}), ""),
    (b.Block(35, "task", {"task_id": "t"}, [b.text("a")]), "a"),
    (b.Block(44, "agenda", {}, [b.Block(45, "agenda_item", {}, [b.worded(46, "agenda_item_title", ["a"]), b.text("c")])]), "a\n\nc"),
]


@pytest.mark.parametrize(("block", "text"), BLOCKS, ids=[f"{block.key}-{number}" for number, (block, _) in enumerate(BLOCKS)])
def test_a_block_is_told_in_markdown_between_its_neighbours(block: b.Block, text: str) -> None:
    document = page(b.text("before"), block, b.text("after"))
    assert document.text == "\n\n".join(filter(None, ["before", text, "after"]))
    assert document.warnings == ()


NO_INTERFACE = [
    (b.Block(20, "chat_card", {"chat_id": "oc"}), "chat card"),
    (b.Block(21, "diagram", {"diagram_type": 1}), "diagram"),
    (b.Block(28, "isv", {"component_id": "c"}), "third-party block"),
    (b.mindnote("bmncn"), "mind map"),
    (b.board("wb"), "whiteboard"),
    (b.Block(36, "okr", {"okr_id": "o"}), "OKR"),
    (b.Block(37, "okr_objective", {}), "OKR objective"),
    (b.Block(38, "okr_key_result", {}), "OKR key result"),
    (b.Block(39, "okr_progress", {}), "OKR progress"),
    (b.Block(40, "add_ons", {"component_type_id": "c", "record": "{}"}), "add-on"),
    (b.Block(40, "add_ons", {"record": "no json"}), "add-on"),
    (b.Block(52, "ai_template", {}), "AI template"),
    (b.sheet("shtcn", "p1"), "embedded sheet"),
    (b.bitable("bascn", "t1"), "embedded base"),
    (b.Block(53, "reference_base", {"token": "bascn_t2"}), "embedded base"),
    (b.mirror("other", "gone"), "synced block"),
    (b.Block(999, "undefined", {}), "unsupported block"),
    (b.unknown(), "hologram"),
    (b.Block(1234, "hologram", None), "hologram"),
]


@pytest.mark.parametrize(("block", "name"), NO_INTERFACE, ids=[f"{block.key}-{number}" for number, (block, _) in enumerate(NO_INTERFACE)])
def test_what_no_interface_gives_leaves_its_name_in_its_place_and_is_counted(block: b.Block, name: str) -> None:
    document = page(b.text("before"), block, b.text("after"), b.Block(block.type, block.key, block.payload))
    assert document.text == f"before\n\n[{name}]\n\nafter\n\n[{name}]"
    assert document.warnings == (f"2 × {name}: not readable through the interface",)


def test_a_block_of_an_unknown_kind_keeps_its_words_and_its_children() -> None:
    inner = b.unknown(b.text("below"), b.bullet("and a list"))
    odd = b.Block(1235, "orb", {"elements": b.elements(["its own words"])}, [inner])
    document = page(odd)
    assert document.text == "its own words\n[orb]\n\n[hologram]\n\nbelow\n\n- and a list"
    assert len(document.warnings) == 2


def test_a_block_without_any_payload_is_known_by_its_number() -> None:
    blocks = [{"block_id": "d", "block_type": 1, "page": {}, "children": ["x"]}, {"block_id": "x", "parent_id": "d", "block_type": 77}]
    assert read({"document": {"document_id": "d"}, "blocks": blocks}).text == "[block of type 77]"


def test_headings_make_the_path_of_what_stands_below_them() -> None:
    document = page(
        b.heading(1, "Gates", b.text("folded")), b.heading(2, "North"), b.text("slow"), b.heading(1, "Weir"), b.text("wide"), title="Works"
    )
    paths = {document.text[section.start : section.end]: section.heading_path for section in document.sections}
    assert document.title == "Works"
    assert paths["folded"] == ("Works", "Gates") and paths["slow"] == ("Works", "Gates", "North") and paths["wide"] == ("Works", "Weir")


def test_numbers_go_on_and_begin_anew_where_the_author_said_so() -> None:
    items = [b.ordered("a", sequence="3"), b.ordered("b"), b.bullet("-"), b.ordered("c"), b.ordered("d", sequence="²")]
    assert lines(*items) == ["3. a", "4. b", "- -", "1. c", "2. d"]


# ------------------------------------------------------------ synced blocks


def test_a_synced_block_of_another_document_is_shown_and_one_that_contains_itself_ends() -> None:
    source = [
        {"block_id": "s", "block_type": 49, "source_synced": {}, "children": ["t", "again"]},
        {"block_id": "t", "parent_id": "s", "block_type": 2, "text": {"elements": b.elements(["from elsewhere"])}},
        {"block_id": "again", "parent_id": "s", "block_type": 50, "reference_synced": {"source_document_id": "o", "source_block_id": "s"}},
    ]
    document = page(b.mirror("o", "s"), synced={"s": source})
    assert document.text == "from elsewhere\n\n[synced block]"


# ------------------------------------------------------------ tables


def test_a_table_of_single_lines_is_rows_with_its_header() -> None:
    plain = b.table([["Gate", "Rule"], ["North", "slow"]])
    plain.payload["property"]["header_row"] = True
    document = page(plain)
    (table,) = document.tables
    assert document.text == "Gate | Rule\nNorth | slow"
    assert table.header is not None and document.text[slice(*table.header)] == "Gate | Rule" and table.html == ""


def test_merged_cells_are_spread_and_kept_as_html() -> None:
    document = page(b.table([["a", "b", "c"], ["d", "", "e"], ["f", "", "g"]], spans={(0, 0): (1, 2), (1, 0): (2, 2)}))
    assert document.text == "a | a | c\nd | d | e\nd | d | g"
    assert '<th colspan="2">a</th>' in document.tables[0].html and '<td rowspan="2" colspan="2">d</td>' in document.tables[0].html


def test_lists_images_and_code_in_cells_keep_their_words() -> None:
    document = page(b.table([["a", [b.text("x"), b.bullet("y", b.bullet("z"))]], [b.image("t", "plan"), b.code("go()", 22)]]))
    assert document.text == "a | x - y - z\n![plan] | ```go go() ```"


@pytest.mark.parametrize("merges", [None, [], [{"row_span": 1, "col_span": 1}], [None, 3, {"row_span": "x"}], "none"])
def test_a_table_with_a_missing_short_or_odd_merge_info_is_read(merges: object) -> None:
    plain = b.table([["a", "b"], ["c", "d"]])
    plain.payload["property"]["merge_info"] = merges
    assert page(plain).text == "a | b\nc | d"


def test_spans_that_leave_the_table_end_with_it() -> None:
    plain = b.table([["a", "b"], ["c", "d"]])
    plain.payload["property"]["merge_info"] = [{"row_span": 10**9, "col_span": 10**9}, {}, {}, {}]
    assert set(page(plain).text.split()) == {"a", "|"} and len(page(plain).text) < 10


@pytest.mark.parametrize("width", [0, -3, None, "2", 10**12, "²", 2.5])
def test_a_table_that_says_an_odd_width_loses_no_cell(width: object) -> None:
    plain = b.table([["a", "b"], ["c", "d"]])
    plain.payload["property"]["column_size"] = width
    assert sorted(page(plain).text.replace("|", " ").split()) == ["a", "b", "c", "d"]


# ------------------------------------------------------------ odd answers


def test_children_as_a_single_text_are_a_list_of_one() -> None:
    blocks = b.flat("d", "", [b.quotes(b.text("a"))])
    for block in blocks:
        children = block.get("children")
        if children and len(children) == 1:
            block["children"] = children[0]
    assert read({"document": {"document_id": "d"}, "blocks": blocks}).text == "> a"


@pytest.mark.parametrize("payload", [None, {}, {"elements": None}, {"elements": [None, 3, "x"]}, {"elements": {"text_run": {"content": ""}}}, []])
def test_a_text_without_elements_is_an_empty_one(payload: object) -> None:
    assert page(b.text("before"), b.Block(2, "text", payload), b.text("after")).text == "before\n\nafter"


def test_blocks_that_no_parent_names_stand_at_the_end_and_none_stands_twice() -> None:
    blocks = b.flat("d", "", [b.text("a"), b.text("c")])
    blocks[0]["children"] = [blocks[1]["block_id"], blocks[1]["block_id"]]
    blocks[2]["parent_id"] = "gone"
    assert read({"document": {"document_id": "d"}, "blocks": blocks}).text == "a\n\nc"


def test_circles_of_blocks_and_very_deep_ones_end() -> None:
    circle = b.flat("d", "", [b.bullet("a", b.bullet("b"))])
    circle[2]["children"] = [circle[1]["block_id"], circle[2]["block_id"]]
    assert "- a" in read({"document": {"document_id": "d"}, "blocks": circle}).text
    twice = b.flat("d", "", [b.quotes(b.quotes(b.text("a")))])
    for block in twice:
        block["children"] = [*block.get("children", ()), *block.get("children", ())]
    assert read({"document": {"document_id": "d"}, "blocks": twice}).text == "> > a"
    for make in (b.quotes, lambda child: b.bullet("x", child), lambda child: b.text("x", child), lambda child: b.table([[child]])):
        deep = b.text("deepest")
        for _ in range(150):
            deep = make(deep)
        assert {"before", "after", "deepest"} <= set(page(b.text("before"), deep, b.text("after")).text.split())


def test_a_document_without_a_page_block_is_read_from_its_first_root() -> None:
    block = {"block_id": "x", "block_type": 2, "text": {"elements": b.elements(["alone"])}}
    assert "alone" in read({"document": {}, "blocks": [block]}).text
    assert read({"document": {"title": "Only a title"}, "blocks": []}).text == "Only a title"


@pytest.mark.parametrize("media_type", [DOCX, SHEET, BITABLE])
def test_what_is_no_json_is_refused(media_type: str) -> None:
    with pytest.raises(Malformed):
        read(b'{"blocks": [', media_type)


# ------------------------------------------------------------ sheets and bases


def test_sheets_are_tables_with_merged_cells_covered_and_empty_rows_left_out() -> None:
    values = [
        ["Levels", None, None, ""],
        [],
        ["Station", [{"text": "Stone", "type": "text"}, {"text": "bridge", "type": "text"}], True, None],
        [1.0, 2.5, {"type": "url", "text": "map", "link": "https://x.example"}, None],
    ]
    merges = [{"start_row_index": 0, "end_row_index": 0, "start_column_index": 0, "end_column_index": 2}, {"start_row_index": 99}, None]
    sheets = [{"title": "April", "values": values, "merges": merges}, {"title": "Empty", "values": [[None]]}, None]
    document = read({"title": "Book", "sheets": sheets, "warnings": ["one sheet is hidden"]}, SHEET)
    assert document.text.split("\n") == [
        "Book",
        "",
        "April",
        "",
        "Levels | Levels | Levels",
        "Station | Stonebridge | ✓",
        "1 | 2.5 | map (https://x.example)",
    ]
    assert document.warnings == ("one sheet is hidden",)


def test_a_base_shows_moments_in_its_own_zone_and_every_type_of_field() -> None:
    midnight = 1_772_294_400_000  # 1 March 2026 in China, 28 February in UTC
    cells: dict[str, tuple[int, Any, str]] = {
        "text": (1, [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        "number": (2, 7.0, "7"),
        "one": (3, "open", "open"),
        "many": (4, ["open", "late"], "open, late"),
        "date": (5, midnight, "2026-03-01"),
        "time": (1001, midnight + 3_600_000, "2026-03-01 01:00"),
        "box": (7, False, "✗"),
        "people": (11, [{"id": "ou", "name": "Li"}, {"id": "ou2", "en_name": "Wu"}], "Li, Wu"),
        "link": (15, {"text": "site", "link": "https://x.example", "type": "url"}, "site (https://x.example)"),
        "files": (17, [{"file_token": "f", "name": "plan.pdf"}], "plan.pdf"),
        "formula": (20, {"type": 1, "value": [{"type": "text", "text": "sum"}]}, "sum"),
        "place": (22, {"full_address": "Dujiangyan", "location": "1,2"}, "Dujiangyan"),
        "far": (5, 10**17, str(10**17)),
        "nothing": (1, None, ""),
    }
    fields = [{"field_name": name, "type": kind} for name, (kind, _, _) in cells.items()]
    record = {"fields": {name: value for name, (_, value, _) in cells.items()}}
    document = read({"title": "Base", "time_zone": "Asia/Shanghai", "tables": [{"name": "T", "fields": fields, "records": [record, None]}]}, BITABLE)
    head, row, *_ = document.text.split("\n")[4:]
    assert head.split(" | ") == list(cells)
    assert row.split(" | ") == [shown for _, _, shown in cells.values()]


def test_an_embedded_sheet_and_base_stand_where_the_document_shows_them() -> None:
    sheets = {"shtcn_p1": {"sheets": [{"title": "p", "values": [["a", "b"], ["1", "2"]]}]}}
    bases = {"bascn_t1": {"tables": [{"name": "n", "fields": [{"field_name": "x"}], "records": [{"fields": {"x": "y"}}]}]}}
    document = page(b.text("before"), b.sheet("shtcn", "p1"), b.quotes(b.bitable("bascn", "t1")), sheets=sheets, bitables=bases)
    assert document.text == "before\n\np\n\na | b\n1 | 2\n\n> x\n> y" and len(document.tables) == 1


@pytest.mark.parametrize("zone", ["Nowhere/Town", "", "../../etc/passwd", "\x00", 8])
def test_a_zone_that_nobody_knows_is_taken_for_chinas(zone: object) -> None:
    table = {"name": "T", "fields": [{"field_name": "d", "type": 5}], "records": [{"fields": {"d": 1_772_294_400_000}}]}
    assert "2026-03-01" in read({"time_zone": zone, "tables": [table]}, BITABLE).text
