"""What sweep, status and metrics ask of a broker, whichever it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Depth:
    """One queue as the broker has it."""

    ready: int
    """Messages that nobody has been handed."""
    consumers: int | None = None
    """None where the broker does not know who listens; the ledger's nodes then say it."""


class Broker(Protocol):
    """Safe for threads; open one per process, after a fork. Everything raises Unavailable when the broker is away."""

    def ping(self) -> None: ...

    def depth(self, queue: str) -> int | None:
        """Messages that wait in a queue; 0 also for a queue that is gone."""
        ...

    def depths(self) -> Mapping[str, Depth]:
        """Every queue of ours."""
        ...

    def unacked(self) -> int | None:
        """Messages handed to workers and not acknowledged yet, over all queues; None where the broker does not tell."""
        ...

    def epoch(self) -> str | None:
        """The mark that is lost when the broker is wiped; None when it is missing."""
        ...

    def set_epoch(self, value: str) -> None: ...

    def close(self) -> None: ...
