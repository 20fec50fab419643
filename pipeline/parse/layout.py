"""Collects blocks in reading order into one text with sections and tables, for the formats that are not text already."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pipeline.contracts import Box, ParsedDocument, Scalar, Section, Span, Table

_SPACE = re.compile(r"\s+")
MOST_COLUMNS = 1000
MOST_CELLS = 2_000_000
"""Bounds of one table once its spans are laid out: a span attribute is a number anybody can write."""


def clean(text: str) -> str:
    """Line ends as ``\\n``, no NUL, no lone surrogates, no byte order mark in front."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\0" in text:
        text = text.replace("\0", "")
    if text.startswith("\ufeff"):
        text = text.lstrip("\ufeff")
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def replaced(text: str) -> tuple[str, ...]:
    """A warning when undecodable bytes were replaced."""
    bad = text.count("\ufffd")
    return (f"{bad} undecodable characters were replaced",) if bad else ()


def flat(text: str) -> str:
    """One line, runs of white space as one space, marks of no width gone."""
    return _SPACE.sub(" ", text.replace("\ufeff", "")).strip()


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell as written; a spanned position holds no cell of its own."""

    text: str
    rowspan: int = 1
    colspan: int = 1
    header: bool = False


def spread(rows: Sequence[Sequence[Cell]]) -> list[list[str]]:
    """Rows of equal meaning by column: a merged cell's text stands in each row and column it covers.

    A cell that covers its whole row stands once.
    """
    grid: list[list[str]] = []
    waiting: dict[int, tuple[int, str]] = {}
    total = 0
    for row in rows:
        line, waiting = _spread_row(row, waiting)
        total += len(line)
        if total > MOST_CELLS:
            break
        grid.append([row[0].text] if len(row) == 1 and row[0].colspan > 1 and len(set(line)) == 1 else line)
    return grid


def squared(grid: Sequence[Sequence[str]]) -> list[list[str]]:
    """Without empty rows and the empty columns at the right; every row of the same length, unless that were too many cells."""
    full = [row for row in grid if any(row)]
    filled = [max(column + 1 for column, cell in enumerate(row) if cell) for row in full]
    width = max(filled, default=0)
    if width * len(full) > MOST_CELLS:
        return [list(row[:number]) for row, number in zip(full, filled, strict=True)]
    return [[*row[:width], *([""] * (width - len(row)))] for row in full]


def _spread_row(row: Sequence[Cell], waiting: dict[int, tuple[int, str]]) -> tuple[list[str], dict[int, tuple[int, str]]]:
    """(texts by column, what reaches into later rows by column: rows left and text)."""
    line: list[str] = []
    carried = {column: (left - 1, text) for column, (left, text) in waiting.items() if left > 1}

    def take() -> None:
        while len(line) in waiting:
            line.append(waiting[len(line)][1])

    for cell in row:
        take()
        for _ in range(min(cell.colspan, MOST_COLUMNS - len(line))):
            if cell.rowspan > 1:
                carried[len(line)] = (cell.rowspan - 1, cell.text)
            line.append(cell.text)
    take()
    return line, carried


def markup(rows: Sequence[Sequence[Cell]]) -> str:
    """The table as HTML with its row and column spans, cell texts escaped."""
    out = ["<table>"]
    for row in rows:
        out.append("<tr>")
        for cell in row:
            name = "th" if cell.header else "td"
            spans = (f' rowspan="{cell.rowspan}"' if cell.rowspan > 1 else "") + (f' colspan="{cell.colspan}"' if cell.colspan > 1 else "")
            out.append(f"<{name}{spans}>{html.escape(cell.text, quote=False)}</{name}>")
        out.append("</tr>")
    out.append("</table>")
    return "".join(out)


class Layout:
    """A document under construction. Offsets are final as soon as a block is added."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.size = 0
        self.sections: list[Section] = []
        self.tables: list[Table] = []
        self.headings: list[tuple[int, str]] = []

    @property
    def path(self) -> tuple[str, ...]:
        """Headings in force, outermost first."""
        return tuple(text for _, text in self.headings)

    def _write(self, text: str, gap: str) -> int:
        """Append; returns the offset at which `text` begins."""
        if self.size:
            self.parts.append(gap)
            self.size += len(gap)
        start = self.size
        self.parts.append(text)
        self.size += len(text)
        return start

    def heading(
        self, text: str, level: int, *, page: int | None = None, box: Box | None = None, lines: Span | None = None, gap: str = "\n\n"
    ) -> None:
        """Add a title line; later blocks stand under it until a title of its level or higher. `level` counts from 1."""
        while self.headings and self.headings[-1][0] >= level:
            self.headings.pop()
        self.block(text, "Title", level=min(level, 6), page=page, box=box, lines=lines, gap=gap)
        self.headings.append((level, flat(text)))

    def block(
        self,
        text: str,
        tag: str = "Text",
        *,
        level: int = 0,
        path: tuple[str, ...] | None = None,
        page: int | None = None,
        box: Box | None = None,
        lines: Span | None = None,
        key: str = "",
        speaker: str = "",
        at: datetime | None = None,
        gap: str = "\n\n",
    ) -> None:
        """Add one block; `lines` are the first and last source line, from 1. Blank text adds nothing."""
        if not text.strip():
            return
        start = self._write(text, gap)
        first, last = lines or (None, None)
        where = self.path if path is None else path
        self.sections.append(Section(start, self.size, tag, level, where, page, box, first, last, key, speaker, at))

    def table(
        self,
        rows: Sequence[Sequence[str]],
        *,
        header_rows: int = 1,
        source: str = "",
        path: tuple[str, ...] | None = None,
        page: int | None = None,
        lines: Span | None = None,
    ) -> None:
        """Add a table, one row a line, cells joined by " | "; `source` is its HTML. The table has one section of the same span."""
        self.rows([" | ".join(row) for row in rows], header_rows=header_rows, source=source, path=path, page=page, lines=lines)

    def rows(
        self,
        texts: Sequence[str],
        *,
        header_rows: int = 1,
        source: str = "",
        path: tuple[str, ...] | None = None,
        page: int | None = None,
        lines: Span | None = None,
    ) -> None:
        """The same for rows whose cells are joined already."""
        body = "\n".join(texts)
        if not body.strip(" |\n"):
            return
        start = self._write(body, "\n\n")
        spans: list[Span] = []
        at = start
        for text in texts:
            spans.append((at, at + len(text)))
            at += len(text) + 1
        header = (spans[0][0], spans[header_rows - 1][1]) if 0 < header_rows < len(spans) else None
        first, last = lines or (None, None)
        where = self.path if path is None else path
        self.tables.append(Table(start, self.size, tuple(spans), header, source, page))
        self.sections.append(Section(start, self.size, "Table", 0, where, page, None, first, last))

    def document(
        self,
        *,
        title: str = "",
        media_type: str,
        parser: str,
        charset: str = "",
        pages: int | None = None,
        metadata: Mapping[str, Scalar | list[str]] | None = None,
        warnings: Sequence[str] = (),
    ) -> ParsedDocument:
        """The finished document."""
        return ParsedDocument(
            "".join(self.parts),
            tuple(self.sections),
            tuple(self.tables),
            title,
            media_type,
            parser,
            charset,
            pages,
            dict(metadata or {}),
            tuple(warnings),
        )


def headed(rows: Sequence[Sequence[str]]) -> int:
    """1 when the first row reads as column names, else 0."""
    if len(rows) < 2 or len(rows[0]) < 1:
        return 0
    names = [cell.strip() for cell in rows[0]]
    filled = [name for name in names if name]
    if not filled or len(filled) * 2 < len(names):
        return 0
    numbers = [name for name in filled if numeric(name)]
    if len(numbers) < len(filled) and all(_YEAR.match(name) for name in numbers):
        return 1
    body = rows[1:20]
    for column, name in enumerate(names):
        below = [row[column] for row in body if column < len(row) and row[column].strip()]
        if name and not numeric(name) and below and sum(map(numeric, below)) * 2 > len(below):
            return 1
    return 0


_YEAR = re.compile(r"(?:19|20)\d\d$")
_NUMBER = re.compile(r"[-+]?[\d.,]+(?:[eE][-+]?\d+)?\s*%?$")


def numeric(text: str) -> bool:
    """Whether a cell holds a number."""
    return bool(_NUMBER.match(text.strip()))
