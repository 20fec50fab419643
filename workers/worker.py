"""One Celery worker node: ``python -m workers.worker --name compute --queues … --pool prefork --concurrency 2``."""

from __future__ import annotations

import argparse
import gc
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.contracts import Stage
from pipeline.errors import BadRequest
from pipeline.settings import Settings, child_environment, load
from workers import queues
from workers.artifacts import check_apart
from workers.logs import configure
from workers.processes import die_with_parent, node_name
from workers.runtime import WARM, preload

if TYPE_CHECKING:
    from workers.tasks import Crew

GC_THRESHOLD = 20_000
"""A batch makes tens of thousands of small objects that live as long as it does; Python's 700 would walk over them again and again."""
NICE = 10
SCANNER_PAUSE_S = 2.0
PARSE_TASKS_PER_CHILD = 1000
"""A process that computes is renewed after so many batches, in case a library leaks."""


def served(text: str) -> tuple[str, ...]:
    """Queue names of ``parse,chunk`` or ``dujiang.parse.bulk``: a stage means all its lanes. Raises BadRequest."""
    every = queues.declared()
    names: list[str] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        found = [name for name in every if name == part or name.removeprefix(queues.PREFIX) == part or queues.stage_of(name).value == part]
        if not found:
            raise BadRequest(
                f"there is no queue {part!r}",
                hint=f"Use stages ({', '.join(stage.value for stage in (*queues.ORDER, *queues.APART))}) or queues ({every[0]} …).",
                code="unknown_queue",
            )
        names += found
    return tuple(dict.fromkeys(names)) or every


def run(settings: Settings, *, name: str, consumes: tuple[str, ...], pool: str, concurrency: int, events: bool = True, alone: bool = False) -> None:
    """Serve queues until a signal ends it: warm on SIGTERM, what it holds is finished or given back.

    Args:
        alone: nobody has tried before it whether the artifacts can be written; then raises NotFound, Unauthorised or Unavailable.
    """
    from celery import signals

    from workers import app as application
    from workers import tasks
    from workers.reserve import Reserve

    configure(settings)
    if alone:
        check_apart(settings)
    node = node_name(name, os.getpid())
    app = application.create_app(settings)
    crew = tasks.register(app, settings, node, consumes)
    stages = {queues.stage_of(queue) for queue in consumes}
    signals.worker_process_init.connect(partial(_child_init, crew, stages), weak=False)
    # Whoever listens here does the logging; Celery would raise the level of ours to its own.
    signals.setup_logging.connect(_logging_is_set_up, weak=False)
    app.steps["consumer"].add(Reserve)
    if pool == "prefork":
        app.steps["worker"].add(tasks.Reaper)
    if stages == set(queues.APART):
        # What comes behind the index leaves the processor to those that people wait for.
        os.nice(NICE)
    preload(stages, settings)
    # What is loaded by now stays: no collection needs to walk through it again, and forked children share its pages.
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 20)
    # The Celery command line would import every plugin, Flower and a prompt among them.
    worker = app.Worker(
        hostname=f"{name}@{socket.gethostname()}",
        queues=list(consumes),
        pool_cls=pool,
        concurrency=concurrency,
        loglevel="WARNING",
        without_gossip=True,
        without_mingle=True,
        task_events=events,
        quiet=True,
        max_tasks_per_child=PARSE_TASKS_PER_CHILD if pool == "prefork" else None,
    )
    if Stage.LOAD in stages:
        scan_beside(settings, crew, name, pool)
    worker.start()
    sys.exit(worker.exitcode)


def scan_beside(settings: Settings, crew: Crew, name: str, pool: str) -> None:
    """Who downloads lists, too: in a thread, or in a process of its own where the pool forks, since forking and threads do not go together."""
    if pool == "prefork":
        threading.Thread(target=_scan_apart, args=(settings, f"{name}-scanner"), name="scanner", daemon=True).start()
        return
    from celery import signals

    from workers.scanner import Scanner

    stopping = threading.Event()

    def told(**_: Any) -> None:
        stopping.set()

    signals.worker_shutting_down.connect(told, weak=False)
    threading.Thread(target=Scanner(crew.here()[0]).run, args=(stopping,), name="scanner", daemon=True).start()


def _scan_apart(settings: Settings, name: str) -> None:
    """Keeps a scanner alive for as long as this process lives."""
    command = [sys.executable, "-m", "workers.scanner", "--name", name]
    while True:
        subprocess.Popen(command, env=child_environment(settings), preexec_fn=die_with_parent).wait()
        time.sleep(SCANNER_PAUSE_S)


def _logging_is_set_up(**_: Any) -> None:
    pass


def _child_init(crew: Crew, stages: set[Stage], **_: Any) -> None:
    # The pool's parent may be killed without a word; its children must not go on consuming.
    die_with_parent()
    runtime, _feeder = crew.here()
    if Stage.PARSE in stages:
        runtime.parse([WARM], {})


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="workers.worker")
    parser.add_argument("--name", default="worker")
    parser.add_argument("--queues", default="")
    parser.add_argument("--pool", default="prefork", choices=("prefork", "threads", "solo"))
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--no-events", action="store_true", help="nobody watches: save what events for Flower cost")
    given = parser.parse_args(arguments)
    run(load().settings, name=given.name, consumes=served(given.queues), pool=given.pool, concurrency=given.concurrency, events=not given.no_events)


if __name__ == "__main__":
    main(sys.argv[1:])
