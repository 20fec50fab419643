"""`kill -9` of a worker in each stage: the run finishes, and what it builds equals what an undisturbed run builds."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.conftest import seed
from tests.chaos.proof import Begin, Reference, Trial
from tests.chaos.strikes import NODES, VICTIMS, recovered, struck
from tests.simulators.model_server import ModelServer
from tests.system import Held, System, fill, until

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
    import time

    end = time.monotonic() + seconds
    until(lambda: time.monotonic() > end or system.platform.run(trial.run.run_id).finished, seconds + 10, "time passes")
