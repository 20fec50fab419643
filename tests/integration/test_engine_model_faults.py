"""What documents come to when the model server misbehaves, and that they come through when it is well again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.simulators.model_server import ModelServer
from tests.system import System, fill, until
from workers import stages, verdict
from workers.inline import run_inline
from workers.ledger import forming
from workers.limits import rules
from workers.views import RunView

DOCUMENTS = 6
DIM = 32
PATIENCE_S = 1.5
"""A server that is well answers within it on a busy machine, too."""


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer(dim=DIM) as running:
        yield running


@pytest.fixture
def model(server: ModelServer) -> ModelServer:
    """A model server that is well."""
    server.clear()
    server.config(dim=DIM)
    return server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return fill(tmp_path / "docs", DOCUMENTS)


@pytest.fixture
def system(tmp_path: Path, model: ModelServer) -> Iterator[System]:
    made = System(tmp_path / "home", embedder="openai:stub", embedder_base_url=model.url, request_timeout_s=PATIENCE_S)
    yield made
    made.close()


@contextmanager
def driven(system: System, run: RunView) -> Iterator[None]:
    """The run is driven in the background, to its end."""
    worker = threading.Thread(target=run_inline, args=(system.platform.runtime, run.run_id), daemon=True)
    worker.start()
    try:
        yield
        system.finish(run, 20.0)
    finally:
        system.platform.cancel(run.run_id)
        worker.join(10.0)


def waiting(system: System) -> list[tuple[Any, ...]]:
    """Code, detail, hint, attempts and waits of documents that wait for another try."""
    return system.rows("SELECT error_code, error_detail, error_hint, attempts, waits FROM documents WHERE status = 'retry'")


PASSING: dict[str, tuple[dict[str, object], str]] = {
    "429": ({"status": 429}, "rate_limited"),
    "500": ({"status": 500}, "server_error"),
    "503": ({"status": 503}, "server_error"),
    "no answer": ({"hang": True}, "timeout"),
    "a broken connection": ({"drop": True}, "connection_lost"),
}
LASTING: dict[str, tuple[dict[str, object], str, str]] = {
    "NaN": ({"nan": True}, "bad_vectors", "NaN"),
    "zeros": ({"zeros": True}, "bad_vectors", "zeros"),
    "a wrong key": ({"status": 401}, "unauthorised", "401"),
    "a forbidden model": ({"status": 403}, "forbidden", "403"),
    "an unknown model": ({"status": 404}, "not_found", "404"),
    "a refused request": ({"status": 400}, "bad_request", "400"),
}


SENSELESS: dict[str, tuple[dict[str, object], str]] = {
    "half an answer": ({"garbage": True}, "not JSON"),
    "a page of HTML": ({"raw": "<html>sign in</html>", "raw_type": "text/html"}, "not JSON"),
    "too few vectors": ({"too_few": 1}, "vectors for"),
}


@pytest.mark.parametrize("fault", PASSING)
def test_a_fault_that_passes_is_waited_out_at_no_documents_cost(
    system: System, model: ModelServer, folder: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, code = PASSING[fault]
    monkeypatch.setattr(verdict, "jitter", lambda tries, cap_s=0.0: 0.02)
    model.config(**config)
    run = system.ingest(folder)
    with driven(system, run):
        found = until(lambda: [row for row in waiting(system) if row[4] >= 2], 20.0, "documents have waited twice")
        assert {(row[0], row[3]) for row in found} == {(code, 0)}
        assert all("127.0.0.1" in row[1] and row[2] for row in found)
        model.clear()
        model.config(dim=DIM)
    ended = system.finish(run)
    assert (ended.indexed, ended.failed) == (DOCUMENTS, 0)
    assert system.audit().documents == DOCUMENTS
    assert model.stats()["embed"] == 1, "they came back together, in one full request"


def test_the_time_that_a_service_names_is_kept(system: System, model: ModelServer, folder: Path) -> None:
    model.config(status=429, retry_after="30")
    run = system.ingest(folder)
    with driven(system, run):
        until(lambda: waiting(system), 20.0, "documents wait")
        assert model.stats()["requests"] == 1
        delays = system.rows("SELECT next_at - updated_at FROM documents WHERE status = 'retry'")
        assert all(30.0 <= delay <= 38.0 for (delay,) in delays)
        system.platform.cancel(run.run_id)


@pytest.mark.parametrize("fault", LASTING)
def test_a_fault_that_waiting_cannot_cure_is_said_of_every_document_and_cured_by_the_next_run(
    system: System, model: ModelServer, folder: Path, fault: str
) -> None:
    config, code, words = LASTING[fault]
    model.config(**config)
    run = system.inline(folder)
    assert (run.status, run.indexed, run.failed) == ("done", 0, DOCUMENTS)
    for failure in run.failures:
        assert (failure.stage, failure.code, failure.attempts) == ("embed", code, 1)
        assert words in failure.detail and "DUJIANG_EMBEDDER" in failure.hint
        assert "station number" not in failure.detail, "the server's answer quotes the documents"
    model.clear()
    model.config(dim=DIM)
    again = system.inline(folder)
    assert (again.indexed, again.failed) == (DOCUMENTS, 0) and system.audit().documents == DOCUMENTS


@pytest.mark.parametrize("fault", SENSELESS)
def test_an_answer_without_sense_is_asked_for_again_and_costs_nothing_when_it_passes(
    system: System, model: ModelServer, folder: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdict, "jitter", lambda tries, cap_s=0.0: 1.0)
    model.config(**SENSELESS[fault][0])
    run = system.ingest(folder)
    with driven(system, run):
        (row, *_) = until(lambda: waiting(system), 20.0, "documents wait for another try")
        assert (row[0], row[4]) == ("bad_vectors", 0) and 1 <= row[3] < verdict.GARBLED_ATTEMPTS and SENSELESS[fault][1] in row[1]
        model.clear()
        model.config(dim=DIM)
    ended = system.finish(run)
    assert (ended.indexed, ended.failed) == (DOCUMENTS, 0)


@pytest.mark.parametrize("fault", SENSELESS)
def test_an_answer_that_never_makes_sense_is_given_up_after_a_few_tries_with_its_reason(
    system: System, model: ModelServer, folder: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdict, "jitter", lambda tries, cap_s=0.0: 0.02)
    config, words = SENSELESS[fault]
    model.config(**config)
    run = system.inline(folder)
    assert (run.status, run.indexed, run.failed) == ("done", 0, DOCUMENTS)
    for failure in run.failures:
        assert (failure.stage, failure.code, failure.attempts) == ("embed", "bad_vectors", verdict.GARBLED_ATTEMPTS)
        assert words in failure.detail and "DUJIANG_EMBEDDER" in failure.hint


def test_a_text_that_is_always_answered_with_nonsense_ends_alone(
    system: System, model: ModelServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "odd.md").write_text("# Odd\n\nThe server mumbles about xylophone-7 whenever it is asked.\n")
    monkeypatch.setattr(verdict, "jitter", lambda tries, cap_s=0.0: 0.02)
    model.config(mumbles_on="xylophone-7")
    run = system.inline(folder)
    assert (run.indexed, run.failed) == (DOCUMENTS, 1)
    assert run.failures[0].document.endswith("odd.md") and run.failures[0].code == "bad_vectors"


@pytest.mark.parametrize("fault", ["a wrong key", "an unknown model"])
def test_a_refusal_that_concerns_no_document_is_asked_for_once(system: System, model: ModelServer, folder: Path, fault: str) -> None:
    model.config(**LASTING[fault][0])
    system.inline(folder)
    assert model.stats()["requests"] == 1


def test_vectors_of_another_dimension_reach_no_index(tmp_path: Path, system: System, model: ModelServer, folder: Path) -> None:
    assert system.inline(folder).indexed == DOCUMENTS
    before = system.audit()
    model.config(other_dimension=DIM + 16)
    more = fill(tmp_path / "more", 2)
    known = system.inline(more)
    assert {(found.stage, found.code) for found in known.failures} == {("embed", "bad_vectors")}
    fresh = System(system.home, embedder="openai:stub", embedder_base_url=model.url)
    late = fresh.inline(more)
    fresh.close()
    assert late.failed == 2
    for failure in (*known.failures, *late.failures):
        assert str(DIM) in failure.detail and str(DIM + 16) in failure.detail and failure.hint
    assert system.audit() == before


def test_a_model_server_that_is_away_at_the_start_is_waited_for(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "jitter", lambda tries, cap_s=0.0: 0.02)
    with ModelServer() as once:
        port = int(once.root.rpartition(":")[2])
    system = System(tmp_path / "away", embedder="openai:stub", embedder_base_url=f"http://127.0.0.1:{port}/v1")
    run = system.ingest(folder)
    with driven(system, run):
        (row, *_) = until(lambda: [row for row in waiting(system) if row[4] >= 2], 20.0, "documents wait")
        assert row[3] == 0 and "DUJIANG_EMBEDDER_BASE_URL" in row[2]
        with ModelServer(port, dim=DIM):
            assert system.finish(run, 20.0).indexed == DOCUMENTS
    system.close()


def test_one_text_that_the_server_cannot_take_ends_alone_and_its_neighbours_are_indexed(
    system: System, model: ModelServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "odd.md").write_text("# Odd\n\nThe server chokes on xylophone-7 whenever it is asked.\n")
    monkeypatch.setattr(verdict, "jitter", lambda tries, cap_s=0.0: 0.02)
    monkeypatch.setattr(stages, "STUBBORN_WAITS", 2)
    monkeypatch.setattr(stages, "SPREAD_S", 0.3)
    monkeypatch.setattr(forming, "LINGER_S", 0.1)
    monkeypatch.setattr(rules, "COOL_S", 0.02)
    monkeypatch.setattr(rules, "COOL_MOST_S", 0.02)
    model.config(chokes_on="xylophone-7")
    run = system.ingest(folder)
    with driven(system, run):
        pass
    ended = system.finish(run)
    assert (ended.indexed, ended.failed) == (DOCUMENTS, 1)
    [letter] = ended.failures
    assert (letter.document.endswith("odd.md"), letter.code, letter.stage) == (True, "server_error", "embed")
    assert "on this document alone" in letter.hint
