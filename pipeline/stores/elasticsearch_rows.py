"""Records as Elasticsearch holds them: chunk rows, document heads and bodies, and the way back.

Ids are derived, never random: ``DOCUMENT:VERSION:ORDINAL`` for a row, ``DOCUMENT`` for a head and
``DOCUMENT:VERSION:PART`` for a body, so that a repeated write overwrites.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import orjson

from pipeline import zstd
from pipeline.contracts import Chunk, Hit, IndexedDocument, Metadata, Vectors
from pipeline.errors import BrokenContract
from pipeline.identity import text_hash
from pipeline.parse import packed
from pipeline.stores import elasticsearch_filters as conditions
from pipeline.stores.elasticsearch_bulk import Operation, put
from pipeline.stores.elasticsearch_client import Client, Found, SearchHit

HEAD_FIELDS = "record,document_id,version,chunks,parts,key"
HIT_FIELDS = ("document_id", "version", "ordinal", "key", "title", "url", "kind", "chunk_id", "start", "end", "shown")
FENCE = "fence"
PAGE = 1000
"""Records of one read by id."""
MAX_ID_BYTES = 512
"""Elasticsearch's own limit; one longer id would fail the whole bulk request."""
BODY_BYTES = 8_000_000
"""Compressed text of one body record; longer documents have several."""


@dataclass(frozen=True, slots=True)
class Head:
    """What the store shows of a document; everything else of it is invisible."""

    document_id: str
    version: int
    chunks: int
    parts: int
    key: str
    seen: tuple[int, int]
    """Sequence number and primary term, for compare and set."""
    fence: bool = False
    """The document was removed, and nothing up to this version is taken any more."""

    def refuses(self, version: int) -> bool:
        """Whether a writer of this version comes too late."""
        return version <= self.version if self.fence else version < self.version

    def shows(self, version: int, ordinal: int) -> bool:
        """Whether a row belongs to the visible version; a shorter rewrite of it may have left rows behind its end."""
        return version == self.version and ordinal < self.chunks


def heads(client: Client, collection: str, document_ids: Sequence[str], *, fences: bool = False) -> dict[str, Head]:
    """The visible state of each document that exists, in real time: no refresh is needed before. With `fences` also what is left of removed ones."""
    found: dict[str, Head] = {}
    for start in range(0, len(document_ids), PAGE):
        page = list(document_ids[start : start + PAGE])
        for record in client.multi_get(f"{collection}-documents", page, fields=HEAD_FIELDS):
            if (state := head(record)) is not None and (fences or not state.fence):
                found[state.document_id] = state
    return found


def head(found: Found) -> Head | None:
    """A head as `_mget` gives it; None where the document is unknown."""
    if not found.get("found"):
        return None
    source = cast("Mapping[str, int]", found["_source"])
    return Head(
        document_id=found["_id"],
        version=source["version"],
        chunks=source["chunks"],
        parts=source["parts"],
        key=str(source["key"]),
        seen=(found["_seq_no"], found["_primary_term"]),
        fence=str(source["record"]) == FENCE,
    )


def head_source(document: IndexedDocument, parts: int) -> bytes:
    """The record whose writing makes the version visible."""
    return _dump(
        document.document_id,
        {
            "record": "head",
            "document_id": document.document_id,
            "version": document.version,
            "chunks": len(document.chunks),
            "parts": parts,
            "key": document.key,
            "title": document.title,
            "url": document.url,
            "access": document.access,
        },
    )


def fence_source(document_id: str, version: int) -> bytes:
    """The record that takes the place of a removed document's head: no content, and the version that a later write must exceed."""
    return _dump(document_id, {"record": FENCE, "document_id": document_id, "version": version, "chunks": 0, "parts": 0, "key": ""})


def row_id(document_id: str, version: int, ordinal: int) -> str:
    """Id of a chunk row, or of a body by its part."""
    return f"{document_id}:{version}:{ordinal}"


def edition(document_id: str, version: int) -> str:
    """One version of one document, as a term."""
    return f"{document_id}:{version}"


def check(document: IndexedDocument, dimension: int) -> None:
    """Raise BrokenContract when vectors and chunks do not fit each other or the collection."""
    name, shape = document.key, document.vectors.shape
    if len(row_id(document.document_id, document.version, len(document.chunks)).encode("utf-8", "surrogatepass")) > MAX_ID_BYTES:
        raise BrokenContract(f"document {name} has an id that makes row ids of more than {MAX_ID_BYTES} bytes", document=name)
    if not document.chunks:
        return
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
    if not np.isfinite(document.vectors).all():
        raise BrokenContract(f"document {name} has a vector with a value that is no number", document=name)


def rows(document: IndexedDocument, *, as_base64: bool) -> Iterator[Operation]:
    """The document's chunk rows. A vector of zeros has no direction and is left out: cosine is undefined for it."""
    common: dict[str, object] = {
        "record": "chunk",
        "document_id": document.document_id,
        "edition": edition(document.document_id, document.version),
        "version": document.version,
        "key": document.key,
        "title": document.title,
        "url": document.url,
        "access": document.access,
        "meta": conditions.terms(document.metadata),
    }
    if not document.chunks:
        return
    present = np.any(document.vectors, axis=1)
    encoded = document.vectors.astype(">f4", copy=False) if as_base64 else np.ascontiguousarray(document.vectors, dtype=np.float32)
    for place, chunk in enumerate(document.chunks):
        source = common | _row(document, chunk)
        source["embedded"] = bool(present[place])
        if present[place]:
            source["vector"] = base64.b64encode(encoded[place].tobytes()).decode("ascii") if as_base64 else encoded[place]
        yield put(document.document_id, row_id(document.document_id, document.version, chunk.ordinal), _dump(document.key, source))


def _row(document: IndexedDocument, chunk: Chunk) -> dict[str, object]:
    text_digest = text_hash(chunk.text)
    row: dict[str, object] = {
        "ordinal": chunk.ordinal,
        "kind": chunk.kind,
        "words": chunk.words,
        "grams": chunk.grams,
        "chunk_id": chunk.chunk_id,
        "search_hash": text_hash(chunk.search_text) if chunk.search_text else text_digest,
        "text_hash": text_digest,
        "start": chunk.start,
        "end": chunk.end,
        "shown": {
            "text": chunk.text,
            "lead": "\n".join(document.parsed.text[start:end] for start, end in chunk.lead),
            "tokens": chunk.tokens,
            "page": chunk.page,
            "line_start": chunk.line_start,
            "line_end": chunk.line_end,
            "heading_path": chunk.heading_path,
            "metadata": dict(document.metadata),
        },
    }
    if chunk.valid_from is not None:
        row["valid_from"] = conditions.microseconds(chunk.valid_from)
    if chunk.valid_to is not None:
        row["valid_to"] = conditions.microseconds(chunk.valid_to)
    return row


def bodies(document: IndexedDocument) -> list[Operation]:
    """The parsed document, packed, in as many parts as needed; at least one."""
    content = zstd.Packer().compress(packed.dump(document.parsed))
    name, version = document.document_id, document.version
    operations: list[Operation] = []
    for part, start in enumerate(range(0, len(content), BODY_BYTES)):
        body = base64.b64encode(content[start : start + BODY_BYTES]).decode("ascii")
        source = {"record": "body", "document_id": name, "edition": edition(name, version), "version": version, "ordinal": part, "body": body}
        operations.append(put(name, row_id(name, version, part), _dump(document.key, source)))
    return operations


def unpack(parts: list[Found]) -> bytes | None:
    """The packed document of its parts in order; None when one is missing."""
    if not all(part.get("found") for part in parts):
        return None
    return zstd.decompress(b"".join(base64.b64decode(cast("str", part["_source"]["body"])) for part in parts))


def vector(found: SearchHit, dimension: int) -> Vectors:
    """Vector of a hit that was asked for as a doc value, shape (d,): base64 on a new server, floats on an older one."""
    values = found["fields"].get("vector") if "fields" in found else None
    if not values:
        return np.zeros(dimension, dtype=np.float32)
    if isinstance(values[0], str):
        return np.frombuffer(base64.b64decode(values[0]), dtype=">f4").astype(np.float32)
    return np.asarray(values[0], dtype=np.float32)


def hit(found: SearchHit, *, collection: str, scores: Mapping[str, float], highlight: str, dimension: int | None) -> Hit:
    """A search hit in our own terms, its score still 0; with its vector where `dimension` is given."""
    source = found["_source"]
    shown = cast("Mapping[str, object]", source["shown"])
    return Hit(
        chunk_id=cast("str", source["chunk_id"]),
        document_id=cast("str", source["document_id"]),
        version=cast("int", source["version"]),
        ordinal=cast("int", source["ordinal"]),
        key=cast("str", source["key"]),
        title=cast("str", source["title"]),
        url=cast("str", source["url"]),
        text=cast("str", shown["text"]),
        start=cast("int", source["start"]),
        end=cast("int", source["end"]),
        score=0.0,
        scores=scores,
        lead=cast("str", shown["lead"]),
        kind=cast("str", source["kind"]),
        tokens=cast("int", shown["tokens"]),
        page=cast("int | None", shown["page"]),
        line_start=cast("int | None", shown["line_start"]),
        line_end=cast("int | None", shown["line_end"]),
        heading_path=tuple(cast("list[str]", shown["heading_path"])),
        highlight=highlight,
        metadata=cast("Metadata", shown["metadata"]),
        collection=collection,
        vector=None if dimension is None else vector(found, dimension),
    )


def _dump(key: str, source: Mapping[str, object]) -> bytes:
    try:
        return orjson.dumps(source, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        detail = f"document {key} has text, a name or metadata that cannot be written as UTF-8 or JSON"
        raise BrokenContract(detail, document=key) from error
