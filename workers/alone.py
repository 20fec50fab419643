"""A connector's surroundings where no other process needs to be asked: limits and tokens of this one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pipeline.errors import RateLimited

MOMENT_S = 5.0
"""Longest wait for permission before the item goes back into its queue."""
STEP_S = 0.2


@dataclass
class Common:
    """What all connectors of one source in this process have in common."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    free_at: dict[str, float] = field(default_factory=dict[str, float])
    values: dict[str, tuple[str, float]] = field(default_factory=dict[str, tuple[str, float]])


class Alone:
    """One source in one process. Safe for threads."""

    def __init__(self, common: Common, check: Callable[[], None]) -> None:
        self._check = check
        self._lock, self._free_at, self._values = common.lock, common.free_at, common.values

    def now(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._check()
            time.sleep(min(STEP_S, left))

    def check(self) -> None:
        self._check()

    @contextmanager
    def acquire(self, route: str, *, rate: float, burst: float, slots: int = 0) -> Generator[None]:
        with self._lock:
            now = time.monotonic()
            start = max(self._free_at.get(route, 0.0), now - (burst - 1) / rate)
            wait = start - now
            if wait > MOMENT_S:
                raise RateLimited(f"no request on {route} for {wait:.0f} s", after=wait, scope=route)
            self._free_at[route] = start + 1.0 / rate
        if wait > 0:
            self.sleep(wait)
        yield

    def blocked(self, route: str, seconds: float) -> None:
        with self._lock:
            self._free_at[route] = max(self._free_at.get(route, 0.0), time.monotonic() + seconds)

    def shared(self, name: str, make: Callable[[], tuple[str, float]], *, stale: str = "") -> str:
        with self._lock:
            value, until = self._values.get(name, ("", 0.0))
            if not value or value == stale or time.monotonic() >= until:
                value, life = make()
                self._values[name] = (value, time.monotonic() + life)
            return value
