"""What limits cost: counted here, added to the ledger's tallies now and then, so that whoever is asked for metrics sees all processes."""

from __future__ import annotations

import threading
import time

from pipeline.errors import Unavailable
from workers.ledger import tallies
from workers.ledger.engine import Database

WAITS, WAITED_S, THROTTLES, CLOSINGS, ALONE = "provider_waits", "provider_wait_seconds", "provider_throttles", "breaker_openings", "limits_alone"
FLUSH_S = 10.0


class Counts:
    """Safe for threads."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._lock = threading.Lock()
        self._counted: dict[tuple[str, tuple[str, ...]], float] = {}
        self._flushed_at = time.monotonic()

    def add(self, name: str, *labels: str, by: float = 1.0) -> None:
        """Count, and write what has gathered when it is time. A ledger that is away gets it later."""
        with self._lock:
            self._counted[name, labels] = self._counted.get((name, labels), 0.0) + by
            due = time.monotonic() - self._flushed_at >= FLUSH_S
        if due:
            self.flush()

    def flush(self) -> None:
        """Write what has gathered."""
        with self._lock:
            counted, self._counted = self._counted, {}
            self._flushed_at = time.monotonic()
        if not counted:
            return
        try:
            with self._db.write() as connection:
                tallies.add(connection, counted)
        except Unavailable:
            with self._lock:
                for key, value in counted.items():
                    self._counted[key] = self._counted.get(key, 0.0) + value
