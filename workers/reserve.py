"""A place that bulk never takes: a worker takes bulk messages through a consumer of its own, one fewer at once than it has processes or threads."""

from __future__ import annotations

from typing import Any

from celery import bootsteps
from kombu.common import ignore_errors

from pipeline.contracts import Lane

SUFFIX = f".{Lane.BULK.value}"


class Reserve(bootsteps.StartStopStep):
    """Moves the bulk queues of a worker that serves both lanes from Celery's consumer to one with a lower limit.

    Messages are acknowledged when their batch is done, so the limit counts batches that are worked on. A worker with a single place reserves
    nothing. Other queues and limits stay Celery's.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._consumer: Any = None

    def start(self, parent: Any) -> None:
        both = parent.task_consumer
        bulk = [queue for queue in both.queues if queue.name.endswith(SUFFIX)]
        places = parent.pool.num_processes
        if places < 2 or not bulk or len(bulk) == len(both.queues):
            return
        for queue in bulk:
            both.cancel_by_queue(queue.name)
        app = parent.app
        self._consumer = app.amqp.Consumer(
            parent.connection.channel(),
            queues=[app.amqp.queues[queue.name] for queue in bulk],
            accept=app.conf.accept_content,
            on_decode_error=parent.on_decode_error,
            on_message=parent.create_task_handler(),
        )
        self._consumer.qos(prefetch_count=places - 1)
        parent.reserve = self._consumer
        # Not before the pool takes work: the loop begins after this.
        parent.call_soon(self._consumer.consume)

    def stop(self, parent: Any) -> None:
        if self._consumer is not None:
            ignore_errors(parent, self._consumer.cancel)

    def shutdown(self, parent: Any) -> None:
        self.stop(parent)
        self._consumer = parent.reserve = None
