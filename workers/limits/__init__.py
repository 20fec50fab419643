"""Limits that all workers share: requests and tokens by time, requests at once, and services that are left alone for a while."""

from __future__ import annotations

import hashlib
import itertools
import logging
import secrets
import threading
import time
from collections.abc import Mapping

from pipeline.contracts import Stage
from pipeline.errors import PipelineError, Unavailable
from pipeline.protocols import Service
from pipeline.settings import Settings
from workers import broker
from workers.ledger import nodes
from workers.ledger.engine import Database
from workers.ledger.forming import Window
from workers.limits import counts
from workers.limits.counts import Counts
from workers.limits.fallback import Fallback
from workers.limits.gate import Gate
from workers.limits.local import LocalBuckets
from workers.limits.rules import HEADROOM, RENEW_S, Buckets, Outcome, Rule
from workers.limits.shared import RedisBuckets

__all__ = ["Gate", "Limits", "Rule", "pace", "shared_url"]

DEBT_S = 1.0
"""Requests that would have to wait longer are not made ready in the first place."""
COUNTED_S = 10.0
"""How long the number of worker nodes is believed."""

log = logging.getLogger("dujiang.limits")


def shared_url(settings: Settings) -> str:
    """The Redis where limits are kept; empty where every process keeps its own."""
    return settings.redis_url or (settings.broker_url if broker.is_redis(settings) else "")


class Limits:
    """The gates of one process, their slots and their counts. Safe for threads, not for forks."""

    def __init__(self, settings: Settings, db: Database) -> None:
        self._db = db
        self.counts = Counts(db)
        url = shared_url(settings)
        local = LocalBuckets(self._nodes)
        self._shared = RedisBuckets(url) if url else None
        self.buckets: Buckets = Fallback(self._shared, local, lambda: self.counts.add(counts.ALONE)) if self._shared else local
        self._lock = threading.Lock()
        self._held: dict[str, set[str]] = {}
        self._keeper: threading.Thread | None = None
        self._ended = threading.Event()
        self._token, self._numbers = secrets.token_hex(6), itertools.count()
        self._node_count, self._nodes_at = 1, float("-inf")

    def gate(self, service: Service) -> Gate:
        """The gate of a service; gates of equal part, provider and credential share their limits with each other and with other processes."""
        digest = hashlib.blake2b(service.credential.encode(), digest_size=6).hexdigest()
        rule = Rule(service.rps * HEADROOM, 1.0, service.tpm * HEADROOM, service.concurrency)
        return Gate(self.buckets, self, f"{service.part}.{service.provider}.{digest}", rule, service.shown)

    def figures(self) -> dict[str, float]:
        """``part.provider`` → 1 while it is left alone, else 0; empty where limits are not shared, or while Redis is away."""
        found: dict[str, float] = {}
        if self._shared is None:
            return found
        try:
            for scope in self._shared.scopes():
                name = ".".join(scope.split(".")[:2])
                found[name] = max(found.get(name, 0.0), float(bool(self._shared.look(scope).why)))
        except Unavailable:
            return {}
        return found

    def close(self) -> None:
        """Write what was counted and let go of Redis. Safe to call twice."""
        self._ended.set()
        self.counts.flush()
        if self._shared is not None:
            self._shared.close()

    # ------------------------------------------------------------ what gates tell

    def waited(self, part: str, provider: str, seconds: float) -> None:
        self.counts.add(counts.WAITS, provider)
        if seconds:
            self.counts.add(counts.WAITED_S, provider, by=seconds)

    def throttled(self, part: str, provider: str) -> None:
        self.counts.add(counts.THROTTLES, provider)

    def closed(self, part: str, provider: str, why: Outcome, seconds: float) -> None:
        log.warning("%s %s is left alone", part, provider, extra={"code": why.value, "seconds": round(seconds, 2)})
        if why is Outcome.FAILED:
            self.counts.add(counts.CLOSINGS, part)

    def holder(self) -> str:
        return f"{self._token}-{next(self._numbers)}"

    def hold(self, scope: str, holder: str) -> None:
        """Renew a slot until it is dropped."""
        with self._lock:
            self._held.setdefault(scope, set()).add(holder)
            if self._keeper is None:
                self._keeper = threading.Thread(target=self._keep, name="slots", daemon=True)
                self._keeper.start()

    def drop(self, scope: str, holder: str) -> None:
        with self._lock:
            self._held[scope].discard(holder)

    def _keep(self) -> None:
        while not self._ended.wait(RENEW_S):
            with self._lock:
                held = {scope: sorted(holders) for scope, holders in self._held.items() if holders}
            for scope, holders in held.items():
                self.buckets.renew(scope, holders)

    def _nodes(self) -> int:
        """How many worker nodes there are, to divide limits by while they cannot be shared."""
        if time.monotonic() - self._nodes_at > COUNTED_S:
            self._nodes_at = time.monotonic()
            try:
                self._node_count = max(1, sum(node.role == "worker" and _embeds(node.queues) for node in nodes.living(self._db)))
            except PipelineError:
                return self._node_count
        return self._node_count


def _embeds(queues: tuple[str, ...]) -> bool:
    return any(Stage.EMBED.value in queue for queue in queues)


def pace(windows: Mapping[Stage, Window], gates: Mapping[Stage, Gate]) -> Mapping[Stage, Window]:
    """Windows without the stages whose service is left alone: their documents stay ready. Who may probe gets one batch."""
    found = dict(windows)
    for stage, gate in gates.items():
        window, standing = windows[stage], gate.standing()
        if standing.left_s > 0 or standing.debt_s > DEBT_S:
            del found[stage]
        elif standing.why:
            found[stage] = Window(1, window.chunks)
        elif gate.rule.slots:
            found[stage] = Window(min(window.batches, gate.rule.slots + 2), window.chunks)
    return found
