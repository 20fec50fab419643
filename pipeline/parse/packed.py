"""A parsed document as msgpack, for the pipe and for stored outputs. Versioned: an unknown layout is refused, never misread."""

from __future__ import annotations

from datetime import datetime
from typing import cast

from pipeline import wire
from pipeline.contracts import Box, ParsedDocument, Scalar, Section, Span, Table
from pipeline.errors import BrokenContract

_LAYOUT = 1
_Rows = tuple[tuple[object, ...], ...]
_Document = tuple[
    int,
    str,
    tuple[tuple[str, ...], ...],
    _Rows,
    tuple[tuple[int, int, tuple[Span, ...], Span | None, str, int | None], ...],
    str,
    str,
    str,
    str,
    int | None,
    dict[str, Scalar | tuple[str, ...]],
    tuple[str, ...],
]
_Plain = tuple[int, int, str, int, int, int | None, Box | None, int | None, int | None]


def dump(document: ParsedDocument) -> bytes:
    """Pack. Heading paths are stored once each; offsets of sections and tables stay plain numbers."""
    paths: dict[tuple[str, ...], int] = {}
    sections = [
        (
            s.start,
            s.end,
            s.tag,
            s.level,
            paths.setdefault(s.heading_path, len(paths)),
            s.page,
            s.box,
            s.line_start,
            s.line_end,
            *((s.key, s.speaker, s.at and s.at.isoformat()) if s.key or s.speaker or s.at else ()),
        )
        for s in document.sections
    ]
    tables = [(t.start, t.end, t.rows, t.header, t.html, t.page) for t in document.tables]
    return wire.pack(
        (
            _LAYOUT,
            document.text,
            list(paths),
            sections,
            tables,
            document.title,
            document.media_type,
            document.parser,
            document.charset,
            document.pages,
            dict(document.metadata),
            document.warnings,
        )
    )


def load(data: bytes) -> ParsedDocument:
    """Unpack what `dump` made. Raises BrokenContract for anything else."""
    content = wire.unpack(data)
    if not isinstance(content, tuple) or not content or content[0] != _LAYOUT:
        raise BrokenContract(f"stored output of the parse stage is not of layout {_LAYOUT}")
    _, text, paths, sections, tables, title, kind, parser, charset, pages, metadata, warnings = cast(_Document, content)
    return ParsedDocument(
        text,
        tuple([_section(row, paths) for row in sections]),
        tuple([Table(*row) for row in tables]),
        title,
        kind,
        parser,
        charset,
        pages,
        {key: list(value) if isinstance(value, tuple) else value for key, value in metadata.items()},
        warnings,
    )


def _section(row: tuple[object, ...], paths: tuple[tuple[str, ...], ...]) -> Section:
    start, end, tag, level, path, page, box, first, last = cast(_Plain, row[:9])
    if len(row) == 9:
        return Section(start, end, tag, level, paths[path], page, box, first, last)
    key, speaker, at = cast(tuple[str, str, str | None], row[9:])
    return Section(start, end, tag, level, paths[path], page, box, first, last, key, speaker, datetime.fromisoformat(at) if at else None)
