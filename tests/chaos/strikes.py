"""Whom a strike may hit, and when: drawn from a seed, so that a run that went wrong can be had again."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.chaos.proof import Begin, Trial, answers
from tests.simulators.model_server import ModelServer
from tests.system import Held, System, living, until
from workers.ledger import nodes

NODES = ("compute", "network", "index")
STAGES = ("load,parse,chunk", "load", "parse", "chunk", "embed", "index")
GONE_S = 15.0
TRIES, CATCH_S = 6, 6.0


def below(pid: int) -> list[int]:
    """Direct children of a process."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    return sorted(found)


def pool(system: System) -> list[int]:
    """Processes of the pool that computes."""
    return below(system.child("compute"))


def parsers(system: System) -> list[int]:
    """The guarded processes in which documents are parsed."""
    return [pid for process in pool(system) for pid in below(process)]


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_one(choose: Callable[[System], list[int]], system: System, rng: random.Random) -> None:
    found = choose(system)
    if found:
        kill(rng.choice(found))


def kill_child(name: str, system: System, _: random.Random) -> None:
    kill(system.child(name))


def kill_supervisor(system: System, _: random.Random) -> None:
    """All that it started goes with it; then it is started again."""
    family = system.kill()
    until(lambda: not living(family), GONE_S, "everything that the supervisor started is gone")
    system.start()


def recovered(system: System, seconds: float = 30.0) -> None:
    """Wait until everybody who was killed has a successor, Redis answers, and each queue has its consumer."""

    until(lambda: answers(system) and all(nodes.consumers(system.platform.db).values()), seconds, "everybody is back at work")


@contextmanager
def unfinished(model: ModelServer) -> Iterator[None]:
    """Meanwhile the model server does not answer for one document of the corpus, so that no run over it can end before it is struck."""
    model.config(hangs_on="number299")
    try:
        yield
    finally:
        model.config(hangs_on="")


def struck(begin: Begin, system: System, tenant: str, stages: str, act: Callable[[Held], None]) -> tuple[Trial, Held]:
    """A trial in which somebody was caught at work on `stages`. A stage that takes milliseconds may be missed; then another one is begun."""
    for number in range(TRIES):
        trial = begin(system, f"{tenant}-{number}")
        try:
            return trial, system.caught(stages, act, CATCH_S)
        except AssertionError:
            system.finish(trial.run)
    raise AssertionError(f"nobody was caught at work on {stages} in {TRIES} runs")


Strike = Callable[[System, random.Random], None]

VICTIMS: Mapping[str, Strike] = {
    "a process of the pool": partial(kill_one, pool),
    "a parser": partial(kill_one, parsers),
    **{f"the node {name}": partial(kill_child, name) for name in NODES},
    "redis": partial(kill_child, "redis"),
    "the supervisor": kill_supervisor,
}
WEIGHTS = (4, 2, 3, 3, 3, 2, 1)


@dataclass(frozen=True)
class Point:
    """One moment of a run, and who is killed in it."""

    victim: str
    committed: int = 0
    """After so many batches of the run were committed."""
    stage: str = ""
    """While somebody works on these stages."""
    wait_s: float = 0.0
    """So long after the run began."""

    def __str__(self) -> str:
        when = f"after {self.committed} batches" if self.committed else f"during {self.stage}" if self.stage else f"after {1000 * self.wait_s:.0f} ms"
        return f"{self.victim}, {when}"

    def come(self, system: System, tenant: str, began: float) -> bool:
        """True when the moment has come, or the run is over before it could."""
        rows = system.rows("SELECT status, stages FROM batches WHERE tenant = ?", tenant)
        if self.committed and sum(status == "done" for status, _ in rows) >= self.committed:
            return True
        if self.stage and ("leased", self.stage) in rows:
            return True
        if self.wait_s and time.monotonic() - began >= self.wait_s:
            return True
        return bool(system.rows("SELECT 1 FROM runs WHERE tenant = ? AND finished_at IS NOT NULL", tenant))


def points(seed: int, number: int) -> Iterator[Point]:
    """So many moments, the same for the same seed."""
    rng = random.Random(seed)
    for _ in range(number):
        victim = rng.choices(list(VICTIMS), WEIGHTS)[0]
        match rng.randrange(3):
            case 0:
                yield Point(victim, committed=rng.randint(1, 16))
            case 1:
                yield Point(victim, stage=rng.choice(STAGES))
            case _:
                yield Point(victim, wait_s=round(rng.uniform(0.02, 3.0), 3))


def any_victim(system: System, rng: random.Random) -> str:
    """Kill somebody now; gives whom."""
    victim = rng.choices(list(VICTIMS), WEIGHTS)[0]
    VICTIMS[victim](system, rng)
    return victim
