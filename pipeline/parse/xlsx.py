"""Workbooks (XLSX, XLS, ODS) through calamine: a title per sheet, a table per block of rows."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta

from pipeline.contracts import ParsedDocument, RawDocument
from pipeline.errors import Malformed, TooLarge
from pipeline.parse import archive
from pipeline.parse.layout import Cell, Layout, clean, flat, headed, markup

Merged = tuple[tuple[int, int], tuple[int, int]]
"""(first row, first column), (last row, last column), from 0, in the sheet's own numbering."""
MOST_CELLS = 5_000_000
MOST_MARKUP_ROWS = 500


def parse(raw: RawDocument, options: Mapping[str, str]) -> ParsedDocument:
    """Visible sheets in order; `line_start` and `line_end` are the sheet's row numbers. Hidden sheets are left out with a warning.

    Raises Malformed (``encrypted``, ``truncated``, ``malformed``) and TooLarge (``zip_bomb``, or too many cells).
    """
    import python_calamine as calamine

    if raw.data.startswith(b"PK"):
        with archive.opened(raw.data, "workbook"):
            pass
        archive.count(raw.data, "workbook")
    layout = Layout()
    warnings: list[str] = []
    try:
        book = calamine.CalamineWorkbook.from_filelike(io.BytesIO(raw.data))
        for number, meta in enumerate(book.sheets_metadata):
            if meta.typ != calamine.SheetTypeEnum.WorkSheet:
                continue
            if meta.visible != calamine.SheetVisibleEnum.Visible:
                warnings.append(f"sheet {number + 1} is hidden and was left out")
                continue
            sheet = book.get_sheet_by_index(number)
            _sheet(layout, meta.name, sheet.to_python(skip_empty_area=True), sheet.start or (0, 0), sheet.merged_cell_ranges or [])
    except calamine.PasswordError as error:
        raise Malformed("the workbook is protected by a password", hint="Remove the password and ingest it again.", code="encrypted") from error
    except (calamine.CalamineError, ValueError, OSError) as error:
        raise Malformed("the workbook is damaged") from error
    return layout.document(media_type=raw.media_type, parser="xlsx", warnings=warnings)


def _sheet(layout: Layout, name: str, values: Sequence[Sequence[object]], origin: tuple[int, int], merged: Sequence[Merged]) -> None:
    """One sheet: blocks of rows between blank rows."""
    if sum(map(len, values)) > MOST_CELLS:
        raise TooLarge(f"a sheet has more than {MOST_CELLS:,} cells", hint="Split the workbook.")
    rows = [[shown(value) for value in row] for row in values]
    layout.headings.clear()
    if not any(any(row) for row in rows):
        return
    layout.heading(flat(clean(name)), 1, lines=(origin[0] + 1, origin[0] + 1))
    covers = [(low[0] - origin[0], low[1] - origin[1], high[0] - origin[0], high[1] - origin[1]) for low, high in merged]
    first = 0
    while first < len(rows):
        if not any(rows[first]):
            first += 1
            continue
        last = first
        while last + 1 < len(rows) and any(rows[last + 1]):
            last += 1
        _block(layout, rows, first, last, origin[0] + 1, covers)
        first = last + 1


def _block(layout: Layout, rows: list[list[str]], first: int, last: int, base: int, covers: Sequence[tuple[int, int, int, int]]) -> None:
    """One table with its captions above; `base` is the sheet row of rows[0]."""
    while first < last and _filled(rows[first]) == 1 and _filled(rows[first + 1]) != 1:
        layout.block(next(cell for cell in rows[first] if cell), "Caption", lines=(base + first, base + first))
        first += 1
    used = [column for column in range(max(map(len, rows[first : last + 1]))) if any(_at(row, column) for row in rows[first : last + 1])]
    own = [area for area in covers if first <= area[0] <= last]
    source = _markup(rows, first, last, used, own) if own and last - first < MOST_MARKUP_ROWS else ""
    table = [[_at(row, column) for column in used] for row in rows[first : last + 1]]
    for top, left, bottom, right in own:
        text = _at(rows[top], left)
        for row in range(top, min(bottom, last) + 1):
            for column in range(left, right + 1):
                if column in used:
                    table[row - first][used.index(column)] = text
    lines = (base + first, base + last)
    if len(used) == 1:
        layout.block("\n".join(row[0] for row in table), lines=lines)
    else:
        tall = max((area[2] - area[0] + 1 for area in own if area[0] == first), default=1)
        layout.table(table, header_rows=min(tall, len(table) - 1) if headed(table) else 0, source=source, lines=lines)


def _markup(rows: list[list[str]], first: int, last: int, used: list[int], areas: Sequence[tuple[int, int, int, int]]) -> str:
    heads = {(top, left): (min(bottom, last) - top + 1, sum(left <= column <= right for column in used)) for top, left, bottom, right in areas}
    hidden = {
        (row, column)
        for top, left, bottom, right in areas
        for row in range(top, min(bottom, last) + 1)
        for column in used
        if left <= column <= right and (row, column) != (top, left)
    }
    grid: list[list[Cell]] = []
    for row in range(first, last + 1):
        cells = [Cell(_at(rows[row], column), *heads.get((row, column), (1, 1))) for column in used if (row, column) not in hidden]
        grid.append(cells)
    return markup(grid)


def _at(row: Sequence[str], column: int) -> str:
    return row[column] if column < len(row) else ""


def _filled(row: Sequence[str]) -> int:
    return sum(map(bool, row))


def shown(value: object) -> str:
    """A cell as a person would read it: whole numbers without a fraction, dates in ISO form, midnight left out."""
    if value is None or value == "":
        return ""
    if isinstance(value, str):
        return flat(clean(value))
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    if isinstance(value, datetime):
        return value.date().isoformat() if value.time() == time.min else value.isoformat(" ", "seconds")
    if isinstance(value, (date, time)):
        return value.isoformat()
    return str(value) if isinstance(value, (int, timedelta)) else flat(str(value))
