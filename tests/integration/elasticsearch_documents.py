"""Small documents for the tests of the Elasticsearch store."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from pipeline.contracts import Chunk, IndexedDocument, Metadata, ParsedDocument, Section, StoreQuery, Vectors
from pipeline.identity import chunk_id

DIMENSION = 16
_numbers = count(1)


def new_name() -> str:
    """A collection that no other test of this process uses."""
    return f"dujiang-test-{os.getpid():x}{next(_numbers):04x}-g1"


def document(
    name: str, texts: Sequence[str], *, version: int = 1, metadata: Metadata | None = None, vectors: Vectors | None = None
) -> IndexedDocument:
    """A document of one chunk a line, with vectors that follow from the texts."""
    text, start = "\n".join(texts), 0
    chunks: list[Chunk] = []
    for ordinal, piece in enumerate(texts):
        end = start + len(piece)
        chunks.append(Chunk(chunk_id(name, "lines", start, end, piece), ordinal, start, end, piece, words=piece.lower()))
        start = end + 1
    given = vectors if vectors is not None else np.array([vector_of(piece) for piece in texts], dtype=np.float32).reshape(-1, DIMENSION)
    parsed = ParsedDocument(text, (Section(0, len(text)),) if text else (), title=name)
    return IndexedDocument(name, version, f"file:///{name}", name, "", parsed, tuple(chunks), given, metadata or {})


def vector_of(text: str) -> Vectors:
    """Shape (DIMENSION,), the same for the same text."""
    return np.random.default_rng(list(text.encode())).standard_normal(DIMENSION).astype(np.float32)


def with_bad_row(good: IndexedDocument) -> IndexedDocument:
    """The same document with a position that the mapping's integer cannot hold, so that Elasticsearch refuses the row."""
    return replace(good, chunks=(replace(good.chunks[0], end=2**40), *good.chunks[1:]))


def word(*words: str, k: int = 10) -> StoreQuery:
    """A full-text query."""
    return StoreQuery(words=words, k=k)
