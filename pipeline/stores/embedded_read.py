"""What the embedded store shows of chunks and documents. Everything here runs in the caller's read transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, cast

import numpy as np
import orjson

from pipeline import zstd
from pipeline.contracts import Hit, Metadata, ParsedDocument, Section, Span, StoreAudit, StoreQuery, Vectors
from pipeline.errors import NotFound
from pipeline.highlight import highlight
from pipeline.identity import text_hash
from pipeline.parse import packed
from pipeline.stores.digest import digest_rows
from pipeline.stores.embedded_search import Candidate
from pipeline.stores.embedded_sql import Sql
from pipeline.stores.embedded_write import BLOCK, BLOCKS

_ZSTD = b"\x28\xb5\x2f\xfd"
_OWNER = "SELECT id, document_id, version, key, title, url, metadata FROM documents WHERE id <= ? ORDER BY id DESC LIMIT 1"
_CHUNK = "SELECT start, stop, chunk_id, rest FROM chunks WHERE id = ?"

Rest: TypeAlias = tuple[int, str, int | None, int | None, int | None, list[str], list[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class Owner:
    """The document that a chunk belongs to."""

    id: int
    document_id: str
    version: int
    key: str
    title: str
    url: str
    metadata: bytes


class Texts:
    """Slices of documents' texts; each block is unpacked once."""

    def __init__(self, connection: Sql) -> None:
        self._connection = connection
        self._blocks: dict[int, str] = {}

    def slice(self, document: int, start: int, end: int) -> str:
        """Characters `start` to `end`, cut at the end of the text."""
        if end <= start:
            return ""
        first, last = start // BLOCK, (end - 1) // BLOCK
        joined = "".join([self._block(document * BLOCKS + block) for block in range(first, last + 1)])
        return joined[start - first * BLOCK : end - first * BLOCK]

    def _block(self, block: int) -> str:
        if block not in self._blocks:
            row = cast("tuple[bytes] | None", self._connection.execute("SELECT text FROM texts WHERE id = ?", (block,)).fetchone())
            self._blocks[block] = self.unpack(row[0]).decode("utf-8", "surrogatepass") if row else ""
        return self._blocks[block]

    def unpack(self, data: bytes) -> bytes:
        """Decompress what was compressed."""
        return zstd.decompress(data) if data.startswith(_ZSTD) else data


class Shown:
    """Turns candidates of one query into hits."""

    def __init__(self, connection: Sql, collection: str, query: StoreQuery, dimension: int) -> None:
        self._connection = connection
        self._collection = collection
        self._query = query
        self._dimension = dimension
        self._texts = Texts(connection)
        self._owners: dict[int, Owner] = {}

    def places(self, chunks: Iterable[int]) -> dict[int, tuple[str, int]]:
        """(document key, ordinal) of each chunk."""
        for chunk in chunks:
            if chunk not in self._owners:
                self._owners[chunk] = Owner(
                    *cast("tuple[int, str, int, str, str, str, bytes]", self._connection.execute(_OWNER, (chunk,)).fetchone())
                )
        return {chunk: (owner.key, chunk - owner.id) for chunk, owner in self._owners.items()}

    def hit(self, candidate: Candidate, rank: int) -> Hit:
        """A chunk as the caller sees it; its owner was read by `places`.

        Args:
            rank: from 0; the best `query.k` carry an excerpt, which costs more than all the rest of a hit.
        """
        owner, query = self._owners[candidate.chunk], self._query
        row = self._connection.execute(_CHUNK, (candidate.chunk,)).fetchone()
        start, stop, chunk_id, rest = cast("tuple[int, int, str, bytes]", row)
        tokens, kind, page, line_start, line_end, heading_path, lead = cast("Rest", orjson.loads(rest)[:7])
        text = self._texts.slice(owner.id, start, stop)
        return Hit(
            chunk_id=chunk_id,
            document_id=owner.document_id,
            version=owner.version,
            ordinal=candidate.chunk - owner.id,
            key=owner.key,
            title=owner.title,
            url=owner.url,
            text=text,
            start=start,
            end=stop,
            score=0.0,
            scores=candidate.scores,
            lead="\n".join(self._texts.slice(owner.id, *span) for span in lead),
            kind=kind,
            tokens=tokens,
            page=page,
            line_start=line_start,
            line_end=line_end,
            heading_path=tuple(heading_path),
            highlight=highlight(text, query.words, query.grams) if rank < query.k else "",
            metadata=cast("Metadata", orjson.loads(owner.metadata)),
            collection=self._collection,
            vector=vectors(self._connection, candidate.chunk, 1, self._dimension)[0] if query.with_vectors else None,
        )


def vectors(connection: Sql, first: int, count: int, dimension: int) -> Vectors:
    """Raw vectors of consecutive chunks of one document, zeros where there is none, shape (count, dimension)."""
    found = np.zeros((count, dimension), dtype=np.float32)
    if not dimension or not count:
        return found
    before = cast("tuple[int | None]", connection.execute("SELECT max(id) FROM vectors WHERE id <= ?", (first,)).fetchone())[0]
    rows = connection.execute("SELECT id, vectors FROM vectors WHERE id >= ? AND id < ?", (first if before is None else before, first + count))
    for at, data in cast("Iterator[tuple[int, bytes]]", rows):
        block = np.frombuffer(data, dtype="<f4").reshape(-1, dimension)
        left, right = max(at, first), min(at + len(block), first + count)
        if left < right:
            found[left - first : right - first] = block[left - at : right - at]
    return found


def head(connection: Sql, collection: str, document_id: str) -> tuple[int, int, int]:
    """(id, chunks, length of the text) of a visible document. Raises NotFound."""
    row = connection.execute("SELECT id, chunks, length FROM documents WHERE document_id = ?", (document_id,)).fetchone()
    if row is None:
        raise NotFound(f"document {document_id} is not in collection {collection}", document=document_id)
    return cast("tuple[int, int, int]", row)


def layout(connection: Sql, document: int) -> ParsedDocument:
    """The parsed document without its text."""
    (data,) = cast("tuple[bytes]", connection.execute("SELECT layout FROM layouts WHERE id = ?", (document,)).fetchone())
    return packed.load(Texts(connection).unpack(data))


def parsed(connection: Sql, document: int, length: int) -> ParsedDocument:
    """The parsed document whole."""
    return replace(layout(connection, document), text=Texts(connection).slice(document, 0, length))


def touching(sections: Sequence[Section], start: int, end: int) -> tuple[Section, ...]:
    """Sections that share a character with the span."""
    return tuple(section for section in sections if section.start < end and section.end > start)


def hashes(connection: Sql, document: int, count: int) -> tuple[str, ...]:
    """Hash of `search_text` of each chunk, in order."""
    rows = connection.execute("SELECT search_hash FROM chunks WHERE id >= ? AND id < ? ORDER BY id", (document, document + count))
    return tuple(cast("str", row[0]) for row in rows)


def spans(connection: Sql, document: int, count: int) -> tuple[tuple[str, Span], ...]:
    """(chunk id, span) of each chunk, in order."""
    rows = connection.execute("SELECT chunk_id, start, stop FROM chunks WHERE id >= ? AND id < ? ORDER BY id", (document, document + count))
    return tuple((chunk_id, (start, stop)) for chunk_id, start, stop in cast("Iterator[tuple[str, int, int]]", rows))


def audit(connection: Sql, dimension: int) -> StoreAudit:
    """Count and hash what is there: a chunk counts when its document, its row and its entry in the text index are all there."""
    versions: dict[str, int] = {}
    held: dict[str, tuple[int, int]] = {}

    def rows() -> Iterator[tuple[str, int, str, str, bool]]:
        documents = connection.execute("SELECT id, document_id, version, key, chunks FROM documents ORDER BY id").fetchall()
        for document, document_id, version, key, count in cast("list[tuple[int, str, int, str, int]]", documents):
            versions[document_id] = version
            counted = [0, 0]
            for ordinal, search_hash, shown_hash, present in _chunks(connection, document, count, dimension):
                counted[0] += 1
                counted[1] += present
                yield key, ordinal, search_hash, shown_hash, present
            held[document_id] = (counted[0], counted[1])

    digest = digest_rows(rows())
    chunks, present = (sum(counts[place] for counts in held.values()) for place in (0, 1))
    return StoreAudit(len(versions), chunks, present, digest, versions, held)


def _chunks(connection: Sql, document: int, count: int, dimension: int) -> Iterator[tuple[int, str, str, bool]]:
    """(ordinal, search hash, hash of the text that is really there, vector present)."""
    texts = Texts(connection)
    present = np.any(vectors(connection, document, count, dimension), axis=1)
    held = "SELECT c.id, c.start, c.stop, c.search_hash FROM chunks c JOIN terms_docsize t ON t.id = c.id WHERE c.id >= ? AND c.id < ? ORDER BY c.id"
    for chunk, start, stop, search_hash in cast("list[tuple[int, int, int, str]]", connection.execute(held, (document, document + count)).fetchall()):
        yield chunk - document, search_hash, text_hash(texts.slice(document, start, stop)), bool(present[chunk - document])


def frequency(connection: Sql, asked: str) -> int:
    """Chunks that match an FTS5 query."""
    (count,) = cast("tuple[int]", connection.execute("SELECT count(*) FROM terms WHERE terms MATCH ?", (asked,)).fetchone())
    return count
