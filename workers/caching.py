"""What the answer cache does, counted for all processes in Redis, where the cache itself is."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from pipeline.contracts import Answer
from pipeline.errors import Unavailable
from workers.cache_views import CacheView

FLUSH_S = 1.0
"""A process adds what it counted to the others' at most this often, so that a hit costs no second round trip."""


@runtime_checkable
class Countable(Protocol):
    """A cache that keeps counts beside its answers."""

    def count(self, amounts: Mapping[str, int]) -> None:
        """Add to the counts. Raises Unavailable."""
        ...

    def counts(self) -> dict[str, int]:
        """Name → count. Raises Unavailable."""
        ...

    def sizes(self, groups: Sequence[str]) -> list[int]:
        """Entries of each group that have not expired. Raises Unavailable."""
        ...


class Tally:
    """Counts of this process on their way to the cache. Safe for threads; what cannot be delivered is dropped."""

    def __init__(self, cache: object) -> None:
        self._cache = cache if isinstance(cache, Countable) else None
        self._lock = threading.Lock()
        self._waiting: dict[str, int] = {}
        self._flushed = 0.0

    def add(self, found: Answer) -> None:
        """Count one answer: hit, miss or off; and of those that waited, or took over evidence or completion, that, too."""
        names = [found.cache]
        for step in found.steps:
            if step.stage == "cache" and step.detail.get("waited"):
                names.append("wait")
            elif found.cache == "miss" and step.stage == "retrieve" and step.detail.get("from_cache"):
                names.append("evidence")
            elif found.cache == "miss" and step.stage == "llm" and step.detail.get("cached"):
                names.append("completion")
        with self._lock:
            for name in dict.fromkeys(names):
                self._waiting[name] = self._waiting.get(name, 0) + 1
            due = time.monotonic() - self._flushed >= FLUSH_S
        if due:
            self.flush()

    def flush(self) -> None:
        """Hand over what was counted."""
        with self._lock:
            amounts, self._waiting, self._flushed = self._waiting, {}, time.monotonic()
        if amounts and self._cache is not None:
            try:
                self._cache.count(amounts)
            except Unavailable:
                return

    def sizes(self, groups: Sequence[str]) -> list[int]:
        """Entries of each group; empty without a cache. Raises Unavailable."""
        return [] if self._cache is None else self._cache.sizes(groups)

    def view(self, groups: Sequence[str]) -> CacheView | None:
        """Counts of all processes since Redis holds them, and the size of these groups; None without a cache, or while it is away."""
        if self._cache is None:
            return None
        self.flush()
        try:
            counts = self._cache.counts()
            sizes = self._cache.sizes(groups)
        except Unavailable:
            return None
        return CacheView(
            hits=counts.get("hit", 0),
            misses=counts.get("miss", 0),
            waits=counts.get("wait", 0),
            evidence_hits=counts.get("evidence", 0),
            completion_hits=counts.get("completion", 0),
            entries=sum(sizes),
        )
