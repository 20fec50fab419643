"""One Celery task per stage, all from one function; the message is a batch id and a token."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from celery import Celery, bootsteps, signals
from celery.exceptions import WorkerLostError

from pipeline.contracts import Stage
from pipeline.errors import Unavailable
from pipeline.settings import Settings
from workers import app as application
from workers import feeder as feeding
from workers import queues
from workers.feeder import Feeder
from workers.ledger import losses, nodes
from workers.runtime import Runtime
from workers.stage import run_stage

log = logging.getLogger("dujiang.tasks")
FEED_EVERY_S = 0.3
REAP_EVERY_S = 0.5


class Crew:
    """The runtime of whichever process asks: made anew after a fork."""

    def __init__(self, settings: Settings, app: Celery, node: str) -> None:
        self._settings, self._app, self._node = settings, app, node
        self._lock = threading.Lock()
        self._made: tuple[int, Runtime, Feeder] | None = None
        self._inherited: tuple[int, Runtime, Feeder] | None = None
        self._fed_at = self._said_at = float("-inf")

    def here(self) -> tuple[Runtime, Feeder]:
        """This process's runtime and feeder."""
        with self._lock:
            if self._made is None or self._made[0] != os.getpid():
                # A connection that another process opened is not ours to close, and so must not be forgotten either.
                self._inherited = self._made
                runtime = Runtime(self._settings, node=self._node)
                self._made = (os.getpid(), runtime, make_feeder(runtime, self._app))
            return self._made[1], self._made[2]

    def flush(self) -> None:
        """Send the last traces of this process, if it has worked at all."""
        with self._lock:
            made = self._made
        if made is not None and made[0] == os.getpid():
            made[1].spans.close()

    def feeds(self) -> bool:
        """True when this process has not looked for new batches lately; the supervisor looks every quarter of a second."""
        due = time.monotonic() - self._fed_at >= FEED_EVERY_S
        if due:
            self._fed_at = time.monotonic()
        return due

    def progress(self) -> None:
        """Say, every few seconds, that this node takes batches."""
        if time.monotonic() - self._said_at < nodes.EVERY_S:
            return
        self._said_at = time.monotonic()
        try:
            nodes.progress(self.here()[0].db, self._node)
        except Unavailable:
            log.warning("progress not announced", extra={"node": self._node})


class Reaper(bootsteps.StartStopStep):
    """Looks for dead processes of the pool.

    Celery is woken when a dying child's pipe closes, which may be before it can be reaped; it looks again only after 5 s.
    """

    requires = ("celery.worker.components:Pool",)

    def register_with_event_loop(self, worker: Any, hub: Any) -> None:
        hub.call_repeatedly(REAP_EVERY_S, worker.pool.maintain_pool)


def make_feeder(runtime: Runtime, app: Celery) -> Feeder:
    """The feeder over one runtime and one application."""
    windows = feeding.windows(runtime.profile, processes=runtime.processes, threads=runtime.settings.worker_threads)
    return Feeder(runtime.db, windows, application.Publisher(app), runtime.pace)


def register(app: Celery, settings: Settings, node: str, served: tuple[str, ...] = ()) -> Crew:
    """Give `app` the task of every stage, and the signals that keep ledger and node in step."""
    crew = Crew(settings, app, node)
    for stage in queues.ORDER:
        app.task(name=stage.value, bind=False)(_task(stage, crew))
    app.task(name=Stage.GRAPH.value, bind=False)(_graph_task(crew))
    _signals(app, crew, node, served)
    return crew


def _task(stage: Stage, crew: Crew) -> Callable[[int, int], None]:
    def run(batch_id: int, token: int) -> None:
        runtime, feeder = crew.here()
        crew.progress()
        issues = run_stage(batch_id, token, runtime)
        if issues is not None:
            feeder.send(issues)
            # The last stage makes nothing ready, so there is nothing to feed.
            if stage is not Stage.INDEX and crew.feeds():
                feeder.tick(wait=False)

    run.__name__ = stage.value
    return run


def _graph_task(crew: Crew) -> Callable[[int, int], None]:
    def graph(batch_id: int, token: int) -> None:
        from workers.graphing import feed, run_graph

        runtime, feeder = crew.here()
        crew.progress()
        if run_graph(batch_id, token, runtime):
            feed(feeder, runtime.graph_extractor)

    return graph


def _signals(app: Celery, crew: Crew, node: str, served: tuple[str, ...]) -> None:
    stop = threading.Event()

    def lost(sender: Any = None, exception: BaseException | None = None, args: Any = None, **_: Any) -> None:
        """In the pool's parent: a child died, so its lease ends now instead of running out."""
        if isinstance(exception, WorkerLostError) and args:
            runtime, feeder = crew.here()
            batch_id, token = int(args[0]), int(args[1])
            feeder.send(losses.expire(runtime.db, batch_id, token, reason=f"a process of {node} died: {exception}"))

    def ready(**_: Any) -> None:
        threading.Thread(target=_announce, args=(crew, node, served, stop), name="announce", daemon=True).start()

    def shutting_down(**_: Any) -> None:
        stop.set()

    def ended(**_: Any) -> None:
        """In a process that worked: what it has traced and not sent yet."""
        crew.flush()

    signals.task_failure.connect(lost, weak=False)
    signals.worker_ready.connect(ready, weak=False)
    signals.worker_shutting_down.connect(shutting_down, weak=False)
    signals.worker_process_shutdown.connect(ended, weak=False)
    signals.worker_shutdown.connect(ended, weak=False)


def _announce(crew: Crew, node: str, served: tuple[str, ...], stop: threading.Event) -> None:
    db = crew.here()[0].db
    # A child that is forked in the middle of a write would inherit the locks that SQLite holds for it, and wait for them for ever.
    writing = threading.Lock()
    os.register_at_fork(before=writing.acquire, after_in_parent=writing.release, after_in_child=writing.release)
    while True:
        try:
            with writing:
                nodes.announce(db, node, "worker", os.getpid(), served)
        except Unavailable:
            log.warning("node not announced", extra={"node": node})
        if stop.wait(nodes.EVERY_S):
            break
    try:
        nodes.withdraw(db, node)
    except Unavailable:
        log.warning("node not withdrawn", extra={"node": node})
