"""Spreadsheets and bitables of the simulated Feishu."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import orjson

from tests.simulators.feishu_gate import fine, refused
from tests.simulators.feishu_model import Medium, Page, Table, Thing
from tests.simulators.served import Answer, Call

if TYPE_CHECKING:
    from tests.simulators.feishu import Feishu

SHEETS, BASES = "sheets:spreadsheet:readonly", "bitable:app:readonly"
OPEN_COLUMNS = 100
"""Columns of an answer whose range names none at its end."""
ANSWER_BYTES = 10_000_000


class Tables:
    """Handlers of sheets and bitables."""

    def __init__(self, feishu: Feishu) -> None:
        self.feishu, self.library = feishu, feishu.library

    def routes(self) -> list[tuple[Any, ...]]:
        base = "/bitable/v1/apps/:app"
        return [
            ("sheets.pages", "GET", "/sheets/v3/spreadsheets/:token", self.spreadsheet, SHEETS),
            ("sheets.pages", "GET", "/sheets/v3/spreadsheets/:token/sheets/query", self.pages, SHEETS),
            ("sheets.values", "GET", "/sheets/v2/spreadsheets/:token/values/:range", self.values, SHEETS),
            ("sheets.values", "GET", "/sheets/v2/spreadsheets/:token/values_batch_get", self.batch, SHEETS),
            ("bitable.tables", "GET", base, self.app, BASES),
            ("bitable.tables", "GET", f"{base}/tables", self.tables, BASES),
            ("bitable.fields", "GET", f"{base}/tables/:table/fields", self.fields, BASES),
            ("bitable.records", "POST", f"{base}/tables/:table/records/search", self.records, BASES),
        ]

    def spreadsheet(self, _call: Call, found: re.Match[str]) -> Answer:
        thing = self._sheet(found["token"])
        if isinstance(thing, Answer):
            return thing
        return fine(
            {
                "spreadsheet": {
                    "title": thing.title,
                    "owner_id": thing.owner,
                    "token": thing.token,
                    "url": f"https://waterworks.feishu.cn/sheets/{thing.token}",
                }
            }
        )

    def pages(self, _call: Call, found: re.Match[str]) -> Answer:
        thing = self._sheet(found["token"])
        return thing if isinstance(thing, Answer) else fine({"sheets": [self._page(page, index) for index, page in enumerate(thing.pages)]})

    @staticmethod
    def _page(page: Page, index: int) -> dict[str, Any]:
        width = max(map(len, page.rows), default=0)
        row: dict[str, Any] = {"sheet_id": page.id, "title": page.title, "index": index, "hidden": page.hidden, "resource_type": page.resource}
        if page.resource == "sheet":
            row["grid_properties"] = {
                "row_count": max(200, len(page.rows)),
                "column_count": max(20, width),
                "frozen_row_count": 0,
                "frozen_column_count": 0,
            }
        names = ("start_row_index", "end_row_index", "start_column_index", "end_column_index")
        return row | ({"merges": [dict(zip(names, merge, strict=True)) for merge in page.merges]} if page.merges else {})

    def values(self, call: Call, found: re.Match[str]) -> Answer:
        thing = self._sheet(found["token"], old=True)
        if isinstance(thing, Answer):
            return thing
        one = self._range(thing, found["range"], call)
        if isinstance(one, Answer):
            return one
        return _bounded({"revision": thing.revision, "spreadsheetToken": thing.token, "valueRange": one})

    def batch(self, call: Call, found: re.Match[str]) -> Answer:
        thing = self._sheet(found["token"], old=True)
        if isinstance(thing, Answer):
            return thing
        ranges = [self._range(thing, wanted, call) for wanted in call.query.get("ranges", "").split(",")]
        wrong = next((one for one in ranges if isinstance(one, Answer)), None)
        cells = sum(len(row) for one in ranges if not isinstance(one, Answer) for row in one["values"])
        return wrong or _bounded({"revision": thing.revision, "spreadsheetToken": thing.token, "totalCells": cells, "valueRanges": ranges})

    def _range(self, thing: Thing, wanted: str, call: Call) -> dict[str, Any] | Answer:
        name, _, corner = wanted.partition("!")
        page = next((page for page in thing.pages if page.id == name and page.resource == "sheet"), None)
        if page is None:
            return refused(90215, "not found sheetId", 200)
        ends = re.fullmatch(r"([A-Z]+)(\d*)(?::([A-Z]+)(\d*))?", corner)
        if corner and ends is None:
            return refused(90202, "validate RangeInfo fail", 200)
        left, top = (_column(ends[1]), int(ends[2] or 1) - 1) if ends else (0, 0)
        width, height = max(map(len, page.rows), default=0), len(page.rows)
        right = _column(ends[3]) + 1 if ends and ends[3] else left + 1 if ends else width
        below = int(ends[4]) if ends and ends[4] else height if not ends or ends[3] else top + 1
        if not ends or not ends[4]:
            right = min(right, left + OPEN_COLUMNS)
        formatted = call.query.get("valueRenderOption") in ("FormattedValue", "ToString")
        rows = [
            [self._cell(page, r, c, formatted) for c in range(left, min(right, max(width, left + 1)))]
            for r in range(top, min(below, max(height, top + 1)))
        ]
        return {
            "majorDimension": "ROWS",
            "range": f"{name}!{corner or f'A1:{_letters(max(width - 1, 0))}{height}'}",
            "revision": thing.revision,
            "values": rows,
        }

    @staticmethod
    def _cell(page: Page, row: int, column: int, formatted: bool) -> Any:
        if row >= len(page.rows) or column >= len(page.rows[row]):
            return None
        shown = page.rows[row][column]
        return shown if formatted else page.raw.get((row, column), shown)

    def _sheet(self, token: str, *, old: bool = False) -> Thing | Answer:
        """The spreadsheet; the older version of the API words its refusals with other numbers."""
        thing = self.library.things.get(token)
        if thing is None or thing.type != "sheet":
            return refused(91402, "NOTEXIST", 404) if old else refused(1310214, "SpreadSheet Not Found", 404)
        if thing.gone:
            return refused(91402, "NOTEXIST", 404) if old else refused(1310249, "Spreadsheet Deleted", 404)
        if thing.barred:
            return refused(91403, "Forbidden", 403) if old else refused(1310213, "Permission Fail", 403)
        return thing

    def app(self, _call: Call, found: re.Match[str]) -> Answer:
        thing = self._base(found["app"])
        if isinstance(thing, Answer):
            return thing
        locked = any(table.locked for table in thing.tables)
        zone = self.library.zone
        return fine({"app": {"app_token": thing.token, "name": thing.title, "revision": thing.revision, "is_advanced": locked, "time_zone": zone}})

    def tables(self, call: Call, found: re.Match[str]) -> Answer:
        thing = self._base(found["app"])
        if isinstance(thing, Answer):
            return thing
        return self._paged(call, [{"table_id": table.id, "revision": thing.revision, "name": table.name} for table in thing.tables], 100)

    def fields(self, call: Call, found: re.Match[str]) -> Answer:
        table = self._table(found)
        if isinstance(table, Answer):
            return table
        rows = [
            {"field_id": f"fld{number:05d}", "field_name": name, "type": kind, "is_primary": number == 0, "property": None}
            for number, (name, kind) in enumerate(table.fields)
        ]
        return self._paged(call, rows, 100)

    def records(self, call: Call, found: re.Match[str]) -> Answer:
        table = self._table(found)
        if isinstance(table, Answer):
            return table
        wanted = (orjson.loads(call.body or b"{}") or {}).get("field_names")
        fields = [(name, kind) for name, kind in table.fields if not wanted or name in wanted]
        rows = [self._record(table, fields, row, number) for number, row in enumerate(table.rows)]
        return self._paged(call, [] if table.locked else rows, 500)

    def _record(self, table: Table, fields: Sequence[tuple[str, int]], row: dict[str, Any], number: int) -> dict[str, Any]:
        values = {name: self._value(table, kind, row[name]) for name, kind in fields if row.get(name) not in (None, "", [])}
        return {"record_id": f"rec{number:07d}", "fields": values}

    def _value(self, table: Table, kind: int, value: Any) -> Any:
        """Texts come as runs, files as descriptions whose address carries what a protected table demands."""
        if kind == 1 and isinstance(value, str):
            return [{"text": value, "type": "text"}]
        if kind == 17:
            return [self._file(table, medium) for medium in value]
        return value

    def _file(self, table: Table, medium: Medium) -> dict[str, Any]:
        where = f"{self.feishu.url}/open-apis/drive/v1/medias/{medium.token}/download"
        extra = f"?extra={quote(orjson.dumps({'bitablePerm': {'tableId': table.id, 'rev': 3}}).decode())}" if medium.table else ""
        links = f"{self.feishu.url}/open-apis/drive/v1/medias/batch_get_tmp_download_url?file_tokens={medium.token}{extra.replace('?', '&')}"
        return {
            "file_token": medium.token,
            "name": medium.name,
            "type": medium.kind,
            "size": len(medium.content),
            "url": where + extra,
            "tmp_url": links,
        }

    def _paged(self, call: Call, rows: list[dict[str, Any]], most: int) -> Answer:
        page = self.feishu.pager.cut(call, rows, most, default=20)
        if page is None:
            return refused(1254030, "InvalidPageToken")
        return fine({"items": page.rows, "has_more": page.more, "total": len(rows), **({"page_token": page.token} if page.more else {})})

    def _base(self, token: str) -> Thing | Answer:
        thing = self.library.things.get(token)
        if thing is None or thing.type != "bitable" or thing.gone:
            return refused(91402, "NOTEXIST", 404) if thing is None else refused(1254040, "BaseTokenNotFound", 404)
        return refused(91403, "Forbidden", 403) if thing.barred else thing

    def _table(self, found: re.Match[str]) -> Table | Answer:
        thing = self._base(found["app"])
        if isinstance(thing, Answer):
            return thing
        table = next((table for table in thing.tables if table.id == found["table"]), None)
        return table or refused(1254041, "TableIdNotFound", 404)


def _bounded(data: dict[str, Any]) -> Answer:
    answer = fine(data)
    return answer if len(answer.body) <= ANSWER_BYTES else refused(90221, "TooLargeResponse", 200)


def _column(letters: str) -> int:
    number = 0
    for letter in letters:
        number = number * 26 + ord(letter) - 64
    return number - 1


def _letters(column: int) -> str:
    text = ""
    column += 1
    while column:
        column, rest = divmod(column - 1, 26)
        text = chr(65 + rest) + text
    return text
