"""A parsed document as msgpack, for the pipe and for stored outputs. Versioned: an unknown layout is refused, never misread."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgpack

from pipeline.contracts import ParsedDocument, Section, Table
from pipeline.errors import BrokenContract

_LAYOUT = 1


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
    return msgpack.packb(
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
    try:
        layout, text, paths, sections, tables, title, kind, parser, charset, pages, metadata, warnings = msgpack.unpackb(data, use_list=False)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise BrokenContract("stored output of the parse stage cannot be read") from error
    if layout != _LAYOUT:
        raise BrokenContract(f"stored output of the parse stage has layout {layout}, not {_LAYOUT}")
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


def _section(row: tuple[Any, ...], paths: tuple[tuple[str, ...], ...]) -> Section:
    start, end, tag, level, path, page, box, first, last = row[:9]
    if len(row) == 9:
        return Section(start, end, tag, level, paths[path], page, box, first, last)
    key, speaker, at = row[9:]
    return Section(start, end, tag, level, paths[path], page, box, first, last, key, speaker, at and datetime.fromisoformat(at))
