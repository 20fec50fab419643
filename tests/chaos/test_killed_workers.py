"""`kill -9` of a worker in each stage: the run finishes, and what it builds equals what an undisturbed run builds."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system import Counts, Held, System


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
        pytest.param("parse", kill_process, id="parse"),
        pytest.param("chunk", kill_process, id="chunk"),
        pytest.param("embed", kill_node, id="embed"),
        pytest.param("index", kill_node, id="index"),
    ],
)
def test_a_worker_killed_in_the_middle_of_a_stage_costs_nothing(
    system: System, corpus: Path, undisturbed: Counts, request: pytest.FixtureRequest, stages: str, kill: Callable[[Held], None]
) -> None:
    tenant = request.node.callspec.id.replace(" ", "-").replace(",", "")
    run = system.ingest(corpus, tenant=tenant)
    killed = system.caught(stages, kill)
    ended = system.finish(run)
    assert system.counts(ended, tenant) == undisturbed
    assert ended.discovered == ended.indexed and ended.status == "done"
    assert system.rows("SELECT count(*) FROM attempts WHERE outcome = 'lost' AND worker = ?", killed.owner)[0][0] > 0
