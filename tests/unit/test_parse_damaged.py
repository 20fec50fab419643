"""Vendors' answers that are damaged, or written by somebody who means harm: read or refused, never a crash, never much more than came in."""

from __future__ import annotations

import copy
import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.contracts import RawDocument, SourceItem
from pipeline.errors import PipelineError
from pipeline.load.yuque.body import assets, kept
from pipeline.parse import parse
from tests.contract.parser_vectors import vendor
from tests.simulators import feishu_blocks as b

DOCX, SHEET, BITABLE, YUQUE = (f"application/vnd.{kind}+json" for kind in ("feishu.docx", "feishu.sheet", "feishu.bitable", "yuque.document"))
MOST = 20_000_000
"""Characters that a document may become beyond what it holds: spans are filled up to a bound."""


def read(found: Any, media_type: str) -> str:
    """The text, empty for what is refused with a reason and a cure."""
    # orjson writes less deeply than it reads.
    data = json.dumps(found, ensure_ascii=False).encode()
    try:
        document = parse(RawDocument(SourceItem("x"), data, "", media_type))
    except PipelineError as error:
        assert error.detail and error.hint
        return ""
    document.check()
    assert len(document.text) <= MOST + 8 * len(data)
    return document.text


def whole(media_type: str) -> Iterator[Any]:
    """Sound answers, to be damaged."""
    yield vendor(media_type)
    if media_type == DOCX:
        table = b.table([["a", "b"], ["c", [b.bullet("d", b.todo("e"))]]], spans={(0, 0): (2, 1)})
        blocks = [
            b.heading(1, "h", b.text("folded")),
            table,
            b.callout(b.ordered("x", sequence="3"), b.quote("q")),
            b.sheet("s", "p"),
            b.unknown(b.text("y")),
        ]
        sheets = {"s_p": {"sheets": [{"title": "p", "values": [["a"]], "merges": [{"end_column_index": 3, "end_row_index": 3}]}]}}
        synced = {"z": [{"block_id": "z", "source_synced": {}, "children": ["z"]}]}
        flat = b.flat("d", "T", [*blocks, b.mirror("o", "z")])
        yield {"document": {"document_id": "d"}, "blocks": flat, "sheets": sheets, "synced": synced, "names": {}}
    if media_type == SHEET:
        merge = {"start_row_index": 0, "end_row_index": 1, "start_column_index": 0, "end_column_index": 1}
        yield {"title": "T", "sheets": [{"title": "s", "values": [["a", "b"], [1, {"text": "x", "link": "y", "type": "url"}]], "merges": [merge]}]}
    if media_type == BITABLE:
        fields = [{"field_name": "d", "type": 5}, {"field_name": "t", "type": 1}]
        yield {"time_zone": "UTC", "tables": [{"name": "n", "fields": fields, "records": [{"fields": {"d": [1, 2], "t": [{"text": "a"}]}}]}]}
    if media_type == YUQUE:
        cells = {"0": {"0": {"v": "a"}, "3": {"v": {"class": "select", "value": ["b"]}}}}
        packed = zlib.compress(orjson.dumps([{"name": "s", "data": cells}])).decode("latin-1")
        yield {"type": "Sheet", "title": "T", "format": "lakesheet", "body": orjson.dumps({"sheet": packed}).decode()}
        yield {"type": "Sheet", "title": "T", "body_sheet": {"data": [{"name": "s", "table": [["a", "b"], ["c"]]}]}}
        records = [{"values": [{"name": "x", "value": {"class": "formula", "value": 1}}, {"value": [1, {"name": "y"}]}]}]
        yield {"type": "Table", "title": "T", "body_table": {"columns": [{"name": "c"}], "totalCount": 9, "records": records}}
        html = "<table><tr><td colspan='2'>a<td>b</table>"
        yield {"type": "Doc", "title": "T", "format": "lake", "body": "|a<br/>|\n|-|\n|b|", "body_html": html, "body_lake": "<p>x</p>"}


def places(found: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Ways to every value within."""
    inner = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    return [here, *(place for key, value in inner for place in places(value, (*here, key)))]


def put(found: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    at = found
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    return found


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=12),
    st.sampled_from(["²", "٣", "9" * 30, "-1", "d", "s_p", "z", "<br", "|", "```", "\x00", "\ud7ff", "![a](b#card=math&code=%"]),
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=12)


@pytest.mark.parametrize("media_type", [DOCX, SHEET, BITABLE, YUQUE])
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_an_answer_with_anything_in_any_place_is_read_or_refused(media_type: str, data: st.DataObject) -> None:
    found = copy.deepcopy(data.draw(st.sampled_from(list(whole(media_type)))))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.sampled_from(places(found)))
        found = put(found, place, data.draw(VALUES))
    read(found, media_type)
    if media_type == YUQUE and isinstance(found, dict):
        list(assets(kept(found)))


@pytest.mark.parametrize("media_type", [DOCX, SHEET, BITABLE, YUQUE])
@settings(max_examples=40, deadline=None)
@given(found=VALUES)
def test_any_json_is_read_or_refused(media_type: str, found: Any) -> None:
    read(found, media_type)


# ------------------------------------------------------------ written to do harm


def deep(levels: int = 500) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


def packed(data: Any) -> dict[str, Any]:
    sheet = zlib.compress(orjson.dumps([{"name": "s", "data": data}])).decode("latin-1")
    return {"type": "Sheet", "format": "lakesheet", "title": "T", "body": orjson.dumps({"sheet": sheet}).decode()}


def markdown(text: str) -> dict[str, Any]:
    return {"type": "Doc", "format": "markdown", "title": "T", "body": text}


def table_of(rows: list[Any]) -> dict[str, Any]:
    return {"type": "Sheet", "title": "T", "body_sheet": {"data": [{"name": "s", "table": rows}]}}


def merged(text: str, merges: int) -> dict[str, Any]:
    rows = [[text, *[""] * 99], *([[""] * 100] * 99)]
    everything = {"start_row_index": 0, "end_row_index": 10**9, "start_column_index": -5, "end_column_index": 10**9}
    return {"sheets": [{"title": "s", "values": rows, "merges": [everything] * merges}]}


def spanned() -> dict[str, Any]:
    names = [f"c{number}" for number in range(4000)]
    shape = {"column_size": 60, "merge_info": [{"row_span": 10**8, "col_span": 10**8}] * 4000}
    cells = [{"block_id": name, "parent_id": "t", "block_type": 2, "text": {"elements": b.elements(["long " * 2000])}} for name in names[:1]]
    table = {"block_id": "t", "parent_id": "d", "block_type": 31, "table": {"cells": names, "property": shape}}
    return {"document": {"document_id": "d"}, "blocks": [{"block_id": "d", "block_type": 1, "page": {}, "children": ["t"]}, table, *cells]}


def woven(number: int = 400) -> dict[str, Any]:
    """Every block is a child of every other."""
    names = [f"n{index}" for index in range(number)]
    kinds = ("bullet", "quote_container", "text", "callout", "table_cell", "grid")
    blocks = [{"block_id": name, "parent_id": "d", kinds[at % 6]: {}, "children": names} for at, name in enumerate(names)]
    return {"document": {"document_id": "d"}, "blocks": [{"block_id": "d", "page": {}, "children": names}, *blocks]}


HARM: Mapping[str, tuple[str, Any]] = {
    "a value nested five hundred deep": (YUQUE, table_of([["a", deep()]])),
    "a chosen value nested five hundred deep": (
        BITABLE,
        {"tables": [{"fields": [{"field_name": "f", "type": 5}], "records": [{"fields": {"f": deep()}}]}]},
    ),
    "a sheet's cell nested five hundred deep": (SHEET, {"sheets": [{"values": [[deep()]]}]}),
    "few cells very far away": (YUQUE, packed({"9999999": {"16000": {"v": "x"}}})),
    "a cell far to the right in each of many rows": (YUQUE, packed({str(row): {"16000": {"v": "x"}} for row in range(20_000)})),
    "one wide row over many short ones": (YUQUE, table_of([["x"] * 20_000, *([["y"]] * 20_000)])),
    "the same in a sheet of Feishu": (SHEET, {"sheets": [{"values": [["x"] * 20_000, *([["y"]] * 20_000)]}]}),
    "a long text in a cell that covers everything": (SHEET, merged("long " * 20_000, 1)),
    "a cell that covers everything ten thousand times": (SHEET, merged("x", 10_000)),
    "spans beyond the table in every cell": (DOCX, spanned()),
    "blocks that are all children of each other": (DOCX, woven()),
    "images that never end": (YUQUE, markdown("![" * 60_000)),
    "addresses that never end": (YUQUE, markdown("![a](b" * 20_000)),
    "anchors that never end": (YUQUE, markdown('<a name="' * 40_000)),
    "a fence of a hundred thousand ticks": (YUQUE, markdown("`" * 100_000 + "\n" + "x\n" * 50_000)),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", list(HARM))
def test_what_is_written_to_cost_much_costs_little(name: str) -> None:
    media_type, found = HARM[name]
    read(found, media_type)
    if media_type == YUQUE:
        list(assets(kept(found)))
