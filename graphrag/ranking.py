"""Personalised PageRank between entities and the chunks that mention them: from what a question names to the chunks that carry it on.

A random walker goes from an entity to a chunk that mentions it and from a chunk to one of its entities, and now and then returns to where the
question began. The stationary distribution is the fixed point of a linear system; both halves are updated in turn, so that a sweep does the
work of two steps, and it ends by the total error left, not by an error for each node. Nothing but numpy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphrag.snapshot import Snapshot

ALPHA = 0.85
"""Chance to go on; the usual value, and the best one measured for bridge questions."""
TOLERANCE = 1e-6
"""Total change of all scores in a sweep, which sum to 1; what is left is at most three times as much. The best chunks do not change any more."""
SWEEPS = 200
HUB = 0.2
"""An entity that more than this share of many chunks mention leads nowhere."""
MANY = 200
"""Below so many chunks everything may be common."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Walk:
    """A snapshot made ready for walking over. Shared by all questions; not to be changed."""

    entity: NDArray[np.int64]
    """Of each mention, shape (n,)."""
    chunk: NDArray[np.int64]
    forth: Floats
    """Chance to take the mention when standing on its entity, shape (n,)."""
    back: Floats
    """The same when standing on its chunk."""
    idf: Floats
    """Of each entity: ln(1 + chunks / chunks that mention it), shape (entities,)."""
    chunks: int

    @property
    def entities(self) -> int:
        return len(self.idf)


def prepare(snapshot: Snapshot, allowed: NDArray[np.bool_] | None = None) -> Walk:
    """The walk over a snapshot, or over those of its chunks that are `allowed`, shape (chunks,): nothing flows through the others."""
    # Contiguous and of the width that numpy indexes with: a third less time for every sweep.
    entity, chunk = (np.ascontiguousarray(snapshot.mentions[:, side], dtype=np.int64) for side in (0, 1))
    entities, chunks = len(snapshot.keys), len(snapshot.chunks)
    frequency = np.bincount(entity, minlength=entities)
    idf = np.log1p(chunks / np.maximum(frequency, 1))
    weight = (1.0 + np.log(np.maximum(snapshot.counts.astype(np.float64), 1.0))) * idf[entity]
    if allowed is not None:
        weight = np.where(allowed[chunk], weight, 0.0)
    if chunks > MANY:
        weight = np.where(frequency[entity] > HUB * chunks, 0.0, weight)
    forth = _shares(weight, entity, entities)
    back = _shares(weight, chunk, chunks)
    return Walk(entity, chunk, forth, back, idf, chunks)


def rank(walk: Walk, entities: Floats, chunks: Floats, *, alpha: float = ALPHA, tolerance: float = TOLERANCE) -> tuple[Floats, Floats, int]:
    """Scores of all entities and of all chunks, together 1, and the sweeps it took.

    Args:
        entities, chunks: where the walk begins and returns to, shapes (entities,) and (chunks,), non-negative; all zero gives all zero.
    """
    total = float(entities.sum() + chunks.sum())
    if total <= 0.0:
        return np.zeros(walk.entities), np.zeros(walk.chunks), 0
    start_entities, start_chunks = entities / total * (1.0 - alpha), chunks / total * (1.0 - alpha)
    at_entities, at_chunks = start_entities.copy(), start_chunks.copy()
    sweeps, change = 0, np.inf
    while change >= tolerance and sweeps < SWEEPS:
        sweeps += 1
        chunks_now = start_chunks + alpha * np.bincount(walk.chunk, weights=at_entities[walk.entity] * walk.forth, minlength=walk.chunks)
        entities_now = start_entities + alpha * np.bincount(walk.entity, weights=chunks_now[walk.chunk] * walk.back, minlength=walk.entities)
        change = float(np.abs(chunks_now - at_chunks).sum() + np.abs(entities_now - at_entities).sum())
        at_entities, at_chunks = entities_now, chunks_now
    # What stood where nothing leads on has returned to the start: that only scales the rest.
    whole = float(at_entities.sum() + at_chunks.sum())
    return at_entities / whole, at_chunks / whole, sweeps


def _shares(weight: Floats, owner: NDArray[np.int64], owners: int) -> Floats:
    total = np.bincount(owner, weights=weight, minlength=owners)
    return weight / np.where(total > 0.0, total, 1.0)[owner]
