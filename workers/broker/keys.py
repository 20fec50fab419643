"""Keys of ours in Redis that would stay for ever, outside of what the broker's own library keeps."""

from __future__ import annotations

from typing import Protocol, cast

from pipeline.settings import Settings
from workers import queues
from workers.broker.redis import CACHE_DB, QUEUE_DB, connect, typed

BROKERS = ("dujiang._kombu", "dujiang.dujiang.", "dujiang.unacked")
"""Key prefixes of kombu: bindings, the queues themselves, and messages that are not yet acknowledged."""
DAY_S = 86_400


class _Keys(Protocol):
    def ttl(self, name: bytes | str) -> int: ...

    def expire(self, name: str, time: int) -> object: ...


def endless(settings: Settings) -> list[tuple[int, str]]:
    """(database, key) of each; empty when there is no Redis. Raises Unavailable."""
    found: list[tuple[int, str]] = []
    if not settings.redis_url:
        return found
    for database in (QUEUE_DB, CACHE_DB):
        client = connect(settings.redis_url, database)
        try:
            with typed():
                for raw in client.scan_iter(f"{queues.PREFIX}*"):
                    name = raw.decode("utf-8", "replace")
                    if not name.startswith(BROKERS) and cast("_Keys", client).ttl(raw) == -1:
                        found.append((database, name))
        finally:
            client.close()
    return sorted(found)


def let_expire(settings: Settings, database: int, name: str) -> None:
    """Give a key a day to live. Raises Unavailable."""
    client = connect(settings.redis_url, database)
    try:
        with typed():
            cast("_Keys", client).expire(name, DAY_S)
    finally:
        client.close()
