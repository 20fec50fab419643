"""Redis as this project uses it: the address of queues and of answers, queue lengths, the epoch mark.

Everything here may be lost at any moment; every key has an expiry.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol, cast
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

from pipeline.errors import Unavailable
from pipeline.settings import Settings
from workers import queues
from workers.broker.protocol import Depth
from workers.sweep import EPOCH_KEY, EPOCH_TTL_S

QUEUE_DB, CACHE_DB = 0, 1
"""Queues and answers live in databases of their own, so that purging one never touches the other."""
HINT = "Start Redis, or correct DUJIANG_REDIS_URL; without it `dujiang up` starts its own server."


class Client(Protocol):
    """The part of redis-py that this project uses; its own types leave most answers open."""

    def ping(self) -> object: ...

    def llen(self, name: str) -> int: ...

    def hlen(self, name: str) -> int: ...

    def getex(self, name: str, ex: int) -> bytes | None: ...

    def get(self, name: str) -> bytes | None: ...

    def set(self, name: str, value: str | bytes, ex: int | None = None, px: int | None = None, nx: bool = False) -> object: ...

    def pttl(self, name: str) -> int: ...

    def eval(self, script: str, numkeys: int, *keys_and_args: str) -> object: ...

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


def connect(url: str, number: int = QUEUE_DB, *, answer_s: float = 5.0) -> Client:
    """A client that fails fast; nothing is sent before its first command."""
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    make = cast("Callable[..., Client]", Redis.from_url)  # pyright: ignore[reportUnknownMemberType]
    return make(
        client_url(with_db(url, number)),
        socket_timeout=answer_s,
        socket_connect_timeout=min(3.0, answer_s),
        health_check_interval=25,
        retry=Retry(NoBackoff(), 1),
    )


@contextmanager
def typed() -> Generator[None]:
    """Turn every Redis failure into Unavailable."""
    from redis.exceptions import RedisError

    try:
        yield
    except (RedisError, OSError) as error:
        raise Unavailable(f"Redis does not answer: {type(error).__name__}", dependency=True, hint=HINT, code="redis_unavailable") from error


class RedisBroker:
    """Queue lengths and epoch mark in the Redis, or Valkey, that carries the messages."""

    def __init__(self, settings: Settings) -> None:
        self._redis = connect(settings.broker_url or settings.redis_url)

    def ping(self) -> None:
        """Raises Unavailable."""
        with typed():
            self._redis.ping()

    def depth(self, queue: str) -> int | None:
        """Messages waiting in a queue. Raises Unavailable."""
        with typed():
            return self._redis.llen(f"{queues.PREFIX}{queue}")

    def depths(self) -> Mapping[str, Depth]:
        """Raises Unavailable."""
        with typed():
            return {queue: Depth(self._redis.llen(f"{queues.PREFIX}{queue}")) for queue in queues.declared()}

    def unacked(self) -> int | None:
        """Raises Unavailable."""
        with typed():
            return self._redis.hlen(f"{queues.PREFIX}unacked")

    def epoch(self) -> str | None:
        """The mark that is lost when Redis is wiped; reading it prolongs it. Raises Unavailable."""
        with typed():
            value = self._redis.getex(EPOCH_KEY, ex=EPOCH_TTL_S)
        return value.decode() if value is not None else None

    def set_epoch(self, value: str) -> None:
        with typed():
            self._redis.set(EPOCH_KEY, value, ex=EPOCH_TTL_S)

    def close(self) -> None:
        self._redis.close()
