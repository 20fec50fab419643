"""A connector's surroundings: a clock, waiting that can be stopped, limits and tokens that all workers share."""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress

from pipeline.errors import Unauthorised, Unavailable
from pipeline.settings import Settings
from workers import broker, queues, sealing
from workers.broker.redis import Client
from workers.ledger import notes
from workers.ledger.engine import Database
from workers.limits import Gate, Limits, Rule, shared_url

log = logging.getLogger("dujiang.limits")

MOMENT_S = 5.0
"""Longest wait for permission before the item goes back into its queue: shorter ones are cheaper to sit out than to be written down."""
STEP_S = 0.2
MARGIN_S = 5.0
REDIS_AWAY = "redis_unavailable"
MAKING_S = 30.0
"""Longest that others wait for the one who makes a token; if it died, another one does."""
LOOK_S = 0.05
RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


class Values:
    """Short-lived values that all processes share, sealed in Redis with an expiry; in this process alone where there is no Redis."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        url = shared_url(settings)
        self._redis = broker.connect(url, answer_s=2.0) if url else None
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._here: dict[str, tuple[str, float]] = {}

    def get(self, name: str, make: Callable[[], tuple[str, float]], stale: str) -> str:
        """The value, made when it is missing, over, or still `stale`. Raises what `make` raises."""
        with self._lock:
            lock = self._locks.setdefault(name, threading.Lock())
        with lock:
            value, until = self._here.get(name, ("", 0.0))
            if value and value != stale and time.monotonic() < until:
                return value
            try:
                return self._together(name, make, stale)
            except Unavailable as error:
                if error.code != REDIS_AWAY:
                    raise
                log.warning("a token of this process alone: Redis does not answer", extra={"code": error.code})
                return self._alone(name, make)

    def close(self) -> None:
        if self._redis is not None:
            self._redis.close()

    def _keep(self, name: str, value: str, usable_s: float) -> str:
        self._here[name] = (value, time.monotonic() + usable_s)
        return value

    def _alone(self, name: str, make: Callable[[], tuple[str, float]]) -> str:
        value, life_s = make()
        return self._keep(name, value, _usable(life_s))

    def _together(self, name: str, make: Callable[[], tuple[str, float]], stale: str) -> str:
        """Raises Unavailable with the code `REDIS_AWAY`, and what `make` raises."""
        if self._redis is None:
            return self._alone(name, make)
        until = time.monotonic() + MAKING_S
        while True:
            found = self._read(self._redis, name)
            if found is not None and found[0] != stale:
                return self._keep(name, *found)
            mine = secrets.token_hex(8)
            if self._locked(self._redis, name, mine) or time.monotonic() > until:
                return self._made(self._redis, name, make, stale, mine)
            time.sleep(LOOK_S)

    def _made(self, redis: Client, name: str, make: Callable[[], tuple[str, float]], stale: str, mine: str) -> str:
        try:
            # Somebody may have made it between the look and the lock.
            found = self._read(redis, name)
            if found is not None and found[0] != stale:
                return self._keep(name, *found)
            value, life_s = make()
            self._keep(name, value, _usable(life_s))
            with suppress(Unavailable):
                self._write(redis, name, value, _usable(life_s))
            return value
        finally:
            # Where that fails, the lock expires by itself.
            with suppress(Unavailable), broker.typed():
                redis.eval(RELEASE, 1, f"{_key(name)}.lock", mine)

    def _read(self, redis: Client, name: str) -> tuple[str, float] | None:
        """(value, seconds for which it can be used)."""
        with broker.typed():
            sealed, left_ms = redis.get(_key(name)), redis.pttl(_key(name))
        if sealed is None or left_ms <= 0:
            return None
        try:
            return sealing.unseal(self._settings, _key(name), sealed.decode())["value"], left_ms / 1000
        except Unauthorised:
            return None  # sealed on a host with another key: made anew

    def _write(self, redis: Client, name: str, value: str, usable_s: float) -> None:
        with broker.typed():
            redis.set(_key(name), sealing.seal(self._settings, _key(name), {"value": value}), px=max(1, int(usable_s * 1000)))

    def _locked(self, redis: Client, name: str, mine: str) -> bool:
        with broker.typed():
            return bool(redis.set(f"{_key(name)}.lock", mine, px=int(MAKING_S * 1000), nx=True))


def _key(name: str) -> str:
    return f"{queues.PREFIX}limit.value.{name}"


def _usable(life_s: float) -> float:
    """A token is replaced a little before its end: a request with it must still arrive."""
    return max(0.0, life_s - min(MARGIN_S, life_s / 10))


class Notebook:
    """A source's notes in the ledger."""

    def __init__(self, db: Database, source_id: str) -> None:
        self._db, self._source_id = db, source_id

    def read(self) -> Iterator[tuple[str, str]]:
        return notes.read(self._db, self._source_id)

    def write(self, changed: Mapping[str, str | None]) -> None:
        notes.write(self._db, self._source_id, changed)


class Around:
    """`Surroundings` of one source. Safe for threads.

    Args:
        kind: of the source.
        account: what its credentials are known by, the same for all sources that use them.
        check: raises Cancelled once the work was stopped.
        notebook: where the source's notes are kept.
    """

    def __init__(self, limits: Limits, values: Values, kind: str, account: str, check: Callable[[], None], notebook: Notebook) -> None:
        self._limits, self._values, self._notebook = limits, values, notebook
        self._kind, self._account, self._check = kind, account, check

    def now(self) -> float:
        """See `Surroundings`."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """See `Surroundings`."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._check()
            time.sleep(min(STEP_S, left))

    def check(self) -> None:
        """See `Surroundings`."""
        self._check()

    @contextmanager
    def acquire(self, route: str, *, rate: float, burst: float, slots: int = 0) -> Generator[None]:
        """See `Surroundings`. What is raised inside tells all others how the source is."""
        gate = Gate(self._limits.buckets, self._limits, self._scope(route), Rule(rate, burst, 0.0, slots), self._kind, sleep=self.sleep)
        with gate.request(patience_s=MOMENT_S):
            yield

    def blocked(self, route: str, seconds: float) -> None:
        """See `Surroundings`."""
        self._limits.throttled("source", self._kind)
        self._limits.buckets.close_for(self._scope(route), seconds)

    def shared(self, name: str, make: Callable[[], tuple[str, float]], *, stale: str = "") -> str:
        """See `Surroundings`."""
        return self._values.get(f"{self._kind}.{self._account}.{name}", make, stale)

    def remembered(self) -> Iterator[tuple[str, str]]:
        """See `Surroundings`."""
        return self._notebook.read()

    def remember(self, notes: Mapping[str, str | None]) -> None:
        """See `Surroundings`."""
        self._notebook.write(notes)

    def _scope(self, route: str) -> str:
        if route.startswith("//"):
            return f"source.{self._kind}.{route}"
        return f"source.{self._kind}.{self._account}.{route}"


def account(settings: Settings, source_id: str, sealed: str) -> str:
    """What a source's credentials are known by: a hash under the installation's key, or the source's id where it has none.

    The same on every host that has the same key.
    """
    try:
        opened = sealing.read(sealing.unseal(settings, source_id, sealed))
    except Unauthorised:
        return source_id
    if not opened:
        return source_id
    text = "\n".join(f"{name}={opened[name]}" for name in sorted(opened))
    return hashlib.blake2b(text.encode(), digest_size=8, key=sealing.key(settings)).hexdigest()
