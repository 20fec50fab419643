"""Answers kept by key: in Redis for all processes, or in this process's memory.

Losing a cache costs time and nothing else. Every key expires by itself, the group indexes and the locks
of a single flight included, so that nothing written here outlives its use.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol, cast

from pipeline.errors import Unavailable

LOCK_S = 10.0
"""Seconds after which the lock of a dead leader frees itself; a living one renews it every third of that."""
LONGEST_FLIGHT_S = 900.0
"""A leader that computes longer than this no longer holds others up."""
COUNTED_S = 30 * 86_400.0
FIRST_POLL_S, LAST_POLL_S = 0.01, 0.2

PUT = """
local now = redis.call('TIME')
local ms = now[1] * 1000 + math.floor(now[2] / 1000)
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
if KEYS[2] then
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', ms)
  redis.call('ZADD', KEYS[2], ms + ARGV[2], KEYS[1])
  if redis.call('PTTL', KEYS[2]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[2], ARGV[2]) end
end
return 1
"""
PURGE = """
local gone = 0
while true do
  local keys = redis.call('ZRANGE', KEYS[1], 0, 999)
  if #keys == 0 then return gone end
  gone = gone + redis.call('UNLINK', unpack(keys))
  redis.call('ZREM', KEYS[1], unpack(keys))
end
"""
COUNT = """
for i = 2, #ARGV, 2 do redis.call('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1]) end
return redis.call('PEXPIRE', KEYS[1], ARGV[1])
"""
COUNTS = "return redis.call('HGETALL', KEYS[1])"
SIZES = """
local now = redis.call('TIME')
local ms = now[1] * 1000 + math.floor(now[2] / 1000)
local found = {}
for i, key in ipairs(KEYS) do found[i] = redis.call('ZCOUNT', key, ms, '+inf') end
return found
"""
RENEW = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0"
RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


class RedisClient(Protocol):
    """The part of ``redis.Redis`` that is used; any client with these methods will do."""

    def get(self, name: str, /) -> object: ...

    def set(self, name: str, value: str, /, *, nx: bool, px: int) -> object: ...

    def exists(self, name: str, /) -> object: ...

    def eval(self, script: str, numkeys: int, /, *keys_and_args: str | bytes) -> object: ...


class RedisCache:
    """Cache shared by every process that uses the same server.

    Args:
        client: connected lazily by its owner, who also closes it. Its socket timeouts bound each call.
        prefix: in front of every key, so that a server can be shared.

    Every method raises Unavailable(dependency=True) when the server is away.
    """

    def __init__(self, client: RedisClient, prefix: str = "dujiang.cache.", *, lock_s: float = LOCK_S) -> None:
        self._client = client
        self._prefix = prefix
        self._lock_s = lock_s

    def get(self, key: str) -> bytes | None:
        try:
            value = self._client.get(self._prefix + key)
        except _faults() as error:
            raise _away(error) from error
        return value.encode() if isinstance(value, str) else cast("bytes | None", value)

    def put(self, key: str, value: bytes, *, ttl_s: float, group: str = "") -> None:
        keys = [self._prefix + key, *([self._group(group)] if group else [])]
        self._eval(PUT, keys, value, _milliseconds(ttl_s))

    def purge(self, group: str) -> int:
        return self._eval(PURGE, [self._group(group)])

    def count(self, amounts: Mapping[str, int]) -> None:
        """Add to counts that all processes share; they are forgotten when nobody counts for a month."""
        given = [part for name, number in amounts.items() for part in (name, str(number))]
        self._eval(COUNT, [f"{self._prefix}counts"], _milliseconds(COUNTED_S), *given)

    def counts(self) -> dict[str, int]:
        """Name → count."""
        try:
            found = cast("list[object]", self._client.eval(COUNTS, 1, f"{self._prefix}counts"))
        except _faults() as error:
            raise _away(error) from error
        told = [item.decode() if isinstance(item, bytes) else str(item) for item in found]
        return {name: int(number) for name, number in zip(told[::2], told[1::2], strict=True)}

    def sizes(self, groups: Sequence[str]) -> list[int]:
        """Entries of each group that have not expired."""
        if not groups:
            return []
        keys = [self._group(group) for group in groups]
        try:
            return [int(cast("int", size)) for size in cast("list[object]", self._client.eval(SIZES, len(keys), *keys))]
        except _faults() as error:
            raise _away(error) from error

    @contextmanager
    def flight(self, key: str, *, wait_s: float) -> Generator[bool]:
        lock, token = f"{self._prefix}flight.{key}", secrets.token_hex(8)
        if not self._acquire(lock, token):
            self._await(lock, wait_s)
            yield False
            return
        landed = threading.Event()
        keeper = threading.Thread(target=self._keep, args=(lock, token, landed), name="cache-flight", daemon=True)
        keeper.start()
        try:
            yield True
        finally:
            landed.set()
            keeper.join()
            try:
                self._eval(RELEASE, [lock], token)
            except Unavailable:
                pass  # the lock expires by itself, and the answer is there already

    def _acquire(self, lock: str, token: str) -> bool:
        try:
            return bool(self._client.set(lock, token, nx=True, px=int(_milliseconds(self._lock_s))))
        except _faults() as error:
            raise _away(error) from error

    def _await(self, lock: str, wait_s: float) -> None:
        """Return when the lock is gone or the time is over."""
        until, pause = time.monotonic() + wait_s, FIRST_POLL_S
        while (left := until - time.monotonic()) > 0:
            try:
                if not self._client.exists(lock):
                    return
            except _faults() as error:
                raise _away(error) from error
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, LAST_POLL_S)

    def _keep(self, lock: str, token: str, landed: threading.Event) -> None:
        """Renew the lock until the leader is done, so that its expiry only ever means a death."""
        until = time.monotonic() + LONGEST_FLIGHT_S
        while not landed.wait(self._lock_s / 3) and time.monotonic() < until:
            try:
                if not self._eval(RENEW, [lock], token, _milliseconds(self._lock_s)):
                    return
            except Unavailable:
                continue

    def _eval(self, script: str, keys: list[str], *args: str | bytes) -> int:
        try:
            return int(cast("int", self._client.eval(script, len(keys), *keys, *args)))
        except _faults() as error:
            raise _away(error) from error

    def _group(self, group: str) -> str:
        return f"{self._prefix}group.{group}"


class MemoryCache:
    """Cache of one process, for one-shot commands and tests; the `entries` used last are kept."""

    def __init__(self, entries: int = 1024) -> None:
        self._entries = entries
        self._kept: OrderedDict[str, tuple[bytes, float, set[str]]] = OrderedDict()
        self._flying: dict[str, threading.Event] = {}
        self._lock = threading.Lock()

    def get(self, key: str) -> bytes | None:
        with self._lock:
            value, until, _ = self._kept.get(key, (None, 0.0, set[str]()))
            if value is None or until <= time.monotonic():
                self._kept.pop(key, None)
                return None
            self._kept.move_to_end(key)
            return value

    def put(self, key: str, value: bytes, *, ttl_s: float, group: str = "") -> None:
        with self._lock:
            groups = self._kept.pop(key, (b"", 0.0, set[str]()))[2]
            self._kept[key] = (value, time.monotonic() + ttl_s, groups | {group} if group else groups)
            while len(self._kept) > self._entries:
                self._kept.popitem(last=False)

    def purge(self, group: str) -> int:
        with self._lock:
            gone = [key for key, kept in self._kept.items() if group in kept[2]]
            for key in gone:
                del self._kept[key]
            return len(gone)

    @contextmanager
    def flight(self, key: str, *, wait_s: float) -> Generator[bool]:
        with self._lock:
            ahead = self._flying.get(key)
            landed = self._flying.setdefault(key, threading.Event())
        if ahead is not None:
            ahead.wait(wait_s)
            yield False
            return
        try:
            yield True
        finally:
            with self._lock:
                del self._flying[key]
            landed.set()


def _milliseconds(seconds: float) -> str:
    """At least 1: Redis refuses an expiry of 0."""
    return str(max(1, int(seconds * 1000)))


def _faults() -> tuple[type[Exception], ...]:
    from redis.exceptions import RedisError

    return RedisError, OSError


def _away(error: Exception) -> Unavailable:
    return Unavailable(
        f"the answer cache did not answer ({type(error).__name__})",
        dependency=True,
        hint="Answers are computed anew until Redis is back.",
        code="cache_unavailable",
    )
