"""Shared limits as long as Redis answers, else this process's own: work never stops for them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from pipeline.errors import Unavailable
from workers.limits.local import LocalBuckets
from workers.limits.rules import Buckets, Closing, Outcome, Rule, Standing, Take
from workers.limits.shared import RedisBuckets

T = TypeVar("T")
AGAIN_S = 5.0
"""How long Redis is not asked again after it did not answer; then one thread tries."""

log = logging.getLogger("dujiang.limits")


class Fallback:
    """`Buckets` that never raise."""

    def __init__(self, shared: RedisBuckets, local: LocalBuckets, lost: Callable[[], None]) -> None:
        self._shared, self._local, self._lost = shared, local, lost
        self._lock = threading.Lock()
        self._away = False
        self._again_at = 0.0

    def take(self, scope: str, rule: Rule, holder: str, *, tokens: int, patience_s: float, paid: bool) -> Take:
        """See `Buckets`."""
        return self._on(lambda buckets: buckets.take(scope, rule, holder, tokens=tokens, patience_s=patience_s, paid=paid))

    def report(self, scope: str, rule: Rule, holder: str, outcome: Outcome, *, after_s: float | None, tokens: int, probe: bool) -> Closing:
        """See `Buckets`."""
        return self._on(lambda buckets: buckets.report(scope, rule, holder, outcome, after_s=after_s, tokens=tokens, probe=probe))

    def close_for(self, scope: str, seconds: float) -> None:
        """See `Buckets`."""
        self._on(lambda buckets: buckets.close_for(scope, seconds))

    def renew(self, scope: str, holders: list[str]) -> None:
        """See `Buckets`."""
        self._on(lambda buckets: buckets.renew(scope, holders))

    def look(self, scope: str) -> Standing:
        """See `Buckets`."""
        return self._on(lambda buckets: buckets.look(scope))

    def _on(self, step: Callable[[Buckets], T]) -> T:
        if self._away:
            with self._lock:
                if time.monotonic() < self._again_at:
                    return step(self._local)
                self._again_at = time.monotonic() + AGAIN_S
        try:
            done = step(self._shared)
        except Unavailable as error:
            self._say_away(error)
            return step(self._local)
        if self._away:
            self._away = False
            log.info("limits are shared again")
        return done

    def _say_away(self, error: Unavailable) -> None:
        with self._lock:
            self._again_at = time.monotonic() + AGAIN_S
            newly, self._away = not self._away, True
        if newly:
            log.warning("%s; until it does, this process keeps limits of its own", error.detail, extra={"code": error.code})
            self._lost()
