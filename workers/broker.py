"""Redis as this project uses it: the broker's address, queue lengths, the epoch mark, who consumes what.

Everything here may be lost at any moment; every key has an expiry.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

from pipeline.errors import Unavailable
from pipeline.settings import Settings
from workers import queues
from workers.sweep import EPOCH_KEY, EPOCH_TTL_S

QUEUE_DB, CACHE_DB = 0, 1
"""Queues and answers live in databases of their own, so that purging one never touches the other."""
NODE_TTL_S = 20
HINT = "Start Redis, or correct DUJIANG_REDIS_URL; without it `dujiang up` starts its own server."


class Client(Protocol):
    """The part of redis-py that this project uses; its own types leave most answers open."""

    def ping(self) -> object: ...

    def llen(self, name: str) -> int: ...

    def getex(self, name: str, ex: int) -> bytes | None: ...

    def get(self, name: str) -> bytes | None: ...

    def set(self, name: str, value: str | bytes, ex: int | None = None, px: int | None = None, nx: bool = False) -> object: ...

    def delete(self, *names: str) -> int: ...

    def scan_iter(self, match: str) -> Iterator[bytes]: ...

    def mget(self, keys: Sequence[str]) -> list[bytes | None]: ...

    def close(self) -> None: ...


def with_db(url: str, number: int) -> str:
    """The same server, shifted to another database, for any of redis://, rediss:// and redis+socket://."""
    parts = urlsplit(url)
    if parts.scheme == "redis+socket":
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        query["virtual_host"] = str(int(query.get("virtual_host", "0") or 0) + number)
        return f"redis+socket://{parts.netloc}{parts.path}?{urlencode(query)}"
    base = parts.path.strip("/") or "0"
    return urlunsplit(parts._replace(path=f"/{int(base) + number}"))


def client_url(url: str) -> str:
    """The form that redis-py takes: unix:// for a socket."""
    parts = urlsplit(url)
    if parts.scheme != "redis+socket":
        return url
    query = parse_qs(parts.query)
    database = query.get("virtual_host", ["0"])[-1]
    return f"unix://{parts.netloc}{parts.path}?db={database}"


def connect(url: str, number: int = QUEUE_DB) -> Client:
    """A client that fails fast; nothing is sent before its first command."""
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    make = cast("Callable[..., Client]", Redis.from_url)  # pyright: ignore[reportUnknownMemberType]
    return make(client_url(with_db(url, number)), socket_timeout=5, socket_connect_timeout=3, health_check_interval=25, retry=Retry(NoBackoff(), 1))


@contextmanager
def typed() -> Generator[None]:
    """Turn every Redis failure into Unavailable."""
    from redis.exceptions import RedisError

    try:
        yield
    except (RedisError, OSError) as error:
        raise Unavailable(f"Redis does not answer: {type(error).__name__}", dependency=True, hint=HINT, code="redis_unavailable") from error


@dataclass(frozen=True, slots=True)
class Node:
    """One worker process as it announces itself."""

    name: str
    pid: int
    queues: tuple[str, ...]
    seen_at: float
    progress_at: float
    """When it last took or finished a batch."""


class RedisBroker:
    """Queue lengths, epoch and node announcements in one Redis."""

    def __init__(self, settings: Settings) -> None:
        self._redis = connect(settings.redis_url)
        self._own_broker = not settings.broker_url

    def ping(self) -> None:
        """Raises Unavailable."""
        with typed():
            self._redis.ping()

    def depth(self, queue: str) -> int | None:
        """Messages waiting in the broker; None when another broker carries the queues. Raises Unavailable."""
        if not self._own_broker:
            return None
        with typed():
            return self._redis.llen(f"{queues.PREFIX}{queue}")

    def epoch(self) -> str | None:
        """The mark that is lost when Redis is wiped; reading it prolongs it. Raises Unavailable."""
        with typed():
            value = self._redis.getex(EPOCH_KEY, ex=EPOCH_TTL_S)
        return value.decode() if value is not None else None

    def set_epoch(self, value: str) -> None:
        with typed():
            self._redis.set(EPOCH_KEY, value, ex=EPOCH_TTL_S)

    def announce(self, name: str, pid: int, served: Sequence[str]) -> None:
        """Say that a node is alive and what it consumes."""
        body = json.dumps({"pid": pid, "queues": list(served), "at": time.time()})
        with typed():
            self._redis.set(f"{queues.PREFIX}node.{name}", body, ex=NODE_TTL_S)

    def withdraw(self, name: str) -> None:
        with typed():
            self._redis.delete(f"{queues.PREFIX}node.{name}", f"{queues.PREFIX}progress.{name}")

    def progress(self, name: str) -> None:
        """Say that a node took or finished a batch."""
        with typed():
            self._redis.set(f"{queues.PREFIX}progress.{name}", repr(time.time()), ex=3600)

    def nodes(self) -> list[Node]:
        """Nodes that announced themselves lately. Raises Unavailable."""
        with typed():
            names = [key.decode().removeprefix(f"{queues.PREFIX}node.") for key in self._redis.scan_iter(f"{queues.PREFIX}node.*")]
            if not names:
                return []
            bodies = self._redis.mget([f"{queues.PREFIX}node.{name}" for name in names])
            marks = self._redis.mget([f"{queues.PREFIX}progress.{name}" for name in names])
        found: list[Node] = []
        for name, body, mark in zip(names, bodies, marks, strict=True):
            if body is not None:
                fields: Mapping[str, Any] = json.loads(body)
                found.append(Node(name, fields["pid"], tuple(fields["queues"]), fields["at"], float(mark or 0.0)))
        return sorted(found, key=lambda node: node.name)

    def consumers(self) -> dict[str, int]:
        """Queue → nodes that listen to it; every queue of ours is a key. Raises Unavailable."""
        counts = dict.fromkeys(queues.all_queues(), 0)
        for node in self.nodes():
            for queue in node.queues:
                counts[queue] = counts.get(queue, 0) + 1
        return counts

    def close(self) -> None:
        self._redis.close()
