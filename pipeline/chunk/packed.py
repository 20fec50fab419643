"""Chunks as bytes and back: what stands in the artifact packs of the chunk stage."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, cast

from pipeline import wire
from pipeline.contracts import Chunk
from pipeline.errors import Malformed

FORMAT = 1
_TEXT, _SEARCH_TEXT = 4, 9
"""Places in a row."""


def dump(chunks: Sequence[Chunk]) -> bytes:
    """Serialise; `load` gives equal chunks back. Terms lie apart, since embedding has no use for them."""
    return wire.pack((FORMAT, wire.pack([_row(chunk) for chunk in chunks]), wire.pack([(chunk.words, chunk.grams) for chunk in chunks])))


def load(data: bytes) -> tuple[Chunk, ...]:
    """The chunks. Raises BrokenContract or Malformed when the bytes are not what `dump` writes."""
    rows, packed_terms = _opened(data)
    found = cast("tuple[tuple[str, str], ...]", wire.unpack(packed_terms))
    return tuple(_chunk(row, words, grams) for row, (words, grams) in zip(rows, found, strict=True))


def searched(data: bytes) -> list[str]:
    """`Chunk.searched` of each, which is all that embedding needs. Raises as `load` does."""
    return [row[_SEARCH_TEXT] or row[_TEXT] for row in _opened(data)[0]]


def _opened(data: bytes) -> tuple[tuple[tuple[Any, ...], ...], bytes]:
    """(rows, terms still packed)."""
    content = wire.unpack(data)
    if not isinstance(content, tuple) or len(cast("tuple[object, ...]", content)) != 3:
        raise Malformed("a chunk artifact cannot be read", code="artifact_damaged", hint="Ingest the document again.")
    form, packed, packed_terms = cast("tuple[int, bytes, bytes]", content)
    if form != FORMAT:
        raise Malformed(f"a chunk artifact has format {form}", code="artifact_format", hint="Ingest the document again.")
    return cast("tuple[tuple[Any, ...], ...]", wire.unpack(packed)), packed_terms


def _chunk(row: tuple[Any, ...], words: str, grams: str) -> Chunk:
    fields: list[Any] = [*row[:10], words, grams, *row[10:17], _time(row[17]), _time(row[18])]
    return Chunk(*fields)


def _row(chunk: Chunk) -> tuple[object, ...]:
    return (
        chunk.chunk_id,
        chunk.ordinal,
        chunk.start,
        chunk.end,
        chunk.text,
        chunk.tokens,
        chunk.token_start,
        chunk.token_end,
        chunk.lead,
        chunk.search_text,
        chunk.kind,
        chunk.heading_path,
        chunk.page,
        chunk.page_end,
        chunk.line_start,
        chunk.line_end,
        chunk.parent,
        _stamp(chunk.valid_from),
        _stamp(chunk.valid_to),
    )


def _stamp(value: datetime | None) -> tuple[float, float] | None:
    """(seconds since the epoch, offset from UTC in seconds): the original offset is kept."""
    if value is None:
        return None
    offset = value.utcoffset() or timedelta(0)
    return value.timestamp(), offset.total_seconds()


def _time(value: Any) -> datetime | None:
    if value is None:
        return None
    seconds, offset = value
    return datetime.fromtimestamp(seconds, UTC if not offset else timezone(timedelta(seconds=offset)))
