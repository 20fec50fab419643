"""SIGTERM to one worker after the other, under load: what is under way is finished, nothing is done twice."""

from __future__ import annotations

import os
import signal

from tests.chaos.proof import Begin
from tests.chaos.strikes import NODES, recovered
from tests.system import System, until


def test_workers_restarted_one_after_the_other_redo_nothing(system: System, begin: Begin) -> None:
    trial = begin(system, "rolling")
    for number, name in enumerate(NODES):
        trial.reached(60 * number)
        before = system.child(name)
        os.kill(before, signal.SIGTERM)
        until(lambda name=name, before=before: successor(system, name) not in (None, before), 40.0, f"{name} has a successor")
    trial.prove()
    recovered(system)
    assert system.rows("SELECT count(*) FROM attempts JOIN runs ON runs.id = run_id WHERE tenant = 'rolling'") == [(0,)]
    assert system.rows("SELECT count(*) FROM batches WHERE tenant = 'rolling' AND status <> 'done'") == [(0,)]


def successor(system: System, name: str) -> int | None:
    return next((entry.pid for entry in system.state().processes if entry.name == name), None)
