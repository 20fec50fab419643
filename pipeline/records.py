"""What a store keeps of a graph, and how it is asked: a part of `protocols`, which is where it is imported from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

from pipeline.contracts.graph import GraphAudit, GraphKind, GraphRecord


class GraphRecords(Protocol):
    """The graph of a collection, beside its documents and dropped with them. A collection without a graph reads as an empty one.

    Reads by id see every write that has returned; the others see it, too, as long as no other process writes the same record meanwhile.
    Raises Unavailable(dependency=True) when the backend is away, Conflict for a write in a store opened for reading.
    """

    def put(self, collection: str, records: Iterable[GraphRecord]) -> None:
        """Write records, each by itself: the highest version wins, repeating changes nothing. Raises NotFound for an unknown collection."""
        ...

    def swap(self, collection: str, swaps: Sequence[tuple[GraphRecord, int]]) -> list[bool]:
        """Compare and set, each by itself: written where the stored version is the one given with it (0: none); the new one must exceed it."""
        ...

    def get(self, collection: str, kind: GraphKind, ids: Sequence[str]) -> dict[str, GraphRecord]:
        """Those that are there; `words` and `holds` are not read back."""
        ...

    def scan(self, collection: str, kind: GraphKind, *, group: str = "", after: str = "") -> Iterator[GraphRecord]:
        """All of a kind, or of a group of it, in the order of ids, however many; what is written meanwhile may come in either state.

        Args:
            after: begin behind this id.
        """
        ...

    def holding(self, collection: str, kind: GraphKind, ids: Sequence[str]) -> Iterator[GraphRecord]:
        """Each record of a kind that holds at least one of the ids, once, in no order; a few that hold none may be among them."""
        ...

    def find(self, collection: str, kind: GraphKind, terms: Sequence[str], k: int) -> list[tuple[str, float]]:
        """(id, BM25 of its words) of the best k, best first."""
        ...

    def remove(self, collection: str, kind: GraphKind, ids: Sequence[str]) -> None:
        """Delete without a trace: for what no late writer can bring back, or what does no harm when it does."""
        ...

    def withdraw(self, collection: str, kind: GraphKind, fence: Mapping[str, int]) -> None:
        """Delete what stands in no version above its fence, and take none up to it from now on, whether it was there or not."""
        ...

    def purge(self, collection: str, kind: GraphKind, before: int) -> int:
        """Forget the fences of lower versions; returns how many."""
        ...

    def count(self, collection: str, kind: GraphKind) -> int: ...

    def audit(self, collection: str) -> GraphAudit:
        """Count and hash the elements that are really there."""
        ...


@runtime_checkable
class HoldsGraph(Protocol):
    """A store that keeps graphs, too."""

    def graph(self) -> GraphRecords:
        """Of all its collections; as safe to share as the store, and closed with it."""
        ...
