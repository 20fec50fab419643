"""What somebody does who watches: status that goes on, logs that go on."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue

from pipeline.settings import child_environment
from tests.system import ROOT, System, fill

WAIT_S = 30.0


@contextmanager
def lines(system: System, *arguments: str) -> Iterator[Queue[str]]:
    """Lines that a command which does not end by itself writes."""
    command = [sys.executable, "-m", "api.cli", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, env=child_environment(system.settings), stdout=subprocess.PIPE, text=True)
    found: Queue[str] = Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            found.put(line)

    threading.Thread(target=read, daemon=True).start()
    try:
        yield found
    finally:
        process.terminate()
        process.wait(WAIT_S)


def test_status_goes_on_and_sees_what_happens(tmp_path: Path) -> None:
    system = System(tmp_path / "home")
    with lines(system, "status", "--watch", "--every", "0.2", "--json") as written:
        assert json.loads(written.get(timeout=WAIT_S))["documents"] == {}
        system.ingest(fill(tmp_path / "docs", 5))
        while not (view := json.loads(written.get(timeout=WAIT_S)))["documents"]:
            pass
    assert (view["documents"], view["stages"]["load"]["waiting"], view["ahead"]["bulk"]) == ({"ready": 5}, 5, 5)
    system.close()


def test_status_is_drawn_again_for_people(tmp_path: Path) -> None:
    system = System(tmp_path / "home")
    with lines(system, "status", "--watch", "--every", "0.2") as written:
        heads = 0
        while heads < 2:
            heads += written.get(timeout=WAIT_S).startswith("stage ")
    system.close()


def test_logs_go_on_also_with_a_process_that_begins_later(tmp_path: Path) -> None:
    system = System(tmp_path / "home")
    folder = tmp_path / "home" / "run" / "logs"
    folder.mkdir(parents=True)
    (folder / "compute.log").write_text("old\n")
    with lines(system, "logs", "-f", "--json") as written:
        assert json.loads(written.get(timeout=WAIT_S)) == {"process": "compute", "line": "old"}
        (folder / "index.log").write_text("begun\n")
        assert json.loads(written.get(timeout=WAIT_S)) == {"process": "index", "line": "begun"}
        with (folder / "compute.log").open("a") as log:
            log.write("new\n")
        assert json.loads(written.get(timeout=WAIT_S)) == {"process": "compute", "line": "new"}
    system.close()
