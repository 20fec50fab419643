"""Celery's consumer, except that a message it cannot make sense of is put away instead of ending the worker, and that it knows of the reserve."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from celery.worker import consumer

log = logging.getLogger("dujiang.consumer")


class Consumer(consumer.Consumer):
    """Celery itself rejects unknown tasks and contents it may not read; an empty body, for one, ends it.

    The broker would deliver that message to the next worker, and to the one after it.
    """

    reserve: Any = None
    """The consumer of the bulk queues where they have one of their own (`workers.reserve`)."""

    def cancel_task_queue(self, queue: Any) -> None:
        """Take no more from a queue, as an operator orders it, whichever consumer listens to it."""
        super().cancel_task_queue(queue)
        if self.reserve is not None:
            self.reserve.cancel_by_queue(queue)

    def create_task_handler(self, *arguments: Any, **options: Any) -> Callable[[Any], None]:
        handle: Callable[[Any], None] = super().create_task_handler(*arguments, **options)

        def received(message: Any) -> None:
            try:
                handle(message)
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                log.warning("message rejected", extra={"reason": f"{type(error).__name__} while it was read"})
                message.reject()

        return received
