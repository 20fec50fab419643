"""The bytes of what was deleted: cached answers, shared packs, merged indexes, logs of databases.

Each step is a row in the ledger until it is done, so that whoever is killed, or finds a server away, leaves it to the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, cast

from pipeline.errors import PipelineError, Unavailable
from workers import runfile, server
from workers.broker import QUEUE_DB, connect, typed
from workers.ledger import outstanding, removal, tallies
from workers.ledger.outstanding import CACHE, INDEX, LEDGER, PACK, REDIS, Chore
from workers.runtime import Runtime

SETTLE_S = 30.0
"""How long the housekeeping lets deletions gather, so that many of them cost one merge and one rewrite."""
REWRITE_S = 20.0
POLL_S = 0.05

SAID: Mapping[str, str] = {
    outstanding.TENANT: "the tenant",
    outstanding.COLLECTION: "collections in the store and the ledger",
    outstanding.SOURCE: "the source's documents",
    outstanding.DOCUMENTS: "documents in the store and the ledger",
    CACHE: "cached answers",
    PACK: "packs of artifacts",
    INDEX: "the index's files",
    LEDGER: "the ledger's log",
    REDIS: "the log of the own Redis server",
}
"""Kind of chore → what still holds something of what was deleted."""


class _Rewriter(Protocol):
    """The part of redis-py that is needed to have an append-only file written anew."""

    def execute_command(self, *args: str) -> object: ...

    def info(self, section: str) -> Mapping[str, object]: ...

    def close(self) -> None: ...


def erase(runtime: Runtime, *, before: float | None = None) -> tuple[str, ...]:
    """Do what is outstanding, each step on its own; gives what could not be done now, as `SAID`.

    Args:
        before: only what was asked for until then, in seconds since the epoch.
    Raises Unavailable when the ledger is away.
    """
    # In this order: emptying the cache and scrubbing packs write into logs that are emptied last.
    for kind, step in _STEPS:
        for chore in outstanding.listed(runtime.db, kind):
            if before is None or chore.since <= before:
                _attempt(runtime, chore, step)
    return left(runtime)


def left(runtime: Runtime) -> tuple[str, ...]:
    """What still holds something of what was deleted, as `SAID`."""
    kinds = {chore.kind for chore in outstanding.listed(runtime.db)}
    return tuple(text for kind, text in SAID.items() if kind in kinds)


def _attempt(runtime: Runtime, chore: Chore, step: Callable[[Runtime, str], bool]) -> None:
    try:
        if step(runtime, chore.name):
            outstanding.done(runtime.db, chore)
    except PipelineError:
        return  # it stays in the ledger, and whoever asks is told


def _cache(runtime: Runtime, group: str) -> bool:
    if runtime.cache is not None:
        try:
            runtime.cache.purge(group)
        except PipelineError:
            tallies.one_more(runtime.db, tallies.UNPURGED)
            return False
    elif runtime.settings.cache_ttl and _own_data(runtime):
        return False  # answers are in the file of a server that is not running
    with runtime.db.write() as connection:
        outstanding.ask(connection, REDIS, [outstanding.ITSELF], runtime.db.now(connection))
    return True


def _pack(runtime: Runtime, pack: str) -> bool:
    removal.drop_packs(runtime.db, runtime.artifacts, [pack])
    return True


def _index(runtime: Runtime, name: str) -> bool:
    runtime.open_store(runtime.settings.store_url, writer=True).expunge(name)
    return True


def _ledger(runtime: Runtime, _: str) -> bool:
    return runtime.db.expunge()


def _redis(runtime: Runtime, _: str) -> bool:
    """Have the own server's append-only file written anew; another's is its owner's affair."""
    if not _own_data(runtime):
        return True
    if not runtime.settings.redis_url:
        return False
    if str(server.socket_path(runtime.settings.home)) not in runtime.settings.redis_url:
        return True
    client = cast("_Rewriter", connect(runtime.settings.redis_url, QUEUE_DB))
    try:
        with typed():
            _await_rewrite(client)
            client.execute_command("BGREWRITEAOF")
            _await_rewrite(client)
            return client.info("persistence").get("aof_last_bgrewrite_status") == "ok"
    finally:
        client.close()


def _await_rewrite(client: _Rewriter) -> None:
    until = time.monotonic() + REWRITE_S
    while True:
        state = client.info("persistence")
        if not state.get("aof_rewrite_in_progress") and not state.get("aof_rewrite_scheduled"):
            return
        if time.monotonic() > until:
            raise Unavailable("Redis is still writing its file anew", dependency=True, code="redis_busy")
        time.sleep(POLL_S)


def _own_data(runtime: Runtime) -> bool:
    """Whether a server of our own ever kept something in this data folder."""
    return bool(runtime.settings.home) and (runfile.folder(runtime.settings.home) / "redis").is_dir()


_STEPS: Sequence[tuple[str, Callable[[Runtime, str], bool]]] = (
    (CACHE, _cache),
    (PACK, _pack),
    (INDEX, _index),
    (LEDGER, _ledger),
    (REDIS, _redis),
)
