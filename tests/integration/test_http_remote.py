"""A real HTTP server, and the Python client and command line that talk to it."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from api import cli
from api.app import create_app
from api.asking import Asking
from api.client import Dujiang
from api.remote import Remote
from api.serve import bind
from api.system import Ingestion
from api.uploading import portions
from pipeline.errors import BadRequest, Conflict, Forbidden, NotFound, RateLimited, Unauthorised, Unavailable, Unsupported
from pipeline.settings import Settings
from tests.fakes_platform import FakePlatform
from workers.views import Incoming

DEADLINE_S = 20.0


@cache
def application() -> FastAPI:
    """Building the routes takes half a second; they hold no state but the platform."""
    return create_app(FakePlatform(), Settings(max_file_mb=1))  # type: ignore[arg-type]


class Running:
    """A server in a thread, on a port of its own."""

    def __init__(self, platform: FakePlatform) -> None:
        self.platform = platform
        self._socket = bind("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        app = application()
        app.state.platform = platform
        self._server = uvicorn.Server(uvicorn.Config(app, log_config=None, proxy_headers=False, lifespan="off", timeout_graceful_shutdown=1))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    def __enter__(self) -> Running:
        self._thread.start()
        until = time.monotonic() + DEADLINE_S
        while not self._server.started and time.monotonic() < until:
            time.sleep(0.01)
        assert self._server.started
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(DEADLINE_S)
        self._socket.close()


@pytest.fixture
def server() -> Iterator[Running]:
    with Running(FakePlatform()) as running:
        yield running


@pytest.fixture
def remote(server: Running) -> Iterator[Dujiang]:
    with Dujiang(server.url) as client:
        yield client


def items(**texts: str) -> list[Incoming]:
    return [Incoming(key=name, title=name, data=text.encode(), metadata={"n": len(text)}) for name, text in texts.items()]


def test_the_client_takes_in_searches_asks_and_audits_over_http(remote: Dujiang) -> None:
    run = remote.ingest_texts({"a.md": "the boss approves travel"}, collection="books", metadata={"year": 2024})
    assert (run.status, run.discovered, run.indexed, run.usage["build"].total_tokens) == ("done", 1, 1, 7)
    found = remote.search("travel", collection="books", k=3, trace=True)
    assert (found.hits[0].text, found.hits[0].start_char, found.hits[0].metadata) == ("the boss approves travel", 0, {"year": 2024})
    assert found.trace is not None
    answer = remote.ask("travel", collection=["books"])
    assert (answer.refused, answer.citations[0].quote, answer.usage["reader"].total_tokens) == (False, "the boss approves travel", 11)
    assert remote.audit("books").collections[0].digest == "d" * 64
    pieces = list(remote.stream("travel", collection="books"))
    assert "".join(piece for piece in pieces if isinstance(piece, str)).strip() == answer.answer
    assert pieces[-1] == answer


def test_both_kinds_of_client_give_the_same_objects(server: Running, remote: Dujiang) -> None:
    remote.ingest_texts({"a.md": "the boss approves travel"}, collection="books")
    with Dujiang(platform=server.platform) as local:  # type: ignore[arg-type]
        assert local.search("travel", collection="books") == remote.search("travel", collection="books")
        assert local.ask("travel", collection="books") == remote.ask("travel", collection="books")
        assert local.audit() == remote.audit()
        assert local.collections() == remote.collections()
        assert local.run("run-0001") == remote.run("run-0001")
        assert local.status() == remote.status()
        for name, arguments in (
            ("documents", {"collection": "books", "status": "", "limit": 10, "after": ""}),
            ("failures", {"collection": "", "run_id": "", "code": "", "limit": 10, "after": ""}),
            ("run_items", {"run_id": "run-0001", "outcome": "indexed", "limit": 10, "after": ""}),
            ("doctor", {}),
        ):
            assert getattr(local.system, name)(**arguments) == getattr(remote.system, name)(**arguments), name


def test_failures_arrive_as_the_classes_they_were(server: Running, remote: Dujiang) -> None:
    remote.ingest_texts({"a.md": "x"}, collection="books")
    with pytest.raises(NotFound, match="no collection 'none'"):
        remote.search("x", collection="none")
    with pytest.raises(BadRequest):
        remote.search("x", collection="books", mode="magic")
    for error in (Unavailable("away"), RateLimited("slow", after=9), Unsupported("no"), Conflict("in use", code="home_in_use")):
        server.platform.fails = error
        with pytest.raises(type(error), match=error.detail) as caught:
            remote.search("x", collection="books")
        assert (caught.value.code, caught.value.hint) == (error.code, error.hint)
        if isinstance(error, RateLimited):
            assert caught.value.after == 9  # type: ignore[attr-defined]
    server.platform.fails = None
    secret = server.platform.create_key("k", permissions=("read",)).key or ""
    with pytest.raises(Unauthorised):
        remote.search("x", collection="books")
    with Dujiang(server.url, secret) as reader:
        assert reader.search("x", collection="books").hits
        with pytest.raises(Forbidden):
            reader.ingest_texts({"b": "y"}, collection="books")


def test_a_server_that_is_not_there_is_said_to_be_away_without_the_key() -> None:
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    listener.close()
    with Dujiang(f"http://127.0.0.1:{port}", "dj-secret") as client, pytest.raises(Unavailable, match=f"127.0.0.1:{port}") as caught:
        client.status()
    assert "dj-secret" not in str(caught.value) + caught.value.hint


def test_files_are_uploaded_with_their_keys_and_what_is_unreadable_here_counts_as_failed(server: Running, tmp_path: Path, remote: Dujiang) -> None:
    path = tmp_path / "a.txt"
    path.write_text("the boss approves travel", encoding="utf-8")
    here = [
        Incoming(key=f"file://{path}", title="A", path=str(path), metadata={"year": 2024}),
        Incoming(key="file:///vanished.txt", path=str(tmp_path / "vanished.txt")),
        Incoming(key="file:///c.exe", problem=Unsupported("a program")),
    ]
    notes: list[str] = []
    run = remote.system.ingest(Ingestion("books", here, metadata={"team": "ops"}, on_note=notes.append))
    assert (run.discovered, run.indexed, run.skipped, run.failed) == (3, 1, 1, 1)
    assert run.discovered == run.indexed + run.unchanged + run.skipped + run.failed + run.cancelled
    assert [failure.document for failure in run.failures] == ["file:///c.exe"]
    stored = server.platform.documents("books").data[0]
    assert (stored.document, stored.title, stored.metadata) == (f"file://{path}", "A", {"team": "ops", "year": 2024})
    assert len(notes) == 1


def test_much_is_uploaded_in_several_requests_with_one_balance(monkeypatch: pytest.MonkeyPatch, remote: Dujiang) -> None:
    monkeypatch.setattr("api.uploading.MAX_FILES", 2)
    run = remote.system.ingest(Ingestion("books", items(a="1", b="2", c="3", d="4", e="5")))
    assert (run.discovered, run.indexed, run.chunks, run.model_calls["embed"]) == (5, 5, 5, 3)
    assert "3 runs: run-0001, run-0002, run-0003" in run.warnings[-1]
    monkeypatch.setattr("api.uploading.MAX_BYTES", 3)
    assert [len(part) for part in portions(items(a="11", b="2", c="33", d="4"))] == [2, 2]


def test_a_run_elsewhere_is_followed_with_progress(server: Running) -> None:
    server.platform.held = True
    threading.Timer(0.3, server.platform.release, ["run-0001"]).start()
    seen: list[str] = []
    with Dujiang(server.url) as client:
        run = client.system.ingest(Ingestion("books", items(a="1"), on_progress=lambda state: seen.append(state.status)))
    assert (run.status, seen[-1]) == ("done", "done")


def test_the_command_line_talks_to_the_system_that_the_environment_names(
    server: Running, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("DUJIANG_URL", server.url)
    monkeypatch.setenv("DUJIANG_HOME", str(tmp_path / "unused"))
    monkeypatch.setattr("api.incoming.listed", lambda _paths, max_bytes: items(**{"a.md": "the boss approves travel"}))
    secret = server.platform.create_key("k", permissions=("read", "write", "admin")).key or ""
    assert cli.run(["status", "--json"]) == 4
    monkeypatch.setenv("DUJIANG_API_KEY", secret)
    capfd.readouterr()
    assert cli.run(["ingest", "x", "-c", "books", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["indexed"] == 1
    assert cli.run(["ask", "travel", "-c", "books", "--stream"]) == 0
    assert "[1] a.md" in capfd.readouterr().out
    assert cli.run(["ask", "zebra", "-c", "books"]) == 5
    for verb in (
        ["collections", "list"],
        ["documents", "list", "-c", "books"],
        ["runs", "show", "run-0001"],
        ["keys", "list"],
        ["doctor"],
        ["audit"],
    ):
        assert cli.run([*verb, "--json"]) == 0, verb
    assert cli.run(["documents", "delete", "a.md", "-c", "books", "--yes"]) == 0
    assert cli.run(["collections", "delete", "books", "--yes"]) == 0
    assert not (tmp_path / "unused").exists()


def test_open_streams_do_not_keep_others_waiting(server: Running) -> None:
    server.platform.held = True
    httpx.post(f"{server.url}/api/v1/collections/books/documents", json={"documents": [{"key": "a", "text": "the boss"}]})
    server.platform.gate = threading.Event()
    with httpx.Client(base_url=server.url, timeout=DEADLINE_S) as http:
        progress = [http.stream("GET", "/api/v1/runs/run-0001/events") for _ in range(5)]
        entered = [stream.__enter__() for stream in progress]
        with http.stream("POST", "/api/v1/ask", json={"query": "boss", "stream": True}) as slow:
            lines = slow.iter_lines()
            assert next(lines) == "event: token"
            assert http.get("/livez").status_code == 200
            assert http.get("/api/v1/runs/run-0001").json()["status"] == "running"
            server.platform.gate.set()
            assert "event: answer" in list(lines)
        server.platform.release("run-0001")
        assert all("event: finished" in list(stream.iter_lines()) for stream in entered)
        for stream in progress:
            stream.__exit__(None, None, None)


def test_silent_streams_are_kept_alive(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.events.HEARTBEAT_S", 0.05)
    monkeypatch.setattr("api.events.POLL_S", 0.02)
    server.platform.held = True
    httpx.post(f"{server.url}/api/v1/collections/books/documents", json={"documents": [{"key": "a", "text": "the boss"}]})
    server.platform.gate = threading.Event()
    with httpx.stream("GET", f"{server.url}/api/v1/runs/run-0001/events") as answer:
        assert next(line for line in answer.iter_lines() if line.startswith(":")) == ": keep-alive"
    with httpx.stream("POST", f"{server.url}/api/v1/ask", json={"query": "boss", "stream": True}) as answer:
        assert next(line for line in answer.iter_lines() if line.startswith(":")) == ": keep-alive"
        server.platform.gate.set()


def test_a_stream_whose_server_dies_is_an_error_and_no_short_answer(server: Running) -> None:
    server.platform.ingest("books", items(a="the boss approves"))
    server.platform.breaks_after = Unavailable("the reader went away", dependency=True)
    with Dujiang(server.url) as client, pytest.raises(Unavailable, match="the reader went away"):
        list(client.stream("boss", collection="books"))
    cut = httpx.MockTransport(lambda _request: httpx.Response(200, text='event: token\ndata: {"text": "the"}\n\n'))
    with pytest.raises(Unavailable, match="broke off"):
        list(Remote("http://127.0.0.1:1", transport=cut).stream("boss", Asking(collections=("books",))))


def test_a_taken_port_is_named(server: Running) -> None:
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(Conflict, match=str(port)):
        bind("127.0.0.1", port)
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        pass
