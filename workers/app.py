"""The Celery application: settings whose reasons are in docs/decisions, and nothing but names and ids in its messages."""

from __future__ import annotations

import threading

from celery import Celery
from kombu import Connection, Exchange, Queue
from kombu.exceptions import KombuError

from pipeline.errors import Unavailable
from pipeline.settings import Settings
from workers import broker, queues
from workers.ledger.work import Issue

EXCHANGE = "dujiang"
"""Queues are bound to it, messages go by queue name: a wiped broker then loses no route."""
MARGIN = 1.25
"""A message comes back after the longest a stage may take, plus a quarter."""


def create_app(settings: Settings, *, redis_url: str = "") -> Celery:
    """An application without tasks; `workers.tasks.register` adds them. Connects to nothing."""
    url = settings.broker_url or broker.with_db(redis_url or settings.redis_url, broker.QUEUE_DB)
    app = Celery("dujiang", broker=url, set_as_current=False)
    app.conf.update(
        task_queues=[_queue(name, settings) for name in queues.declared()],
        task_default_queue=queues.all_queues()[0],
        task_create_missing_queues=False,
        task_acks_late=True,
        task_acks_on_failure=True,
        task_acks_on_timeout=True,
        task_reject_on_worker_lost=False,
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
        task_serializer="json",
        accept_content=["json"],
        worker_consumer="workers.consumer:Consumer",
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_soft_shutdown_timeout=20.0,
        worker_enable_soft_shutdown_on_idle=True,
        worker_send_task_events=False,
        task_send_sent_event=False,
        worker_disable_rate_limits=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options=_transport(settings),
        control_queue_expires=60.0,
        event_queue_expires=60.0,
        enable_utc=True,
        timezone="UTC",
    )
    return app


def _queue(name: str, settings: Settings) -> Queue:
    quorum = settings.broker_queues == "quorum" and not broker.is_redis(settings)
    options = {"x-queue-type": "quorum"} if quorum else None
    return Queue(name, Exchange(EXCHANGE, type="direct"), routing_key=name, durable=True, queue_arguments=options)


def _transport(settings: Settings) -> dict[str, object]:
    if not broker.is_redis(settings):
        return {"confirm_publish": True, "read_timeout": 30, "write_timeout": 30}
    return {
        "visibility_timeout": int(settings.stage_deadline_s * MARGIN),
        "unacked_restore_interval": 10,
        "unacked_restore_throttle": 1,
        "socket_timeout": 30,
        "socket_connect_timeout": 5,
        "socket_keepalive": True,
        "health_check_interval": 25,
        "retry_on_timeout": True,
        "global_keyprefix": queues.PREFIX,
    }


class Publisher:
    """Sends batches through one connection a thread, thrown away after any failure: kombu's pooled ones stay broken. Make it after a fork."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._local = threading.local()
        self._hint = "Start the broker, or correct DUJIANG_BROKER_URL or DUJIANG_REDIS_URL; without either `dujiang up` starts its own Redis server."

    def __call__(self, issues: list[Issue]) -> None:
        """Send one message per batch: its id and token, nothing else. Raises Unavailable when the broker is away.

        What was sent before a failure may be sent twice; the token makes that harmless.
        """
        try:
            self._send(issues)
        except Unavailable:
            # A kept connection may be to a broker that was started again meanwhile.
            self._send(issues)

    def _send(self, issues: list[Issue]) -> None:
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._app.connection_for_write()
        self._local.connection = None
        broken = (KombuError, OSError, *connection.connection_errors, *connection.channel_errors)
        try:
            # Left to itself, kombu would try to connect for ever.
            connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
            producer = self._app.amqp.Producer(connection)
            for issue in issues:
                self._app.send_task(
                    issue.stage.value,
                    args=(issue.batch_id, issue.token),
                    queue=issue.queue,
                    producer=producer,
                    ignore_result=True,
                    task_id=f"{issue.stage.value}-{issue.batch_id}-{issue.token}",
                    retry=False,
                )
        except broken as error:
            connection.collect(0.1)
            raise Unavailable(
                f"the broker does not answer: {type(error).__name__}", dependency=True, hint=self._hint, code="broker_unavailable"
            ) from error
        self._local.connection = connection
