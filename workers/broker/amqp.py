"""RabbitMQ as this project uses it: queue lengths and consumers by passive declaration, and a mark that only a wiped server has lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar, cast

from pipeline.errors import BadRequest, Unavailable
from workers import queues
from workers.broker.protocol import Depth
from workers.ledger import sweeping
from workers.ledger.engine import Database

if TYPE_CHECKING:
    from amqp import Connection
    from amqp.channel import Channel

T = TypeVar("T")
HINT = "Start RabbitMQ, or correct DUJIANG_BROKER_URL."
CONNECT_S = 3.0
ANSWER_S = 10.0
GONE = 404
MARK = f"{queues.PREFIX}epoch."


def arguments(*, quorum: bool) -> dict[str, str] | None:
    """How our queues are declared, by whoever declares them."""
    return {"x-queue-type": "quorum"} if quorum else None


class AmqpBroker:
    """One connection, opened at the first question and again after any failure.

    The mark is the name of an empty durable queue: two processes may look at once, which a message that one of them takes out would not allow.
    """

    def __init__(self, url: str, db: Database, *, quorum: bool = False) -> None:
        self._url, self._db = url, db
        self._arguments = arguments(quorum=quorum)
        self._lock = threading.Lock()
        self._connection: Connection | None = None

    def ping(self) -> None:
        """Declare the queues as the workers will. Raises Unavailable, and BadRequest where one is there already and of another kind."""
        from amqp.exceptions import PreconditionFailed

        for queue in queues.declared():
            try:
                self._ask(lambda channel, queue=queue: channel.queue_declare(queue, durable=True, auto_delete=False, arguments=self._arguments))
            except PreconditionFailed as error:
                kind = "quorum" if self._arguments else "classic"
                raise BadRequest(
                    f"the queue {queue} is there already, and is not {kind}",
                    hint="A queue cannot change its kind: set DUJIANG_BROKER_QUEUES as it was, or stop the workers and delete the queues dujiang.*.",
                    code="queue_of_another_kind",
                ) from error

    def depth(self, queue: str) -> int | None:
        """Messages that nobody has been handed; 0 also for a queue that is gone. Raises Unavailable."""
        return self._look(queue).ready

    def depths(self) -> Mapping[str, Depth]:
        """Raises Unavailable."""
        return {queue: self._look(queue) for queue in queues.declared()}

    def unacked(self) -> int | None:
        """Only the management plugin could tell."""
        return None

    def epoch(self) -> str | None:
        """The ledger's mark, if this server has its queue. Raises Unavailable."""
        known = sweeping.epoch(self._db)
        return known if known is not None and self._declared(f"{MARK}{known}") is not None else None

    def set_epoch(self, value: str) -> None:
        self._ask(lambda channel: channel.queue_declare(f"{MARK}{value}", durable=True, auto_delete=False))

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _look(self, queue: str) -> Depth:
        return self._declared(queue) or Depth(0, 0)

    def _declared(self, queue: str) -> Depth | None:
        """None when there is no such queue: asking passively makes none."""
        from amqp.exceptions import NotFound

        def look(channel: Channel) -> Depth:
            found = cast("tuple[str, int, int]", channel.queue_declare(queue, passive=True))
            return Depth(found[1], found[2])

        try:
            return self._ask(look)
        except NotFound:
            return None

    def _ask(self, question: Callable[[Channel], T]) -> T:
        with self._lock:
            try:
                return self._asked(question)
            except Unavailable:
                # A kept connection may be to a server that was started again meanwhile.
                return self._asked(question)

    def _asked(self, question: Callable[[Channel], T]) -> T:
        """A channel of its own each time: the server closes it when it says no."""
        from amqp.exceptions import AMQPError, ChannelError

        try:
            channel = self._connected().channel()
            answer = question(channel)
            channel.close()
            return answer
        except ChannelError:
            raise
        except (AMQPError, OSError) as error:
            self._drop()
            raise Unavailable(f"RabbitMQ does not answer: {type(error).__name__}", dependency=True, hint=HINT, code="broker_unavailable") from error

    def _connected(self) -> Connection:
        connection = self._connection
        if connection is None or not connection.connected:
            from kombu import Connection as Address

            # kombu reads the address, with its virtual host and options, as it does for the workers.
            address = Address(self._url, connect_timeout=CONNECT_S, transport_options={"read_timeout": ANSWER_S, "write_timeout": ANSWER_S})
            connection = self._connection = cast("Connection", address.transport.establish_connection())
        return connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.collect()
