"""Several beats and supervisors feed and sweep at once: every batch is formed once, and nothing is sent twice."""

from __future__ import annotations

from contextlib import ExitStack

from tests.chaos.proof import Begin
from tests.parts import beat
from tests.system import System
from workers.session import connected


def test_two_beats_beside_the_supervisor_form_every_batch_once(system: System, begin: Begin) -> None:
    settings = connected(system.settings)
    with ExitStack() as stack:
        for number in range(2):
            stack.enter_context(beat(settings, f"beat{number}")).ready()
        trial = begin(system, "beats")
        trial.prove()
    assert system.rows("SELECT count(*) FROM batches WHERE tenant = 'beats' AND token > 1") == [(0,)]
    members = [line for (text,) in system.rows("SELECT members FROM batches WHERE tenant = 'beats' AND stages = 'embed'") for line in text.split()]
    assert len(members) == len(set(members)) == trial.reference.counts.indexed
