"""The parts of a graph as the settings describe them: how documents become contributions, and where these are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from pipeline.contracts import Chunk
from pipeline.errors import NotFound, Unsupported
from pipeline.protocols import HoldsGraph, Store
from pipeline.settings import Settings

if TYPE_CHECKING:
    from graphrag.building import Graph
    from graphrag.contracts import Contribution

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

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def extract(self, document_id: str, version: int, title: str, chunks: Sequence[Chunk]) -> Contribution:
        from graphrag.extract_terms import extract

        return extract(document_id, version, title, chunks)

    def add(self, contributions: Sequence[Contribution]) -> None:
        self._graph.add(contributions)

    def fold(self, *, everything: bool) -> int:
        return self._graph.fold(everything=everything)

    def remove(self, fence: Mapping[str, int]) -> None:
        self._graph.remove(fence)


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
            graph.fold()


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
    from graphrag.building import Graph

    if not isinstance(store, HoldsGraph):
        raise Unsupported("this store keeps no graph", hint="Set DUJIANG_GRAPH=off.", code="unknown_graph")
    return TermsDesk(Graph(store.graph(), index, owner=owner))
