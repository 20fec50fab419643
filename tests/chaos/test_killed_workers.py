"""`kill -9` of a worker in each stage: the run finishes, and what it builds equals what an undisturbed run builds."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw
import pytest

from pipeline.identity import index_name
from tests.chaos.conftest import seed
from tests.chaos.proof import Begin, Reference, Trial
from tests.chaos.strikes import NODES, VICTIMS, recovered, struck
from tests.simulators.model_server import ModelServer
from tests.system import LOOK_S, Held, System, fill, until

EVERY_S = 2.5
UNDER_LOAD = 6000


def kill_process(held: Held) -> None:
    os.kill(held.pid, signal.SIGKILL)


def kill_node(held: Held) -> None:
    os.kill(held.node_pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("stages", "kill"),
    [
        pytest.param("load,parse,chunk", kill_process, id="load parse and chunk, a process of the pool"),
        pytest.param("load,parse,chunk", kill_node, id="load parse and chunk, the whole node"),
        pytest.param("load", kill_node, id="load"),
        pytest.param("parse", kill_process, id="parse, a process of the pool"),
        pytest.param("parse", kill_node, id="parse, the whole node", marks=pytest.mark.full),
        pytest.param("chunk", kill_process, id="chunk, a process of the pool"),
        pytest.param("chunk", kill_node, id="chunk, the whole node", marks=pytest.mark.full),
        pytest.param("embed", kill_node, id="embed"),
        pytest.param("index", kill_node, id="index"),
    ],
)
def test_a_worker_killed_in_the_middle_of_a_stage_costs_nothing(
    system: System, begin: Begin, request: pytest.FixtureRequest, stages: str, kill: Callable[[Held], None]
) -> None:
    tenant = request.node.callspec.id.replace(" ", "-").replace(",", "")
    trial, killed = struck(begin, system, tenant, stages, kill)
    ended = trial.prove()
    assert ended.discovered == ended.indexed and ended.status == "done"
    assert system.rows("SELECT count(*) FROM attempts WHERE outcome = 'lost' AND worker = ?", killed.owner)[0][0] > 0


def test_a_worker_killed_between_its_write_into_the_store_and_its_commit_costs_nothing(system: System, begin: Begin) -> None:
    """The same versions are written a second time. The ledger is locked, so that the worker stands between the two."""
    trial = begin(system, "between")
    with at_work(system, "index") as held:
        store = system.home / "store" / f"{index_name('between', 'docs', 1)}.db"
        until(lambda: store.exists() and stored(store) > 0, 20.0, "documents are in the store")
        kill_node(held)
    trial.prove()
    assert system.rows("SELECT status FROM batches WHERE id = ?", held.batch) == [("lost",)]


@contextmanager
def at_work(system: System, stages: str) -> Iterator[Held]:
    """Somebody who works on `stages` and cannot commit: nobody can meanwhile."""
    with closing(sqlite3.connect(system.settings.ledger_url.removeprefix("sqlite:///"), timeout=30, isolation_level=None)) as connection:

        def found() -> Held | None:
            connection.execute("BEGIN IMMEDIATE")
            row = connection.execute("SELECT id, token, owner FROM batches WHERE status = 'leased' AND stages = ?", (stages,)).fetchone()
            if row is None:
                connection.execute("ROLLBACK")
            return Held(*row) if row is not None else None

        yield until(found, 30.0, f"somebody works on {stages}", pause_s=LOOK_S)
        connection.execute("ROLLBACK")


def stored(store: Path) -> int:
    """Documents in a store's file; none while the file is being made."""
    with closing(apsw.Connection(str(store), flags=apsw.SQLITE_OPEN_READWRITE)) as connection:
        connection.set_busy_timeout(5000)
        try:
            return int(next(iter(connection.execute("SELECT count(*) FROM documents")))[0])
        except apsw.SQLError:
            return 0


@pytest.mark.full
@pytest.mark.timeout(900)
def test_nodes_killed_every_few_seconds_under_load_cost_nothing(tmp_path: Path, model: ModelServer, full: bool) -> None:
    folder = fill(tmp_path / "docs", UNDER_LOAD, paragraphs=2)
    chance = random.Random(seed())
    calm = System(tmp_path / "calm", embedder="openai:stub", embedder_base_url=model.url)
    before = model.stats()
    counts = calm.counts(calm.inline(folder))
    after = model.stats()
    calm.close()
    reference = Reference(counts, after["embed"] - before["embed"], after["inputs"] - before["inputs"])
    with System(tmp_path / "home", embedder="openai:stub", embedder_base_url=model.url) as system:
        trial = Trial(folder, reference, model, system, "loaded").begin()
        kills = 0
        while not system.platform.run(trial.run.run_id).finished:
            VICTIMS[f"the node {chance.choice(NODES)}"](system, chance)
            kills += 1
            pause(system, trial, EVERY_S)
        assert kills > 3, "it was over before anybody could be killed"
        trial.prove()
        recovered(system)


def pause(system: System, trial: Trial, seconds: float) -> None:
    """Until so long has passed, or the run is over."""
    end = time.monotonic() + seconds
    until(lambda: time.monotonic() > end or system.platform.run(trial.run.run_id).finished, seconds + 10, "time passes")
