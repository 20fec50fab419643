"""Sheets and bases: rows of texts as people see them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import orjson

from pipeline.contracts import ParsedDocument, RawDocument
from pipeline.errors import Malformed
from pipeline.parse.feishu.inline import Json, rows, table
from pipeline.parse.layout import Layout, clean, flat, squared

SHEET = "application/vnd.feishu.sheet+json"
BITABLE = "application/vnd.feishu.bitable+json"
_DATES = frozenset({"5", "1001", "1002"})
"""Field types that hold moments: date, created, modified."""
MOST_COVERED = 5_000_000
"""Characters that merged cells of one sheet may write into the places they cover."""
MOST_DEPTH = 20
"""Of lists and objects within one cell."""


def parse_sheet(raw: RawDocument, options: Mapping[str, str]) -> ParsedDocument:
    """A spreadsheet: one table a sheet. Raises Malformed when the bytes are not what the connector keeps."""
    return _document(_opened(raw), SHEET, of_sheets)


def parse_bitable(raw: RawDocument, options: Mapping[str, str]) -> ParsedDocument:
    """A base: one table a table. Raises Malformed when the bytes are not what the connector keeps."""
    return _document(_opened(raw), BITABLE, of_bitable)


def _document(kept: Json, media_type: str, read: Callable[[Json], Iterator[tuple[str, list[list[str]]]]]) -> ParsedDocument:
    layout = Layout()
    title = flat(clean(str(kept.get("title") or "")))
    if title:
        layout.heading(title, 1)
    for name, grid in read(kept):
        if name:
            layout.heading(flat(clean(name)), 2)
        layout.table(grid, header_rows=1 if len(grid) > 1 else 0)
    warnings = [str(warning) for warning in rows(kept.get("warnings"))]
    return layout.document(title=title, media_type=media_type, parser="feishu", warnings=warnings)


def of_sheets(kept: Json) -> Iterator[tuple[str, list[list[str]]]]:
    """(name, rows) of each sheet with content; a merged cell's text stands in each place it covers."""
    for sheet in map(table, rows(kept.get("sheets"))):
        grid = [[shown(cell) for cell in rows(row)] for row in rows(sheet.get("values"))]
        left = MOST_COVERED
        for merge in map(table, rows(sheet.get("merges"))):
            left -= _cover(grid, merge, left)
        full = squared(grid)
        if full:
            yield str(sheet.get("title") or ""), full


def _cover(grid: list[list[str]], merge: Json, most: int) -> int:
    """Characters written; a cell whose text would take more than `most` of them stands once."""
    top, left = _place(merge, "start_row_index"), _place(merge, "start_column_index")
    if top >= len(grid) or left >= len(grid[top]):
        return 0
    text, right = grid[top][left], _place(merge, "end_column_index") + 1
    lines = grid[top : _place(merge, "end_row_index") + 1]
    total = sum(max(0, min(right, len(line)) - left) for line in lines) * (len(text) + 1)
    if total > most:
        return 0
    for line in lines:
        for column in range(left, min(right, len(line))):
            line[column] = text
    return total


def _place(merge: Json, name: str) -> int:
    value = merge.get(name)
    return max(0, int(value)) if isinstance(value, int) else 0


def of_bitable(kept: Json) -> Iterator[tuple[str, list[list[str]]]]:
    """(name, rows) of each table, the names of its fields first; moments in the base's own zone."""
    zone = _zone(str(kept.get("time_zone") or "Asia/Shanghai"))
    for base in map(table, rows(kept.get("tables"))):
        fields = [table(field) for field in rows(base.get("fields"))]
        names = [str(field.get("field_name") or "") for field in fields]
        dates = {str(field.get("field_name")) for field in fields if str(field.get("type")) in _DATES}
        grid = [names] if names else []
        for record in map(table, rows(base.get("records"))):
            values = table(record.get("fields"))
            grid.append([_moment(values.get(name), zone) if name in dates else shown(values.get(name)) for name in names])
        if len(grid) > 1:
            yield str(base.get("name") or ""), grid


def shown(value: object, depth: int = 0) -> str:
    """A cell: texts, numbers, runs of text, people, links, options, files, places, formulas."""
    if value is None or value == "" or depth > MOST_DEPTH:
        return ""
    if isinstance(value, bool):
        return "✓" if value else "✗"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, str | int | float):
        return flat(clean(str(value)))
    if isinstance(value, list):
        parts = [shown(item, depth + 1) for item in cast("list[object]", value)]
        runs = all(isinstance(item, dict) and "text" in item for item in cast("list[object]", value))
        return ("" if runs else ", ").join(filter(None, parts))
    found = table(value)
    for name in ("value", "text", "name", "en_name", "full_address", "fileToken", "link", "url", "id"):
        if found.get(name) not in (None, ""):
            text = shown(found[name], depth + 1)
            address = str(found.get("link") or found.get("url") or "")
            return f"{text} ({address})" if name == "text" and address and address != text and found.get("type") == "url" else text
    return ""


def _moment(value: object, zone: tzinfo) -> str:
    if isinstance(value, list):
        return ", ".join(_moment(item, zone) if isinstance(item, int | float) else shown(item) for item in cast("list[object]", value))
    if not isinstance(value, int | float):
        return shown(value)
    try:
        moment = datetime.fromtimestamp(value / 1000, UTC).astimezone(zone)
    except (ValueError, OverflowError, OSError):
        return shown(value)
    midnight = moment.hour == moment.minute == moment.second == 0
    return moment.strftime("%Y-%m-%d" if midnight else "%Y-%m-%d %H:%M")


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return timezone(timedelta(hours=8))


def _opened(raw: RawDocument) -> Json:
    try:
        return table(orjson.loads(raw.data))
    except orjson.JSONDecodeError as error:
        raise Malformed("the stored answer of Feishu is not JSON") from error
