"""What somebody does in the first hour, by the command line alone."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from pipeline.settings import child_environment
from tests.system import ROOT, children, living, settings_for, until
from workers import runfile

HANDBOOK = ROOT / "samples" / "handbook"
SOME_FAILED, REFUSED = 3, 5
"""Exit codes."""
FLOOD = "1998年洪水时石桥站的最高水位是多少？"


class Terminal:
    """Commands on one data folder. The hashed embedder saves the seconds that a model's start takes."""

    def __init__(self, home: Path, **given: object) -> None:
        self.home = home
        self._environment = child_environment(settings_for(home, **given))

    def run(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "api.cli", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=self._environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", code=code).stdout)


def free_port() -> int:
    """A port whose neighbour is free too: Flower takes that."""
    while True:
        with socket.socket() as probe, socket.socket() as beside:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
            try:
                beside.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


def test_a_folder_becomes_cited_answers_and_nothing_stays_running(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    run = terminal.json("ingest", str(HANDBOOK), "-c", "handbook")
    assert run["status"] == "done" and run["indexed"] == run["discovered"] > 5
    assert not runfile.alive(runfile.read(str(tmp_path)))
    answer = terminal.json("ask", FLOOD, "-c", "handbook")
    assert not answer["refused"] and "7.84" in answer["answer"] and answer["citations"][0]["quote"]
    assert terminal.json("ask", "Which composer wrote the opera Turandot?", "-c", "handbook", code=REFUSED)["refused"]
    assert terminal.json("search", "battery of a radar gauge", "-c", "handbook")["hits"]
    audited = terminal.json("audit")
    assert audited["ok"] and audited["collections"][0]["documents"] == run["indexed"]
    again = terminal.json("ingest", str(HANDBOOK), "-c", "handbook")
    assert (again["unchanged"], again["indexed"]) == (run["discovered"], 0) and not any(again["model_calls"].values())
    assert terminal.json("audit") == audited


def test_a_system_that_is_up_takes_what_is_ingested_and_goes_down_without_leftovers(tmp_path: Path) -> None:
    port = free_port()
    terminal = Terminal(tmp_path, port=port)
    terminal.run("up", "--detach")
    state = runfile.read(str(tmp_path))
    assert state is not None and runfile.alive(state)
    family = {state.pid} | children(state.pid)
    try:
        (tmp_path / "note.md").write_text("# Note\n\nThe sluice of gate nine is oiled in March.\n")
        (tmp_path / "empty.md").write_text("")
        run = terminal.json("ingest", str(tmp_path / "note.md"), str(tmp_path / "empty.md"), "-c", "notes", code=SOME_FAILED)
        assert (run["indexed"], run["failed"], run["lane"]) == (1, 1, "interactive")
        (failure,) = run["failures"]
        assert failure["document"].endswith("/empty.md") and failure["code"] == "empty" and failure["hint"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10) as ready:
            assert ready.status == 200
        status = terminal.json("status")
        assert status["up"] and {process["role"] for process in status["processes"]} >= {"supervisor", "redis", "worker", "api"}
        second = terminal.run("up", "--detach", code=1)
        assert str(state.pid) in second.stderr and "DUJIANG_HOME" in second.stderr
    finally:
        terminal.run("down")
    until(lambda: not living(family), 10.0, "everything has ended")
    assert terminal.json("status")["up"] is False


@pytest.mark.parametrize("wrong", ["no-such-folder", "no-such-folder/*.md"])
def test_a_mistyped_path_starts_nothing_and_says_so(tmp_path: Path, wrong: str) -> None:
    done = Terminal(tmp_path).run("ingest", str(tmp_path / wrong), "-c", "notes", code=1)
    assert wrong in done.stderr
    assert not (tmp_path / "run" / "state.json").exists()
