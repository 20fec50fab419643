"""Counts that a process keeps for itself until Prometheus asks."""

from __future__ import annotations

import threading


class Figures:
    """Counters by label values, from 0 at the start of the process. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, ...], float] = {}

    def add(self, *labels: str, amount: float = 1.0) -> None:
        with self._lock:
            self._counts[labels] = self._counts.get(labels, 0.0) + amount

    def read(self) -> dict[tuple[str, ...], float]:
        with self._lock:
            return dict(self._counts)
