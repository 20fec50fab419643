"""Who folds a graph: one worker at a time, by a number that rises with every holder.

The lease keeps workers from doing the same work twice. That nothing goes wrong where two believe they hold it is the number's doing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from graphrag.records import FORMAT
from pipeline import wire
from pipeline.contracts.graph import GraphKind, GraphRecord
from pipeline.errors import Unavailable
from pipeline.protocols import GraphRecords

LEASE_S = 120.0
"""Without a sign from its holder; a slice of a fold takes a few seconds."""
_ID = "fold"


@dataclass(frozen=True, slots=True)
class Lease:
    """The state of the one lease of a graph."""

    number: int = 0
    """Milliseconds since 1970 when it was taken or renewed, or more: what a fold writes carries it as its version."""
    owner: str = ""
    """Empty: free."""
    until_ms: int = 0
    seconds: float = 0.0
    """CPU of the last round."""


def read(records: GraphRecords, collection: str) -> Lease:
    """As it stands."""
    record = records.get(collection, GraphKind.LEASE, [_ID]).get(_ID)
    if record is None:
        return Lease()
    _, owner, until_ms, seconds = cast("tuple[int, str, int, float]", wire.unpack(record.body))
    return Lease(record.version, owner, until_ms, seconds)


def take(records: GraphRecords, collection: str, owner: str, at_ms: int) -> Lease | None:
    """The lease, ours; None while another worker holds it."""
    seen = read(records, collection)
    if seen.owner not in ("", owner) and seen.until_ms > at_ms:
        return None
    return _swap(records, collection, seen, Lease(max(seen.number + 1, at_ms), owner, at_ms + int(1000 * LEASE_S), seen.seconds))


def renewed(records: GraphRecords, collection: str, lease: Lease, at_ms: int) -> Lease | None:
    """The same with a new number and a new end; None when it is no longer ours."""
    return _swap(records, collection, lease, replace(lease, number=max(lease.number + 1, at_ms), until_ms=at_ms + int(1000 * LEASE_S)))


def renew(records: GraphRecords, collection: str, lease: Lease, at_ms: int) -> Lease:
    """`renewed`. Raises Unavailable when it is no longer ours."""
    kept = renewed(records, collection, lease, at_ms)
    if kept is None:
        raise Unavailable(f"another worker has taken over the graph of {collection}", code="graph_busy")
    return kept


def release(records: GraphRecords, collection: str, lease: Lease, seconds: float) -> None:
    """Give it back, if it still is ours; `seconds`: what the round took, 0 leaves the last figure."""
    _swap(records, collection, lease, Lease(lease.number + 1, "", 0, seconds or lease.seconds))


def _swap(records: GraphRecords, collection: str, seen: Lease, wanted: Lease) -> Lease | None:
    body = wire.pack((FORMAT, wanted.owner, wanted.until_ms, wanted.seconds))
    (won,) = records.swap(collection, [(GraphRecord(GraphKind.LEASE, _ID, wanted.number, body), seen.number)])
    return wanted if won else None
