"""Flower, as `up` starts it: stages as task names, batches told by run and number of documents, a viewer and nothing else."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.journeys.test_first_hour import Terminal, free_port
from tests.system import fill, until
from workers import queues, runfile

AUTH = "watcher:of-the-river"


@dataclass(frozen=True)
class Up:
    terminal: Terminal
    flower: str
    run: str

    def get(self, path: str, auth: str = AUTH, method: str = "GET") -> Any:
        request = urllib.request.Request(f"{self.flower}{path}", method=method)
        if auth:
            request.add_header("Authorization", f"Basic {base64.b64encode(auth.encode()).decode()}")
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.read().decode()

    def status(self, path: str, **given: Any) -> int:
        try:
            self.get(path, **given)
        except urllib.error.HTTPError as error:
            return error.code
        return 200


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    home = tmp_path_factory.mktemp("home")
    terminal = Terminal(home, port=free_port(), flower_auth=AUTH)
    terminal.run("up", "--detach")
    try:
        state = runfile.read(str(home))
        assert state is not None
        started = Up(terminal, state.flower_url, "")
        until(lambda: _answers(started), 60.0, "Flower answers")
        folder: Path = fill(home / "docs", 30, documents=4)
        yield Up(terminal, state.flower_url, terminal.json("ingest", str(folder), "-c", "watched")["run_id"])
    finally:
        terminal.run("down")


def _answers(up: Up) -> bool:
    try:
        return up.status("/healthcheck") == 200
    except OSError:
        return False


def tasks(up: Up) -> dict[str, Any]:
    return json.loads(up.get("/api/tasks"))


def test_tasks_are_named_by_their_stage(up: Up) -> None:
    until(lambda: {task["name"] for task in tasks(up).values()} >= {"embed", "index"}, 20.0, "Flower saw the run")
    assert {task["name"] for task in tasks(up).values()} <= {stage.value for stage in queues.ORDER}


def test_a_line_leads_to_its_run_and_its_documents(up: Up) -> None:
    page = "/tasks/datatable?draw=1&start=0&length=50&order%5B0%5D%5Bcolumn%5D=0&columns%5B0%5D%5Bdata%5D=name&search%5Bvalue%5D="
    rows = until(lambda: json.loads(up.get(page))["data"], 20.0, "Flower lists tasks")
    for row in rows:
        number = row["uuid"].split("-")[1]
        assert row["args"].startswith(f"batch {number}, {up.run}, ") and "document" in row["args"], row["args"]
    shown = up.terminal.json("batches", "show", rows[0]["uuid"].split("-")[1])
    assert len(shown["documents"]) == shown["size"] > 0
    assert all("station-" in one["document"] and one["run_id"] == up.run for one in shown["documents"])


def test_it_asks_for_the_password_that_is_set_and_stays_on_loopback(up: Up) -> None:
    assert up.status("/api/tasks", auth="") == 401
    assert up.status("/api/tasks", auth="watcher:guess") == 401
    assert up.flower.startswith("http://127.0.0.1:")
    logs = up.terminal.run("logs", "-n", "1000").stdout
    assert "of-the-river" not in logs


def test_it_can_look_and_not_touch(up: Up) -> None:
    assert up.status("/api/worker/pool/restart/compute@host", method="POST") == 403
