"""Vectors of one document as bytes and back: what stands in the artifact packs of the embed stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from pipeline import wire
from pipeline.contracts import Vectors
from pipeline.errors import BrokenContract, Malformed

_HEAD = 4


@dataclass(frozen=True, slots=True)
class StoredVectors:
    """Vectors with the hash of each `search_text`, so that unchanged text is never embedded twice."""

    revision: str
    hashes: tuple[str, ...]
    vectors: Vectors
    """Shape (len(hashes), d)."""


def dump(revision: str, hashes: Sequence[str], vectors: Vectors) -> bytes:
    """Serialise `vectors`, shape (len(hashes), d)."""
    head = wire.pack((1, revision, vectors.shape[1] if vectors.ndim == 2 else 0, b"".join(map(bytes.fromhex, hashes))))
    return len(head).to_bytes(_HEAD, "little") + head + np.ascontiguousarray(vectors, dtype="<f4").tobytes()


def load(data: bytes) -> StoredVectors:
    """Raises Malformed when the bytes are not what `dump` writes."""
    try:
        size = int.from_bytes(data[:_HEAD], "little")
        _, revision, dimension, packed = cast("tuple[int, str, int, bytes]", wire.unpack(data[_HEAD : _HEAD + size]))
        numbers = np.frombuffer(data, dtype="<f4", offset=_HEAD + size)
        vectors = numbers.reshape(-1, dimension) if dimension else numbers.reshape(0, 0)
    except (ValueError, TypeError, BrokenContract) as error:
        raise Malformed("a vector artifact cannot be read", code="artifact_damaged", hint="Ingest the document again.") from error
    hashes = tuple(packed[start : start + 16].hex() for start in range(0, len(packed), 16))
    return StoredVectors(revision, hashes, vectors)
