"""The parts of a graph as the settings describe them: how documents become contributions, and where these are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pipeline.contracts import Chunk
from pipeline.errors import Unsupported
from pipeline.protocols import Store
from pipeline.settings import Settings

MODES = ("off", "terms", "light", "general")


class GraphDesk(Protocol):
    """One collection's graph, for writing. Each call is safe to repeat, and to be killed at any line."""

    def add(self, document_id: str, version: int, title: str, chunks: Sequence[Chunk]) -> None:
        """Make this version the document's contribution; an older version never wins. Raises Retryable, Rejected."""
        ...

    def fold(self) -> int:
        """Bring every entity and relation up to date that contributions touched; returns how many. Raises Unavailable."""
        ...


def extractor(settings: Settings) -> str:
    """Fingerprint of the extraction; empty where there is none. Raises Unsupported."""
    if settings.graph not in MODES:
        raise Unsupported(f"there is no graph {settings.graph!r}", hint=f"Set DUJIANG_GRAPH to one of {', '.join(MODES)}.", code="unknown_graph")
    if settings.graph == "off":
        return ""
    raise Unsupported(f"graph {settings.graph!r} is not built yet", hint="Set DUJIANG_GRAPH=off.", code="unknown_graph")


def desk(settings: Settings, store: Store, index: str) -> GraphDesk:
    """The graph beside an index of the store. Raises Unsupported."""
    raise Unsupported(f"graph {settings.graph!r} is not built yet", hint="Set DUJIANG_GRAPH=off.", code="unknown_graph")
