"""A collection's vectors in memory, for exact search, kept up to date by what was written and removed since."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from pipeline.contracts import Vectors
from pipeline.stores.embedded_sql import Sql

SPARE = 1.25
"""Room for growth when memory is taken anew."""
MOST_DEAD = 0.25
"""Share of removed rows above which the others move together."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """One state of a collection's vectors. Never changes, so that several threads may search it."""

    ids: NDArray[np.int64]
    """Chunk ids, ascending, shape (n,)."""
    unit: Vectors
    """Vectors of length 1, zeros where there is none, shape (n, d)."""
    usable: NDArray[np.bool_]
    """False for chunks that were removed and for vectors of zeros, shape (n,)."""

    def similarities(self, vector: Vectors) -> Vectors:
        """Cosine of each row with a vector, shape (n,); 0 for a vector of zeros."""
        length = float(np.linalg.norm(vector))
        wanted = (vector / length).astype(np.float32) if length > 0.0 else np.zeros_like(vector, dtype=np.float32)
        return cast("Vectors", np.clip(self.unit @ wanted, -1.0, 1.0))

    def rows(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Place of each chunk, -1 where it has none."""
        if not self.ids.size:
            return np.full(len(ids), -1, dtype=np.int64)
        places = np.minimum(np.searchsorted(self.ids, ids), self.ids.size - 1)
        return np.where(self.ids[places] == ids, places, -1)


class Resident:
    """Loads and refreshes the matrix of one collection. The caller holds a lock and a read transaction.

    Rows are only ever appended to memory that no `Matrix` shows yet, so earlier states stay as they are.
    """

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self._ids = np.zeros(0, dtype=np.int64)
        self._unit = np.zeros((0, dimension), dtype=np.float32)
        self._used = 0
        self._usable = np.zeros(0, dtype=np.bool_)
        self._removals = 0
        self._next = 0

    @property
    def size(self) -> int:
        """Bytes."""
        return self._unit.nbytes + self._ids.nbytes

    def refresh(self, connection: Sql, *, next_id: int, removals: int, chunks: int) -> Matrix:
        """The matrix of the state that the connection's transaction sees."""
        if self._next == 0:
            self._removals = removals
        if next_id > self._next and self.dimension:
            self._append(connection, chunks)
        self._next = max(self._next, next_id)
        if removals != self._removals:
            self._forget(cast("Iterable[tuple[int, int]]", connection.execute("SELECT id, chunks FROM documents ORDER BY id")))
            self._removals = removals
        return Matrix(self._ids[: self._used], self._unit[: self._used], self._usable)

    def _append(self, connection: Sql, chunks: int) -> None:
        before = self._used
        expected = chunks if self._next == 0 else 0
        for first, data in cast(
            "Iterable[tuple[int, bytes]]", connection.execute("SELECT id, vectors FROM vectors WHERE id >= ? ORDER BY id", (self._next,))
        ):
            block = np.frombuffer(data, dtype="<f4").reshape(-1, self.dimension)
            stop = self._used + len(block)
            self._reserve(max(stop, expected))
            self._ids[self._used : stop] = np.arange(first, first + len(block))
            lengths = np.sqrt(np.einsum("ij,ij->i", block, block, dtype=np.float64))
            np.divide(block, np.maximum(lengths, 1e-30)[:, None], out=self._unit[self._used : stop], casting="unsafe")
            self._used = stop
        usable = np.any(self._unit[before : self._used], axis=1)
        self._usable = np.concatenate([self._usable, usable])

    def _reserve(self, rows: int) -> None:
        if rows <= len(self._ids):
            return
        room = rows if not self._used else int(rows * SPARE) + 64
        ids, unit = np.zeros(room, dtype=np.int64), np.empty((room, self.dimension), dtype=np.float32)
        ids[: self._used], unit[: self._used] = self._ids[: self._used], self._unit[: self._used]
        self._ids, self._unit = ids, unit

    def _forget(self, documents: Iterable[tuple[int, int]]) -> None:
        """Keep only rows of documents that are still there."""
        listed = np.array(list(documents), dtype=np.int64).reshape(-1, 2)
        live = inside(self._ids[: self._used], listed)
        usable = self._usable & live
        if np.count_nonzero(live) < (1.0 - MOST_DEAD) * self._used:
            self._ids, self._unit = self._ids[: self._used][live], self._unit[: self._used][live]
            self._used, usable = len(self._ids), usable[live]
        self._usable = usable


def inside(ids: NDArray[np.int64], ranges: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which ids lie in one of the ranges.

    Args:
        ranges: (first, length), ascending by first and not overlapping, shape (n, 2).
    """
    if not len(ranges):
        return np.zeros(len(ids), dtype=np.bool_)
    place = np.searchsorted(ranges[:, 0], ids, side="right") - 1
    first, length = ranges[place, 0], ranges[place, 1]
    return (place >= 0) & (ids < first + length)
