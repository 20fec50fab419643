"""A parsed document as a row of blocks: sections, tables, and whatever stands between them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from pipeline.contracts import ParsedDocument, Section, Span, Table

_PARAGRAPH = re.compile(r"(?:\r?\n[ \t\u3000]*)(?:\r?\n[ \t\u3000]*)+")
_BARE = Section(0, 0)


class Block(NamedTuple):
    """A span without blanks at its ends, and the section it belongs to."""

    start: int
    end: int
    section: Section
    table: Table | None = None


def blocks(document: ParsedDocument) -> list[Block]:
    """All text that is not blank, in order, each character once."""
    text = document.text
    found: list[Block] = []
    tables = _outer(document.tables)
    reached, at, around = 0, 0, _BARE
    for section in document.sections:
        if section.start > reached:
            _loose(found, text, reached, section.start, around)
            reached = section.start
        around = section
        while at < len(tables) and tables[at].start < section.end:
            table = tables[at]
            _plain(found, text, reached, table.start, section)
            _plain(found, text, max(reached, table.start), table.end, section, table)
            reached = max(reached, table.end)
            at += 1
        _plain(found, text, reached, section.end, section)
        reached = max(reached, section.end)
    for table in tables[at:]:
        _loose(found, text, reached, table.start, around)
        _plain(found, text, max(reached, table.start), table.end, around, table)
        reached = max(reached, table.end)
    _loose(found, text, reached, len(text), around)
    return found


def _outer(tables: tuple[Table, ...]) -> list[Table]:
    """Tables in order, without those that lie inside another one."""
    kept: list[Table] = []
    for table in sorted(tables, key=lambda table: (table.start, -table.end)):
        if table.end > table.start and (not kept or table.start >= kept[-1].end):
            kept.append(table)
    return kept


def _loose(found: list[Block], text: str, start: int, end: int, around: Section) -> None:
    """Text that no section claims, paragraph by paragraph, under the headings of the section before."""
    if start >= end or text[start:end].isspace():
        return
    owner = Section(
        start, end, heading_path=(*around.heading_path, text[around.start : around.end].strip()) if around.tag == "Title" else around.heading_path
    )
    for first, last in paragraphs(text, start, end):
        _plain(found, text, first, last, owner)


def paragraphs(text: str, start: int, end: int) -> Iterator[Span]:
    """Spans between blank lines, with the blank lines left out."""
    for match in _PARAGRAPH.finditer(text, start, end):
        yield start, match.start()
        start = match.end()
    yield start, end


def _plain(found: list[Block], text: str, start: int, end: int, section: Section, table: Table | None = None) -> None:
    if start >= end:
        return
    piece = text[start:end]
    body = piece.strip()
    if body:
        start += len(piece) - len(piece.lstrip())
        found.append(Block(start, start + len(body), section, table))
