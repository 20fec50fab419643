"""A Yuque document as its API gives it: Markdown, lake and HTML, sheets and data tables, and a stub for what has no text."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast
from urllib.parse import unquote

import orjson

from pipeline.contracts import ParsedDocument, RawDocument
from pipeline.errors import Malformed, TooLarge
from pipeline.parse import html, markdown
from pipeline.parse.layout import Layout, clean, flat, squared

MEDIA_TYPE = "application/vnd.yuque.document+json"
MOST_SHEET_BYTES = 200_000_000
MOST_CELLS = 5_000_000
MOST_COLUMNS = 16_384
MOST_DEPTH = 20
"""Of lists and objects within one cell."""
# Quantifiers are bounded: what has an opening and no end must not be looked through again and again.
_ANCHOR = re.compile(r'<a name="[^"\n]{0,200}">\s{0,20}</a>')
_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
_FORMULA = re.compile(r"!\[[^\]\n]{0,500}\]\([^)\s#]{0,2000}#card=math&code=([^)&\s]{0,8000})[^)]{0,2000}\)")
_IMAGE_QUERY = re.compile(r"(!\[[^\]\n]{0,500}\]\([^)\s?#]{1,2000})[?#][^)\s]{0,8000}\)")
_FENCED = re.compile(r"(^(?P<mark>`{3,}+|~{3,}+)[^\n]*\n.*?^(?P=mark)[^\n]*$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)

_PLACE = re.compile(r"[0-9]{1,7}")

Row = Mapping[str, object]


def parse(raw: RawDocument, options: Mapping[str, str]) -> ParsedDocument:
    """By the document's own type and format. Raises Malformed when it is no answer of the API, or holds nothing."""
    try:
        found: object = orjson.loads(raw.data)
    except orjson.JSONDecodeError as error:
        raise Malformed("the stored answer of Yuque is not JSON") from error
    if not isinstance(found, dict):
        raise Malformed("the stored answer of Yuque is not a document")
    detail = cast("Row", found)
    kind, form = str(detail.get("type") or "Doc"), str(detail.get("format") or "markdown")
    title = flat(str(detail.get("title") or ""))
    if kind == "Table" or detail.get("body_table"):
        document = _data_table(detail, title)
    elif kind == "Sheet" or form == "lakesheet":
        document = _sheets(detail, title)
    elif kind in ("Board", "Thread", "Show") and not detail.get("body"):
        document = _stub(detail, title, kind)
    else:
        document = _prose(raw, detail, form, options)
    return replace(document, title=title or document.title, media_type=MEDIA_TYPE, parser="yuque")


def _prose(raw: RawDocument, detail: Row, form: str, options: Mapping[str, str]) -> ParsedDocument:
    written, page = str(detail.get("body") or ""), str(detail.get("body_html") or "")
    if form == "html" or (page and ("<br" in written or "<card" in written) and "|" in written) or not written.strip():
        source = page or (written if form == "html" else str(detail.get("body_lake") or ""))
        if source.strip():
            inner = replace(raw, data=f"<html><body>{source}</body></html>".encode(), media_type="text/html", charset="utf-8")
            return html.parse(inner, options)
    if not written.strip():
        return _stub(detail, flat(str(detail.get("title") or "")), "document without text")
    return markdown.parse(replace(raw, data=plain(written).encode(), media_type="text/markdown", charset="utf-8"), options)


def plain(written: str) -> str:
    """Yuque's Markdown without its anchors and image parameters, formulas as formulas, line breaks as such. Code is left alone."""
    pieces: list[str] = []
    at = 0
    for match in _FENCED.finditer(written):
        pieces += [_plain(written[at : match.start()]), match[0]]
        at = match.end()
    pieces.append(_plain(written[at:]))
    return "".join(pieces)


def _plain(text: str) -> str:
    text = _FORMULA.sub(lambda match: f"${unquote(match[1])}$", _ANCHOR.sub("", text))
    text = _IMAGE_QUERY.sub(r"\1)", text)
    return "\n".join(line if "|" in line else _BREAK.sub("\n", line) for line in text.split("\n"))


def _sheets(detail: Row, title: str) -> ParsedDocument:
    layout = Layout()
    warnings: list[str] = []
    sheets = _computed(detail) or _compressed(detail)
    for name, rows in sheets:
        layout.headings.clear()
        filled = squared(rows)
        if not filled:
            warnings.append(f"sheet {name!r} is empty")
            continue
        layout.heading(flat(clean(name)), 1)
        layout.table(filled, header_rows=1 if len(filled) > 1 else 0)
    if not layout.size:
        return _stub(detail, title, "empty sheet")
    return layout.document(title=title, media_type=MEDIA_TYPE, parser="yuque", warnings=warnings)


def _computed(detail: Row) -> list[tuple[str, list[list[str]]]]:
    """`body_sheet`: formulas computed, every value a text."""
    table = _table(detail.get("body_sheet"))
    found: list[tuple[str, list[list[str]]]] = []
    for sheet in _dicts(table.get("data")):
        rows = [[_value(cell) for cell in row] for row in _lists(sheet.get("table"))]
        found.append((str(sheet.get("name") or "Sheet"), rows))
    return found


def _compressed(detail: Row) -> list[tuple[str, list[list[str]]]]:
    """The older form: a zlib stream written as Latin-1 in `body`, sheets of sparse rows and columns."""
    packed = _table(detail.get("body")).get("sheet")
    if not isinstance(packed, str) or not packed:
        return []
    opener = zlib.decompressobj()
    try:
        data = opener.decompress(packed.encode("latin-1"), MOST_SHEET_BYTES)
    except (zlib.error, UnicodeEncodeError) as error:
        raise Malformed("the sheet's content cannot be unpacked") from error
    if opener.unconsumed_tail:
        raise TooLarge(f"the sheet unpacks to more than {MOST_SHEET_BYTES:,} bytes", hint="Split the sheet.", code="zip_bomb")
    try:
        sheets = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Malformed("the sheet's content is not JSON") from error
    return [(str(sheet.get("name") or "Sheet"), _sparse(sheet.get("data"))) for sheet in _dicts(sheets)]


def _sparse(data: object) -> list[list[str]]:
    """``{"0": {"2": {"v": …}}}``, or lists in its place, as rows of equal meaning by column."""
    rows: list[list[str]] = []
    left = MOST_CELLS
    for number, row in _numbered(data):
        left -= max(0, number + 1 - len(rows))
        if left < 0:
            break
        rows += [[] for _ in range(number + 1 - len(rows))]
        line = rows[number]
        for column, cell in _numbered(row):
            left -= max(0, column + 1 - len(line))
            if column > MOST_COLUMNS or left < 0:
                break
            line += [""] * (column + 1 - len(line))
            line[column] = _value(cast("Row", cell).get("v") if isinstance(cell, dict) else cell)
    return rows


def _numbered(value: object) -> list[tuple[int, object]]:
    if isinstance(value, dict):
        table = cast("Mapping[str, object]", value)
        return sorted(((int(key), item) for key, item in table.items() if _PLACE.fullmatch(key)), key=lambda pair: pair[0])
    return list(enumerate(cast("list[object]", value))) if isinstance(value, list) else []


def _data_table(detail: Row, title: str) -> ParsedDocument:
    table = _table(detail.get("body_table"))
    columns = [str(column.get("name") or column.get("title") or "") for column in _dicts(table.get("columns") or table.get("fields"))]
    rows: list[list[str]] = []
    for record in _dicts(table.get("records")):
        values = record.get("values")
        if isinstance(values, dict):
            values = list(cast("Mapping[str, object]", values).values())
        cells = _dicts(cast("object", values))
        rows.append([_value(cell.get("value")) for cell in cells])
        if not columns:
            columns = [str(cell.get("name") or "") for cell in cells]
    if not any(any(row) for row in rows):
        return _stub(detail, title, "empty data table")
    layout = Layout()
    if title:
        layout.heading(title, 1)
    named = any(columns)
    layout.table([columns, *rows] if named else rows, header_rows=1 if named else 0)
    total = table.get("totalCount")
    short = isinstance(total, int) and total > len(rows)
    warnings = [f"{len(rows)} of {total} rows could be read"] if short else []
    return layout.document(title=title, media_type=MEDIA_TYPE, parser="yuque", warnings=warnings)


def _stub(detail: Row, title: str, what: str) -> ParsedDocument:
    """Title and description stand for what has no text that could be read."""
    layout = Layout()
    layout.heading(title or "untitled", 1)
    layout.block(str(detail.get("description") or ""))
    return layout.document(title=title, media_type=MEDIA_TYPE, parser="yuque", warnings=[f"only the title could be read: {what}"])


def _value(value: object, depth: int = 0) -> str:
    """A cell as a reader sees it: texts, numbers, chosen options, names, dates, links and files."""
    if value is None or value == "" or depth > MOST_DEPTH:
        return ""
    if isinstance(value, bool):
        return "✓" if value else "✗"
    if isinstance(value, str | int | float):
        return flat(clean(str(value)))
    if isinstance(value, list):
        return ", ".join(filter(None, [_value(item, depth + 1) for item in cast("list[object]", value)]))
    return _object(cast("Row", value), depth + 1) if isinstance(value, dict) else ""


def _object(value: Row, depth: int) -> str:
    kind = str(value.get("class") or "")
    if kind == "checkbox":
        return _value(bool(value.get("value")))
    if kind == "image":
        return _value(value.get("name") or value.get("alt") or "image", depth)
    if kind == "link":
        text, address = _value(value.get("text"), depth), _value(value.get("url") or value.get("link"), depth)
        return f"{text} ({address})" if text and address and text != address else text or address
    if kind == "formula":
        return _value(value.get("value") if value.get("value") is not None else value.get("formula"), depth)
    for name in ("text", "name", "title", "value", "label", "src", "seconds"):
        if value.get(name) not in (None, ""):
            return _value(value[name], depth)
    return ""


def _table(value: object) -> Mapping[str, object]:
    """An object, or the object that a text holds."""
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            return {}
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else {}


def _dicts(value: object) -> Sequence[Row]:
    return [cast("Row", item) for item in cast("list[object]", value) if isinstance(item, dict)] if isinstance(value, list) else []


def _lists(value: object) -> Sequence[Sequence[object]]:
    return [cast("list[object]", item) for item in cast("list[object]", value) if isinstance(item, list)] if isinstance(value, list) else []
