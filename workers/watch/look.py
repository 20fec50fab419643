"""What status, doctor and metrics all ask first: broker and nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pipeline.errors import PipelineError, Unavailable
from workers import broker
from workers.broker import Depth
from workers.ledger import nodes
from workers.ledger.batches import CODE_VERSION
from workers.ledger.nodes import Node
from workers.runtime import Runtime

SWEPT_S = 30.0
"""Older than this, nobody sweeps any more: lost messages stay lost."""
SKEW_S = 5.0
UNFINISHED_S = 1800.0
"""Deletions that hold something for longer than this, and builds that have not moved for as long, wait for a person."""


@dataclass(frozen=True, slots=True)
class Carrier:
    """The broker at one look; None where it does not answer, or where nothing runs and none is given."""

    depths: Mapping[str, Depth] | None
    consumers: Mapping[str, int] | None
    unacked: int | None


def carrier(runtime: Runtime) -> Carrier:
    """Asks the broker once."""
    settings = runtime.settings
    if broker.is_redis(settings) and not (settings.broker_url or settings.redis_url):
        return Carrier(None, None, None)
    try:
        depths = runtime.broker.depths()
        return Carrier(depths, broker.merged(depths, nodes.consumers(runtime.db)), runtime.broker.unacked())
    except Unavailable:
        return Carrier(None, None, None)


def without_redis(runtime: Runtime) -> bool:
    """True when another broker carries the messages and no Redis is given for the rest."""
    return not runtime.settings.redis_url and not broker.is_redis(runtime.settings)


def dependencies(runtime: Runtime) -> Iterator[tuple[str, str]]:
    """(part, what is wrong with it)."""
    yield from store(runtime)
    try:
        runtime.artifacts.shelf.ping()
    except Unavailable as error:
        yield "artifacts", error.detail


def store(runtime: Runtime) -> Iterator[tuple[str, str]]:
    """The index: its name and what is wrong with it."""
    if runtime.settings.store_url.startswith("elasticsearch"):
        try:
            runtime.reader_store.frequencies("dujiang-readiness-g0", ())
        except Unavailable as error:
            yield "store", error.detail
        except PipelineError:
            return


def sweep_age(living: list[Node]) -> float | None:
    """Seconds since anybody swept; None when nobody who does has been seen for an hour."""
    ages = [node.progress_s for node in living if node.role in ("supervisor", "beat")]
    return min(ages) if ages else None


def strangers(living: list[Node]) -> list[Node]:
    """Nodes of another code version than this process's."""
    return [node for node in living if node.code_version != CODE_VERSION]


def skewed(living: list[Node]) -> list[Node]:
    """Nodes whose host's clock is not the ledger's."""
    return [node for node in living if abs(node.skew_s) > SKEW_S]
