"""Documents as rows of the embedded store, and their removal."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeAlias, cast

import numpy as np
import orjson

from pipeline.contracts import Chunk, IndexedDocument, Metadata, Scalar, Vectors
from pipeline.errors import BrokenContract
from pipeline.identity import text_hash
from pipeline.parse import packed
from pipeline.protocols import WriteOutcome
from pipeline.stores import filters
from pipeline.stores.embedded_sql import Sql
from pipeline.zstd import Packer

BLOCK = 65_536
"""Characters of one block of text: what is unpacked to show a chunk."""
BLOCKS = 65_536
"""Most blocks of one document."""
VECTORS = 64
"""Vectors of one row."""
PACKED_FROM = 256
"""Bytes from which text is compressed; a compressed piece begins with zstd's magic number, which no UTF-8 text does."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST = 1 << 63

Live: TypeAlias = tuple[int, int, int]
"""(id, version, chunks) of a document in the store."""


@dataclass(frozen=True, slots=True)
class Rows:
    """One document, ready to be written but for its id."""

    document: IndexedDocument
    record: tuple[object, ...]
    facts: frozenset[tuple[str, str, Scalar]]
    layout: bytes
    texts: list[bytes]
    chunks: list[tuple[object, ...]]
    vectors: Vectors


def prepare(documents: Iterable[IndexedDocument], dimension: int) -> list[Rows]:
    """All that can be done before the write lock is taken.

    Raises: BrokenContract when vectors and chunks do not fit each other or the collection.
    """
    packer = Packer()
    return [_rows(document, check(document, dimension), packer) for document in documents]


def check(document: IndexedDocument, dimension: int) -> Vectors:
    """The vectors as C-contiguous float32, shape (chunks, dimension). Raises BrokenContract naming the document."""
    name, shape = document.key, document.vectors.shape
    if not document.chunks:
        return np.zeros((0, dimension), dtype=np.float32)
    if len(shape) != 2 or shape[0] != len(document.chunks):
        raise BrokenContract(f"document {name} has {len(document.chunks)} chunks but vectors of shape {shape}", document=name)
    if shape[1] != dimension:
        raise BrokenContract(
            f"document {name} has vectors of {shape[1]} dimensions, the collection holds {dimension}",
            hint="Use the collection's own model, or build a new generation of it.",
            document=name,
        )
    if any(chunk.ordinal != place for place, chunk in enumerate(document.chunks)):
        raise BrokenContract(f"document {name} has chunks that are not numbered from 0 in order", document=name)
    vectors = np.ascontiguousarray(document.vectors, dtype=np.float32)
    if not np.isfinite(vectors).all():
        raise BrokenContract(f"document {name} has a vector with a value that is no number", document=name)
    return vectors


def write(connection: Sql, prepared: Sequence[Rows]) -> list[WriteOutcome]:
    """Insert what is no older than what is there, remove what it replaces. In the caller's transaction."""
    newest: dict[str, Rows] = {}
    for rows in prepared:
        known = newest.get(rows.document.document_id)
        if known is None or rows.document.version >= known.document.version:
            newest[rows.document.document_id] = rows
    live, fenced = find(connection, list(newest)), fences(connection, list(newest))
    winners = {
        name: rows
        for name, rows in newest.items()
        if (name not in live or live[name][1] <= rows.document.version) and fenced.get(name, -1) < rows.document.version
    }
    remove(connection, [live[name] for name in winners if name in live])
    connection.executemany("DELETE FROM fences WHERE document_id = ?", [(name,) for name in winners if name in fenced])
    _insert(connection, list(winners.values()))
    return [_outcome(rows, winners.get(rows.document.document_id) is rows) for rows in prepared]


def find(connection: Sql, document_ids: Sequence[str]) -> dict[str, Live]:
    """Those of the documents that are there."""
    found: dict[str, Live] = {}
    for name in document_ids:
        for row in connection.execute("SELECT id, version, chunks FROM documents WHERE document_id = ?", (name,)):
            found[name] = cast("Live", row)
    return found


def fences(connection: Sql, document_ids: Sequence[str]) -> dict[str, int]:
    """Versions up to which those of the documents that were removed are not taken any more."""
    found: dict[str, int] = {}
    for name in document_ids:
        for (version,) in connection.execute("SELECT version FROM fences WHERE document_id = ?", (name,)):
            found[name] = cast("int", version)
    return found


def withdraw(connection: Sql, document_ids: Sequence[str], fence: Mapping[str, int]) -> int:
    """Remove those that are there in no version above their fence, and fence all; returns how many went. In the caller's transaction."""
    found = find(connection, document_ids)
    gone = [live for name, live in found.items() if name not in fence or live[1] <= fence[name]]
    remove(connection, gone)
    kept = {name for name, live in found.items() if name in fence and live[1] > fence[name]}
    put = "INSERT INTO fences VALUES (?, ?) ON CONFLICT (document_id) DO UPDATE SET version = max(version, excluded.version)"
    connection.executemany(put, [(name, fence[name]) for name in document_ids if name in fence and name not in kept])
    return len(gone)


def remove(connection: Sql, documents: Sequence[Live]) -> None:
    """Delete documents with all that belongs to them. In the caller's transaction."""
    if not documents:
        return
    facts: list[tuple[object, ...]] = []
    for document, _, _ in documents:
        for (metadata,) in connection.execute("SELECT metadata FROM documents WHERE id = ?", (document,)):
            facts += [(*fact, document) for fact in facts_of(orjson.loads(cast("bytes", metadata)))]
    ranges = [(document, document + chunks) for document, _, chunks in documents if chunks]
    ids = [(document,) for document, _, _ in documents]
    connection.executemany("DELETE FROM facts WHERE name = ? AND kind = ? AND value = ? AND document = ?", facts)
    connection.executemany("DELETE FROM documents WHERE id = ?", ids)
    connection.executemany("DELETE FROM layouts WHERE id = ?", ids)
    connection.executemany("DELETE FROM texts WHERE id >= ? AND id < ?", [(i * BLOCKS, (i + 1) * BLOCKS) for (i,) in ids])
    connection.executemany("DELETE FROM chunks WHERE id >= ? AND id < ?", ranges)
    connection.executemany("DELETE FROM vectors WHERE id >= ? AND id < ?", ranges)
    connection.executemany("DELETE FROM terms WHERE rowid = ?", ((chunk,) for start, stop in ranges for chunk in range(start, stop)))
    connection.execute(
        "UPDATE state SET changes = changes + 1, removals = removals + 1, chunks = chunks - ?", (sum(chunks for *_, chunks in documents),)
    )


def facts_of(metadata: Metadata) -> frozenset[tuple[str, str, Scalar]]:
    """(name, kind, value) of every value, and (name, "", "") for every entry that is there."""
    found: set[tuple[str, str, Scalar]] = set()
    for name, value in metadata.items():
        if value is None:
            continue
        found.add((name, "", ""))
        found |= {(name, filters.kind(item), stored(item)) for item in filters.values(metadata, name) if item == item}
    return frozenset(found)


def stored(value: Scalar) -> Scalar:
    """A value as SQLite compares it: truth values as 0 and 1, integers beyond 64 bits as floats."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int) and not -_MOST <= value < _MOST:
        try:
            return float(value)
        except OverflowError:
            return math.copysign(math.inf, value)
    return value


def microseconds(moment: datetime | None) -> int | None:
    """Of an aware time since 1970 in UTC, exact over the whole calendar."""
    if moment is None:
        return None
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _rows(document: IndexedDocument, vectors: Vectors, packer: Packer) -> Rows:
    parsed = document.parsed
    text = parsed.text
    try:
        metadata = orjson.dumps(dict(document.metadata))
        layout = packed.dump(replace(parsed, text=""))
        chunks = [_chunk(chunk) for chunk in document.chunks]
        for part in (document.document_id, document.key, document.title, document.url, document.access):
            part.encode("utf-8")
    except (TypeError, UnicodeEncodeError) as error:
        name = document.document_id
        raise BrokenContract(f"document {name} has a name or metadata that cannot be written as UTF-8 or JSON", document=name) from error
    head = (document.document_id, document.version, document.key, document.title, document.url, document.access)
    return Rows(
        document,
        (*head, len(chunks), len(text), metadata),
        facts_of(document.metadata),
        _packed(layout, packer),
        [_packed(text[start : start + BLOCK].encode("utf-8", "surrogatepass"), packer) for start in range(0, len(text), BLOCK)],
        chunks,
        vectors,
    )


def _chunk(chunk: Chunk) -> tuple[object, ...]:
    rest = (
        chunk.tokens,
        chunk.kind,
        chunk.page,
        chunk.line_start,
        chunk.line_end,
        chunk.heading_path,
        chunk.lead,
        chunk.page_end,
        chunk.parent,
        chunk.token_start,
        chunk.token_end,
    )
    return (
        chunk.start,
        chunk.end,
        chunk.chunk_id,
        text_hash(chunk.searched),
        microseconds(chunk.valid_from),
        microseconds(chunk.valid_to),
        orjson.dumps(rest),
    )


def _packed(data: bytes, packer: Packer) -> bytes:
    return packer.compress(data) if len(data) >= PACKED_FROM else data


def _insert(connection: Sql, documents: Sequence[Rows]) -> None:
    if not documents:
        return
    (first,) = cast("tuple[int]", connection.execute("SELECT next FROM state").fetchone())
    ids = list(itertools.accumulate((max(1, len(rows.chunks)) for rows in documents), initial=first))
    placed = list(zip(ids, documents, strict=False))
    connection.executemany("INSERT INTO documents VALUES (?,?,?,?,?,?,?,?,?,?)", ((i, *rows.record) for i, rows in placed))
    connection.executemany("INSERT INTO layouts VALUES (?,?)", ((i, rows.layout) for i, rows in placed))
    connection.executemany(
        "INSERT INTO texts VALUES (?,?)", ((i * BLOCKS + block, text) for i, rows in placed for block, text in enumerate(rows.texts))
    )
    connection.executemany("INSERT OR IGNORE INTO facts VALUES (?,?,?,?)", ((*fact, i) for i, rows in placed for fact in rows.facts))
    connection.executemany("INSERT INTO chunks VALUES (?,?,?,?,?,?,?,?)", ((i + n, *row) for i, rows in placed for n, row in enumerate(rows.chunks)))
    connection.executemany("INSERT INTO vectors VALUES (?,?)", _vector_rows(placed))
    connection.executemany(
        "INSERT INTO terms (rowid, words, grams) VALUES (?,?,?)",
        ((i + n, chunk.words, chunk.grams) for i, rows in placed for n, chunk in enumerate(rows.document.chunks)),
    )
    connection.execute(
        "UPDATE state SET next = ?, changes = changes + 1, chunks = chunks + ?", (ids[-1], sum(len(rows.chunks) for rows in documents))
    )


def _vector_rows(placed: Sequence[tuple[int, Rows]]) -> Iterator[tuple[int, bytes]]:
    for document, rows in placed:
        if rows.vectors.size:
            for start in range(0, len(rows.vectors), VECTORS):
                yield document + start, rows.vectors[start : start + VECTORS].tobytes()


def _outcome(rows: Rows, written: bool) -> WriteOutcome:
    return WriteOutcome(rows.document.document_id, rows.document.version, written, len(rows.chunks) if written else 0)
