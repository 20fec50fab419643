"""Whoever lists sources: a few at a time, beside a worker's downloads or in a process of its own (``python -m workers.scanner``)."""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import FrameType

from pipeline.errors import PipelineError, Unavailable
from pipeline.settings import Settings, load
from workers import withdrawal
from workers.ledger import absence, catalog, sources
from workers.logs import configure
from workers.processes import die_with_parent, node_name
from workers.runtime import Runtime
from workers.syncing import sync

log = logging.getLogger("dujiang.scanner")

SLOTS = 4
"""Sources listed at once by one process."""
LOOK_S = 0.5
PRUNE_EVERY_S = 2.0
AWAY_S = 2.0


class Scanner:
    """Claims listings and works on them in threads until it is told to stop."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._numbers = itertools.count()
        self._pruned = 0.0
        self._running: set[Future[None]] = set()

    def run(self, stopping: threading.Event) -> None:
        """Until `stopping`; what is under way is then handed back."""
        with ThreadPoolExecutor(SLOTS, "scan") as pool:
            while not stopping.is_set():
                stopping.wait(self._turn(pool, stopping))

    def _turn(self, pool: ThreadPoolExecutor, stopping: threading.Event) -> float:
        """Seconds to pause afterwards."""
        # What went wrong in one is in its run and in the log.
        self._running = {future for future in self._running if not future.done()}
        try:
            while len(self._running) < SLOTS and not stopping.is_set():
                claim = sources.claim(self._runtime.db, f"{self._runtime.owner}:{next(self._numbers)}", lease_s=self._runtime.lease_s)
                if claim is None:
                    break
                self._running.add(pool.submit(sync, self._runtime, claim, stopping))
            if time.monotonic() - self._pruned >= PRUNE_EVERY_S:
                self._pruned = time.monotonic()
                prune_late(self._runtime)
        except Unavailable as error:
            log.warning("%s", error.detail)
            return AWAY_S
        return LOOK_S


def prune_late(runtime: Runtime) -> int:
    """Delete what turned out to be gone when it was fetched; returns how many. Raises Unavailable."""
    deleted = 0
    for source_id in absence.waiting(runtime.db):
        row = sources.by_id(runtime.db, source_id)
        if row is None:
            continue
        try:
            deleted += withdrawal.prune(runtime, row, catalog.find(runtime.db, row.tenant, row.collection), row.last_run_id)[0]
        except Unavailable:
            raise
        except PipelineError as error:
            log.warning("not deleted", extra={"source": row.name, "code": error.code})
    return deleted


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="workers.scanner")
    parser.add_argument("--name", default="scanner")
    serve(load().settings, parser.parse_args(arguments).name)


def serve(settings: Settings, name: str) -> None:
    """A scanner alone, until SIGINT or SIGTERM, or the end of its parent. Call it in the main thread."""
    die_with_parent(signal.SIGTERM)
    configure(settings)
    stopping = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    runtime = Runtime(settings, node=node_name(name, os.getpid()))
    try:
        Scanner(runtime).run(stopping)
    finally:
        runtime.close()


if __name__ == "__main__":
    main()
