"""The sweep: what the broker lost, workers dropped or nobody sent goes out again. Safe to run twice at once."""

from __future__ import annotations

import secrets
from typing import Protocol

from pipeline.errors import Unavailable
from workers import queues
from workers.feeder import Feeder
from workers.ledger import sweeping

EPOCH_KEY = f"{queues.PREFIX}epoch"
EPOCH_TTL_S = 7 * 86400


class Broker(Protocol):
    """What the sweep asks of Redis; RabbitMQ answers None."""

    def depth(self, queue: str) -> int | None: ...

    def epoch(self) -> str | None:
        """The mark in the broker, or None when it is missing. Raises Unavailable."""
        ...

    def set_epoch(self, value: str) -> None: ...


def sweep(feeder: Feeder, broker: Broker) -> int:
    """One pass; returns how many batches were issued anew. A broker that is away leaves leases to be swept only."""
    issues = sweeping.expired(feeder.db)
    try:
        if _was_wiped(feeder, broker):
            issues += sweeping.wiped(feeder.db)
        else:
            issues += sweeping.lost(feeder.db, broker.depth)
    except Unavailable:
        return len(issues)
    feeder.send(issues)
    return len(issues)


def _was_wiped(feeder: Feeder, broker: Broker) -> bool:
    known, there = sweeping.epoch(feeder.db), broker.epoch()
    if known is not None and known == there:
        return False
    mark = known or secrets.token_hex(8)
    if known is None:
        sweeping.set_epoch(feeder.db, mark)
    broker.set_epoch(mark)
    return True
