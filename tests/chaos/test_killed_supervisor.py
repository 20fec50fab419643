"""Whatever dies, nothing of it stays behind, and the next start goes on where it stood."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.settings import child_environment
from tests.chaos.strikes import unfinished
from tests.simulators.model_server import ModelServer
from tests.system import ROOT, Counts, System, children, living, settings_for, until
from workers import runfile

GONE_S = 10.0


def test_a_killed_supervisor_takes_everything_with_it_and_the_next_start_finishes_the_work(
    tmp_path: Path, model: ModelServer, corpus: Path, undisturbed: Counts
) -> None:
    system = System(tmp_path, embedder="openai:stub", embedder_base_url=model.url).start()
    try:
        with unfinished(model):
            run = system.ingest(corpus)
            until(lambda: system.rows("SELECT 1 FROM documents WHERE status = 'done'"), 30.0, "a document is done")
            family = system.kill()
            assert len(family) >= 7, "redis, three nodes, two pool processes and a parser at least"
            until(lambda: not living(family), GONE_S, "everything that it started is gone")
        assert not system.platform.run(run.run_id).finished
        system.start()
        assert system.counts(system.finish(run)) == undisturbed
    finally:
        system.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "ended"])
def test_a_system_that_was_started_for_one_command_ends_with_the_command(tmp_path: Path, number: signal.Signals) -> None:
    settings = settings_for(tmp_path)
    code = "import signal; from pipeline.settings import load; from workers.session import ensure_running\n"
    code += "with ensure_running(load().settings):\n    print('ready', flush=True)\n    signal.pause()\n"
    command = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=child_environment(settings), stdout=subprocess.PIPE, text=True)
    assert command.stdout is not None
    with command.stdout:
        assert command.stdout.readline() == "ready\n"
        family = children(command.pid)
        os.kill(command.pid, number)
        command.wait()
    until(lambda: not living(family), GONE_S, "everything that it started is gone")
    assert not runfile.alive(runfile.read(str(tmp_path)))
