"""Sheets and bases as their parser wants them: values as people see them, merges, fields, records, and what was left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import cast
from urllib.parse import parse_qs, urlsplit

from pipeline.errors import Forbidden, NotFound, TooLarge, Unchanged
from pipeline.load.feishu.answers import NOTHING, Json, table, tables
from pipeline.load.feishu.client import FeishuClient

CELLS = 100_000
"""Cells of one request: an answer may have 10 MB."""
MOST_CELLS = 2_000_000
MOST_RECORDS = 200_000
ATTACHMENT = "17"
"""Type of the fields of a base that hold files."""

RENDERED = MappingProxyType({"valueRenderOption": "FormattedValue", "dateTimeRenderOption": "FormattedString"})
"""As people see them: otherwise formulas come as they are written, and dates as numbers of days."""

Row = dict[str, object]


class Attachment(tuple[str, str, str]):
    """(token, name, `extra` that its download takes)."""

    __slots__ = ()


def sheet(client: FeishuClient, token: str, *, only: str = "") -> Row:
    """All visible sheets of a spreadsheet, or the one that a document embeds."""
    answer = client.get("sheets", f"/sheets/v3/spreadsheets/{token}/sheets/query")
    kept: list[Row] = []
    warnings: list[str] = []
    left = MOST_CELLS
    for described in tables(answer.get("sheets")):
        name, number = str(described.get("title") or ""), str(described.get("sheet_id") or "")
        if only and number != only:
            continue
        if described.get("hidden") and not only:
            warnings.append(f"the sheet {name!r} is hidden and was left out")
        elif described.get("resource_type") not in (None, "sheet"):
            warnings.append(f"the sheet {name!r} is a {described['resource_type']} and was left out")
        elif left <= 0:
            warnings.append(f"the sheet {name!r} lies beyond {MOST_CELLS:,} cells and was left out")
        else:
            values = _values(client, token, number, described, left)
            left -= sum(map(len, values))
            kept.append({"sheet_id": number, "title": name, "values": values, "merges": list(tables(described.get("merges")))})
    return {"sheets": kept, **({"warnings": warnings} if warnings else {})}


def _values(client: FeishuClient, token: str, number: str, described: Json, left: int) -> list[list[object]]:
    held = table(described.get("grid_properties"))
    tall, wide = _count(held.get("row_count")), _count(held.get("column_count"))
    if not tall or not wide:
        return []
    tall = min(tall, max(1, left // wide))
    step = max(1, CELLS // wide)
    values: list[list[object]] = []
    top = 1
    while top <= tall:
        # A range that names its end: an open one gives a hundred columns at most.
        wanted = f"{number}!A{top}:{_column(wide)}{min(tall, top + step - 1)}"
        try:
            answer = client.get("sheets", f"/sheets/v2/spreadsheets/{token}/values/{wanted}", RENDERED)
        except TooLarge:
            if step == 1:
                raise
            step = max(1, step // 4)
            continue
        top += step
        rows = table(answer.get("valueRange")).get("values")
        values += [cast("list[object]", row) for row in cast("list[object]", rows or []) if isinstance(row, list)]
    return values


def _column(number: int) -> str:
    name = ""
    while number:
        number, rest = divmod(number - 1, 26)
        name = chr(65 + rest) + name
    return name


def base(
    client: FeishuClient, token: str, *, only: str = "", before: Mapping[str, int] | None = None
) -> tuple[Row, dict[str, int], list[Attachment]]:
    """(tables with fields and records, table → number of records, files in it).

    `before` is how many records each table had last time. With advanced permissions the API gives success and no rows to whom it shows none.
    Raises Unchanged where that happened to a table that had some.
    """
    app = _app(client, token)
    tables: list[Row] = []
    counts: dict[str, int] = {}
    files: list[Attachment] = []
    warnings: list[str] = []
    for rows in client.pages("bitable", f"/bitable/v1/apps/{token}/tables", {"page_size": 100}, rows="items"):
        for described in rows:
            number, name = str(described.get("table_id") or ""), str(described.get("name") or "")
            if only and number != only:
                continue
            made = _table(client, token, number, name)
            records = cast("list[Json]", made["records"])
            if not records and (before or {}).get(number):
                raise Unchanged(f"the table {name!r} shows no rows any more, which advanced permissions do, too; those of last time are kept")
            if not records and app.get("is_advanced"):
                warnings.append(f"the table {name!r} shows no rows; the base has advanced permissions, which may hide them from the app")
            if len(records) >= MOST_RECORDS:
                warnings.append(f"the table {name!r} has more than {MOST_RECORDS:,} rows; the rest was left out")
            tables.append(made)
            counts[number] = len(records)
            files += _attachments(number, made)
    kept: Row = {"tables": tables}
    if app.get("time_zone"):
        kept["time_zone"] = app["time_zone"]
    if warnings:
        kept["warnings"] = warnings
    return kept, counts, files


def _app(client: FeishuClient, token: str) -> Json:
    try:
        answer = client.get("bitable", f"/bitable/v1/apps/{token}")
    except (Forbidden, NotFound) as error:
        if isinstance(error, Forbidden) and error.code != "missing_scope":
            raise
        return NOTHING
    return table(answer.get("app"))


def _table(client: FeishuClient, token: str, number: str, name: str) -> Row:
    path = f"/bitable/v1/apps/{token}/tables/{number}"
    fields = [field for rows in client.pages("bitable", f"{path}/fields", {"page_size": 100}, rows="items") for field in rows]
    records: list[Row] = []
    for rows in client.pages("bitable", f"{path}/records/search", {"page_size": 500}, rows="items", body={}):
        records += [{"record_id": row.get("record_id"), "fields": row.get("fields")} for row in rows]
        if len(records) >= MOST_RECORDS:
            break
    named = [{key: field.get(key) for key in ("field_id", "field_name", "type")} for field in fields]
    return {"table_id": number, "name": name, "fields": named, "records": records}


def _attachments(number: str, made: Row) -> Iterator[Attachment]:
    import orjson

    for field in cast("list[Json]", made["fields"]):
        if str(field.get("type")) != ATTACHMENT:
            continue
        for record in cast("list[Json]", made["records"]):
            for file in tables(table(record.get("fields")).get(str(field.get("field_name")))):
                token = str(file.get("file_token") or "")
                where = {str(field.get("field_id")): {str(record.get("record_id")): [token]}}
                extra = orjson.dumps({"bitablePerm": {"tableId": number, "attachments": where}}).decode()
                # The address that comes with a file names what its download takes.
                extra = parse_qs(urlsplit(str(file.get("url") or "")).query).get("extra", [extra])[0]
                if token:
                    yield Attachment((token, str(file.get("name") or "file"), extra))


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0
