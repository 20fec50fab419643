"""The parts of a graph as the settings describe them: how documents become contributions, and where these are kept."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from pipeline.contracts import Chunk
from pipeline.errors import NotFound, Unsupported
from pipeline.protocols import GraphRecords, HoldsGraph, Store
from pipeline.settings import Settings

if TYPE_CHECKING:
    from graphrag.contracts import Contribution
    from graphrag.search import GraphSearch, Place, Ready

SMALL_S = 2.0
"""A snapshot that takes less is made anew with every change; others as seldom as `snapshot.refresh` says."""
KEPT = 16
"""Collections whose snapshots a process holds."""
MODES = ("off", "terms", "light", "general")


class GraphDesk(Protocol):
    """One collection's graph, for writing. Each call is safe to repeat, and to be killed at any line."""

    def extract(self, document_id: str, version: int, title: str, chunks: Sequence[Chunk]) -> Contribution:
        """What the document says by itself. Raises Retryable, Rejected."""
        ...

    def add(self, contributions: Sequence[Contribution]) -> None:
        """Make each its document's contribution; an older version never wins. Raises Unavailable."""
        ...

    def fold(self, *, everything: bool) -> int:
        """Bring entities and relations up to date; returns how many. Without `everything` little may wait beside much. Raises Unavailable."""
        ...

    def remove(self, fence: Mapping[str, int]) -> None:
        """Document id → version: what these contributed up to then goes, and none of it comes back. `fold` takes it out of entities."""
        ...


class TermsDesk:
    """A graph of names and terms, without a model."""

    def __init__(self, records: GraphRecords, index: str, owner: str) -> None:
        from graphrag.building import Graph

        self._records, self._index = records, index
        self._graph = Graph(records, index, owner=owner)

    def extract(self, document_id: str, version: int, title: str, chunks: Sequence[Chunk]) -> Contribution:
        from graphrag.extract_terms import extract

        return extract(document_id, version, title, chunks)

    def add(self, contributions: Sequence[Contribution]) -> None:
        self._graph.add(contributions)

    def fold(self, *, everything: bool) -> int:
        from graphrag import snapshot

        folded = self._graph.fold(everything=everything)
        if everything:
            known = snapshot.manifest(self._records, self._index)
            snapshot.refresh(self._records, self._index, force=known is not None and known.seconds < SMALL_S)
        return folded

    def remove(self, fence: Mapping[str, int]) -> None:
        self._graph.remove(fence)


class Loaded:
    """Snapshots as this process has them: read again when the stored one is another. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, Ready] = {}

    def __call__(self, place: Place) -> Ready | None:
        from graphrag import search, snapshot

        if not isinstance(place.store, HoldsGraph):
            return None
        records = place.store.graph()
        known = snapshot.manifest(records, place.index)
        if known is None:
            return None
        held = self._held.get(place.index)
        if held is not None and held.snapshot.generation == known.generation and held.made_at == known.at_s:
            return held
        with self._lock:
            found = snapshot.load(records, place.index)
            if found is None:
                return held
            made = search.ready(found, made_at=known.at_s)
            while len(self._held) >= KEPT:
                self._held.pop(next(iter(self._held)))
            self._held[place.index] = made
            return made


def extractor(settings: Settings) -> str:
    """Fingerprint of the extraction; empty where there is none. Raises Unsupported."""
    if settings.graph not in MODES:
        raise Unsupported(f"there is no graph {settings.graph!r}", hint=f"Set DUJIANG_GRAPH to one of {', '.join(MODES)}.", code="unknown_graph")
    if settings.graph == "off":
        return ""
    if settings.graph == "terms":
        from graphrag.extract_terms import VERSION

        return VERSION
    raise Unsupported(f"graph {settings.graph!r} is not built yet", hint="Set DUJIANG_GRAPH to terms or off.", code="unknown_graph")


def search() -> GraphSearch:
    """The retriever over snapshots."""
    from graphrag.search import GraphSearch

    return GraphSearch(Loaded())


def leave(store: Store, index: str, owner: str, fence: Mapping[str, int], *, folded_later: bool) -> None:
    """Take documents out of the graph beside an index, as far as there is one; version as in `Store.delete`. Raises Unavailable.

    Args:
        folded_later: somebody looks through the collection soon; otherwise what the documents said goes out of entities now.
    """
    if not fence or not isinstance(store, HoldsGraph):
        return
    from graphrag.building import Graph

    graph = Graph(store.graph(), index, owner=owner)
    if not folded_later:
        fence = {document_id: fence[document_id] for document_id in graph.heads(list(fence))}
    if fence:
        graph.remove(fence)
        if not folded_later:
            from graphrag import snapshot

            graph.fold()
            snapshot.refresh(store.graph(), index, force=True)


def audited(store: Store, index: str) -> tuple[int, str]:
    """(entities and relations that are really there, digest) of the graph beside an index; (0, "") where there is none. Raises Unavailable."""
    if not isinstance(store, HoldsGraph):
        return 0, ""
    try:
        found = store.graph().audit(index)
    except NotFound:
        return 0, ""
    return found.records, found.digest if found.records else ""


def desk(store: Store, index: str, owner: str) -> GraphDesk:
    """The graph beside an index of the store. Raises Unsupported where the store keeps none."""
    if not isinstance(store, HoldsGraph):
        raise Unsupported("this store keeps no graph", hint="Set DUJIANG_GRAPH=off.", code="unknown_graph")
    return TermsDesk(store.graph(), index, owner)
