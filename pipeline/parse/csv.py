"""CSV and TSV: delimiter found by consistency, one row a line."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from typing import Protocol

from pipeline.contracts import ParsedDocument, RawDocument
from pipeline.errors import Malformed
from pipeline.parse import charset
from pipeline.parse.layout import Layout, clean, flat, headed, replaced


class Rows(Protocol):
    """What `csv.reader` returns."""

    @property
    def line_num(self) -> int: ...
    def __iter__(self) -> Iterator[list[str]]: ...


_DELIMITERS = ",;\t|"
_SAMPLE_LINES = 50
MOST_FIELD = 10_000_000
"""Characters of one cell; beyond it a quote was opened and never closed."""


def parse(raw: RawDocument, options: Mapping[str, str]) -> ParsedDocument:
    """One table, blank rows left out; the first row is the header where it reads like one.

    Within the table, text line k is source line k while no cell holds a line break and no row is blank.
    """
    text, name = charset.decode(raw.data, raw.charset)
    text = clean(text)
    mark = "\t" if raw.media_type == "text/tab-separated-values" and "\t" in text else delimiter(text)
    table = _Table()
    csv.field_size_limit(MOST_FIELD)
    try:
        table.read(csv.reader(io.StringIO(text), delimiter=mark))
    except csv.Error as error:
        raise Malformed("the CSV cannot be read as a table: a quote is opened and never closed, or a cell is larger than 10 MB") from error
    warnings = list(replaced(text))
    if len(table.widths) > 1:
        warnings.append(f"rows have {min(table.widths)} to {max(table.widths)} cells")
    layout = Layout()
    layout.rows(table.lines, header_rows=headed(table.head), lines=(table.first, table.last))
    return layout.document(media_type=raw.media_type or "text/csv", parser="csv", charset=name, warnings=warnings)


class _Table:
    """Rows as they go into the text; only the first are kept cell by cell, to judge the header by."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.head: list[list[str]] = []
        self.widths: set[int] = set()
        self.first = 0
        self.last = 0

    def read(self, reader: Rows) -> None:
        for row in reader:
            line = " | ".join(row)
            if "\n" in line or "  " in line or "\ufeff" in line:
                row = [flat(cell) for cell in row]
                line = " | ".join(row)
            if any(row) and line.strip(" |"):
                self.lines.append(line)
                self.widths.add(len(row))
                self.first = self.first or reader.line_num
                self.last = reader.line_num
                if len(self.head) < _SAMPLE_LINES:
                    self.head.append(row)


def delimiter(text: str) -> str:
    """The candidate that cuts most sample lines into the same number of cells, above one; a comma when none does."""
    sample = text[:200_000].split("\n")[:_SAMPLE_LINES]
    best, mark = 0.0, ","
    for candidate in _DELIMITERS:
        try:
            widths = [len(row) for row in csv.reader(sample, delimiter=candidate) if row]
        except csv.Error:
            continue
        usual = max(set(widths), key=widths.count, default=1)
        if usual > 1 and (score := widths.count(usual) / len(widths) + min(usual, 50) / 1000) > best:
            best, mark = score, candidate
    return mark
