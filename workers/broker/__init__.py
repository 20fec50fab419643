"""The brokers that carry the messages: Redis (or Valkey) and RabbitMQ. What they hold may be lost at any moment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipeline.errors import BadRequest
from pipeline.settings import Settings
from workers import queues
from workers.broker.protocol import Broker, Depth
from workers.broker.redis import CACHE_DB, HINT, QUEUE_DB, RedisBroker, client_url, connect, typed, with_db
from workers.ledger import nodes

if TYPE_CHECKING:
    from workers.ledger.engine import Database

__all__ = [
    "Broker",
    "CACHE_DB",
    "Depth",
    "HINT",
    "QUEUE_DB",
    "RedisBroker",
    "client_url",
    "connect",
    "consumers",
    "is_redis",
    "kind",
    "merged",
    "open_broker",
    "typed",
    "with_db",
]

SCHEMES = frozenset({"", "redis", "rediss", "redis+socket", "amqp", "amqps"})


def is_redis(settings: Settings) -> bool:
    """True when Redis carries the messages. Raises BadRequest for a broker that is none of ours."""
    scheme = settings.broker_url.partition(":")[0]
    if scheme not in SCHEMES:
        raise BadRequest(f"there is no broker for {scheme}://", hint="DUJIANG_BROKER_URL takes amqp://, amqps:// or redis://.", code="bad_setting")
    return not scheme.startswith("amqp")


def kind(settings: Settings) -> str:
    """redis or rabbitmq. Raises BadRequest."""
    return "redis" if is_redis(settings) else "rabbitmq"


def open_broker(settings: Settings, db: Database) -> Broker:
    """The broker that the settings name; nothing is sent before its first use. Raises BadRequest."""
    if settings.broker_queues not in ("classic", "quorum"):
        raise BadRequest(f"there are no {settings.broker_queues!r} queues", hint="DUJIANG_BROKER_QUEUES is classic or quorum.", code="bad_setting")
    if is_redis(settings):
        return RedisBroker(settings)
    from workers.broker.amqp import AmqpBroker

    return AmqpBroker(settings.broker_url, db, quorum=settings.broker_queues == "quorum")


def consumers(broker: Broker, db: Database) -> dict[str, int]:
    """Queue that must have a consumer → who listens to it: as the broker counts them, else the nodes that say so. Raises Unavailable."""
    return merged(broker.depths(), nodes.consumers(db))


def merged(depths: Mapping[str, Depth], announced: Mapping[str, int]) -> dict[str, int]:
    """The broker's own count of consumers, where it has one, before what nodes announce; of every queue that must have one."""
    found = dict(announced) | {queue: depth.consumers for queue, depth in depths.items() if depth.consumers is not None}
    return {queue: found.get(queue, 0) for queue in queues.all_queues()}
