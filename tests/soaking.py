"""A worker for the soak of a source: a process of its own that may be killed at any request, on a clock that all share and that it turns."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from ctypes import c_double
from multiprocessing.sharedctypes import RawArray
from pathlib import Path
from typing import Any

from pipeline.errors import RateLimited
from pipeline.load.exchange import Exchange
from tests.simulators.served import Around, Clock
from tests.sourced import Bench
from tests.system import settings_for
from workers import feeder as feeding
from workers.feeder import Feeder
from workers.ledger import sweeping
from workers.ledger.engine import Database
from workers.logs import configure

IDLE_MOST_S = 600.0
DONE, STOPPED = 0, 7
"""How a worker ends: the run is finished, or its source was stopped."""


class Shared(Clock):
    """Seconds that several processes turn; also what is left in the bucket of the API, so that no restart fills it."""

    def __init__(self, start: float) -> None:
        super().__init__(start)
        # Without a lock: one that is held by a killed process would never be free again.
        self.cells = RawArray(c_double, [start, -1.0, start, 0.0])

    def now(self) -> float:
        return self.cells[0]

    def advance(self, seconds: float) -> None:
        self.cells[0] += seconds


class SharedAround(Around):
    """As `Around`, with one bucket for all processes and all routes."""

    def __init__(self, clock: Shared, check: Callable[[], None]) -> None:
        super().__init__(clock)
        self._cells, self._check = clock.cells, check

    def check(self) -> None:
        self._check()

    def acquire(self, route: str, *, rate: float, burst: float, slots: int = 0) -> Any:
        cells = self._cells
        while True:
            held = burst if cells[1] < 0 else min(burst, cells[1] + (self.now() - cells[2]) * rate)
            wait = max(0.0, cells[3] - self.now(), (1.0 - held) / rate)
            if not wait:
                cells[1], cells[2] = held - 1.0, self.now()
                return nullcontext()
            if wait > self.patience_s:
                raise RateLimited(f"{route} is used up", after=wait, scope=route)
            self.sleep(wait + 1e-3)

    def blocked(self, route: str, seconds: float) -> None:
        self._cells[3] = self.now() + seconds


def bench_on(home: Path, clock: Shared) -> Bench:
    """A platform whose ledger and sources live by the clock."""
    made = Bench(home)
    made.runtime.db.now = lambda connection: clock.now()  # type: ignore[method-assign]
    made.runtime.surroundings = lambda source, check: SharedAround(clock, check)  # type: ignore[method-assign]
    return made


def work(home: str, clock: Shared, run_id: str, answer_s: float) -> None:
    """Work until the run is finished or its source stopped; where everything waits, time passes."""
    log = os.open(Path(home) / "worker.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, sys.stderr.fileno())
    configure(settings_for(Path(home)))
    Database.now = lambda self, connection: clock.now()  # type: ignore[method-assign]
    Exchange.__init__.__kwdefaults__ = {**(Exchange.__init__.__kwdefaults__ or {}), "timeout_s": answer_s}
    bench = bench_on(Path(home), clock)
    feeder = Feeder(bench.runtime.db, feeding.windows(bench.runtime.profile, processes=1, threads=1), lambda issues: None)
    idle_s = 1.0
    while not (view := bench.platform.run(run_id)).finished:
        if view.status == "paused":
            os._exit(STOPPED)
        if bench.work([*sweeping.expired(feeder.db), *sweeping.lost(feeder.db, lambda queue: 0)]):
            idle_s = 1.0
            continue
        clock.advance(idle_s)
        idle_s = min(IDLE_MOST_S, 2 * idle_s)
    os._exit(DONE)


class Crew:
    """One worker at a time; the next begins where a killed one left everything."""

    def __init__(self, home: Path, clock: Shared, *, answer_s: float) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.soaking"])
        self._home, self._clock, self._answer_s = home, clock, answer_s
        self._process: Any = None
        self.kills = 0

    def kill(self) -> None:
        """Kill whoever works now."""
        process = self._process
        if process is not None and process.is_alive():
            self.kills += 1
            process.kill()

    def finish(self, run_id: str, stopped: Callable[[], None], seconds: float = 900.0) -> None:
        """Work on a run to its end, whatever happens to the workers. `stopped` gives a source that was stopped good credentials."""
        for _ in range(1000):
            self._process = self._context.Process(target=work, args=(str(self._home), self._clock, run_id, self._answer_s), daemon=True)
            self._process.start()
            self._process.join(seconds)
            code = self._process.exitcode
            if code == DONE:
                return
            assert code is not None, "a worker neither ended nor was killed"
            assert code in (STOPPED, -9), (self._home / "worker.log").read_text(encoding="utf-8")[-4000:]
            if code == STOPPED:
                stopped()


def words(number: int, edition: int) -> str:
    """A page of the soak."""
    return f"# Page {number}\n\nThe keyword of page {number} is kw{number}e{edition}."


Model = Mapping[int, str]
"""Number of a page → its text, of those that there are."""
