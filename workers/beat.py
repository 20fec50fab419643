"""Feeding and sweeping as a process of its own, where no supervisor does it."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType

from pipeline.errors import Unavailable
from pipeline.settings import Settings
from workers import app as application
from workers import tasks
from workers.housekeeping import Housekeeping
from workers.logs import configure
from workers.runtime import Runtime

log = logging.getLogger("dujiang.beat")

TICK_S = 0.25
AWAY_S = 2.0
"""Pause after the ledger or Redis did not answer."""


def run(settings: Settings) -> None:
    """Form batches, take back what was lost, until SIGINT or SIGTERM. Call it in the main thread."""
    configure(settings)
    stopped = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopped.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    runtime = Runtime(settings, node="beat")
    try:
        runtime.db.migrate()
        keeper = Housekeeping(tasks.make_feeder(runtime, application.create_app(settings)), runtime)
        log.info("feeding and sweeping")
        while not stopped.is_set():
            stopped.wait(_turn(keeper))
        keeper.close()
    finally:
        runtime.close()


def _turn(keeper: Housekeeping) -> float:
    """Seconds to pause afterwards."""
    try:
        keeper.turn()
    except Unavailable as error:
        log.warning("%s", error.detail)
        return AWAY_S
    return TICK_S
