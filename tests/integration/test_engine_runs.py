"""A folder of real files through real Celery workers in other processes, again unchanged, and again changed."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pipeline.contracts import Filter, Op, Question
from pipeline.errors import Conflict
from pipeline.settings import child_environment
from tests.simulators.model_server import ModelServer
from tests.system import ROOT, System, fill, markdown, until
from workers import queues, session
from workers.ledger import nodes
from workers.views import RunView

HANDBOOK = ROOT / "samples" / "handbook"
REQUEST = 128
"""Inputs that one request to OpenAI may hold here."""


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    with ModelServer(dim=64) as server:
        yield server


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, model: ModelServer) -> Iterator[System]:
    """One system for the whole module; every test has a collection, and a tenant where artifacts matter, of its own."""
    with System(tmp_path_factory.mktemp("home"), embedder="openai:stub", embedder_base_url=model.url) as running:
        yield running


def balanced(run: RunView) -> bool:
    return run.discovered == run.indexed + run.unchanged + run.skipped + run.failed + run.cancelled


def ingested(system: System, *paths: Path, **given: Any) -> RunView:
    run = system.finish(system.ingest(*paths, **given))
    assert run.status == "done" and balanced(run), run
    return run


def asked(text: str, name: str, **given: Any) -> Question:
    return Question(text, (name,), tenant=name, **given)


def sent(model: ModelServer) -> Mapping[str, int]:
    return model.stats()


# ---------------------------------------------------------------- the first time


def test_a_folder_of_real_files_becomes_searchable_and_answers_are_quoted_from_it(system: System) -> None:
    """Markdown, HTML, PDF, DOCX, XLSX, CSV, JSON and a text in GB18030."""
    run = ingested(system, HANDBOOK, collection="handbook", tenant="handbook")
    files = sum(path.is_file() for path in HANDBOOK.iterdir())
    assert (run.discovered, run.indexed, run.failed) == (files, files, 0)
    assert run.model_calls["embed"] > 0 and run.usage["build"].prompt_tokens
    held = system.audit("handbook", "handbook")
    assert (held.documents, held.chunks, held.vectors) == (files, run.chunks, run.chunks)
    hits = system.platform.search(asked("历史洪水 最高水位", "handbook")).hits
    assert any("7.84" in hit.text for hit in hits)
    answer = system.platform.ask(asked("1998年洪水时石桥站的最高水位是多少？", "handbook"))
    assert not answer.refused and "7.84" in answer.text
    for one in answer.citations:
        place = ("handbook", one.document_id, one.start_char, one.end_char)
        assert system.platform.document_text(*place, tenant="handbook") == one.quote


def test_the_workers_build_what_the_inline_runner_builds(system: System, tmp_path: Path) -> None:
    folder = fill(tmp_path / "docs", 30, documents=6)
    run = ingested(system, folder, collection="same", tenant="same")
    alone = System(tmp_path / "alone")
    inline = alone.inline(folder)
    expected = alone.counts(inline)
    alone.close()
    assert system.counts(run, "same") == expected


def test_requests_are_full_and_messages_are_few(system: System, model: ModelServer, tmp_path: Path) -> None:
    folder = fill(tmp_path / "docs", 240)
    model.reset()
    before = system.messages()
    run = ingested(system, folder, collection="full", tenant="full")
    spent = sent(model)
    assert spent["inputs"] == run.chunks
    assert spent["embed"] <= math.ceil(1.1 * math.ceil(run.chunks / REQUEST)), spent["batch_sizes"]
    assert run.model_calls["embed"] == spent["embed"]
    assert (system.messages() - before) / run.discovered <= 0.25


def test_every_queue_has_a_consumer_that_counts_as_alive_from_its_start(system: System) -> None:
    roles = {"supervisor", "worker"}
    until(lambda: roles <= {node.role for node in nodes.living(system.platform.db)}, 30.0, "the supervisor has swept")
    living = nodes.living(system.platform.db)
    assert {queue for node in living for queue in node.queues} == set(queues.all_queues())
    assert all(node.progress_s < 60 for node in living)
    assert {node.role for node in living} == roles
    status = system.platform.status()
    assert status.up and not status.degraded and {view.role for view in status.processes} == {"supervisor", "redis", "worker"}


# ---------------------------------------------------------------- again


def test_an_unchanged_folder_costs_no_model_call_no_message_and_no_write(system: System, model: ModelServer, tmp_path: Path) -> None:
    folder = fill(tmp_path / "docs", 20, documents=2)
    ingested(system, folder, collection="again", tenant="again")
    held, revision = system.audit("again", "again"), system.platform.collection("again", tenant="again").revision
    model.reset()
    messages = system.messages()
    second = system.ingest(folder, collection="again", tenant="again")
    assert second.finished and second.status == "done", "nobody needed to be asked"
    assert (second.discovered, second.unchanged, second.indexed) == (22, 22, 0) and balanced(second)
    assert sent(model)["requests"] == 0 and system.messages() == messages
    assert system.audit("again", "again") == held
    assert system.platform.collection("again", tenant="again").revision == revision


def test_an_unchanged_folder_starts_no_process(tmp_path: Path) -> None:
    from api.incoming import listed
    from api.local import Local
    from api.system import Ingestion

    folder = fill(tmp_path / "docs", 3)
    alone = System(tmp_path / "home")
    alone.inline(folder)
    alone.close()
    notes: list[str] = []
    local = Local(alone.settings)
    items = listed([str(folder)], max_bytes=1_000_000)
    run = local.ingest(Ingestion("docs", items, on_note=notes.append))
    local.close()
    assert (run.status, run.unchanged, run.discovered) == ("done", 3, 3)
    assert not notes and not alone.log("supervisor") and not (alone.home / "run" / "state.json").exists()


def test_of_a_changed_document_only_the_changed_chunks_are_embedded_and_the_old_version_is_gone(
    system: System, model: ModelServer, tmp_path: Path
) -> None:
    folder = fill(tmp_path / "docs", 5)
    first = ingested(system, folder, collection="changed", tenant="changed")
    (folder / "station-0003.md").write_text(markdown(3, edition=2), encoding="utf-8")
    model.reset()
    second = ingested(system, folder, collection="changed", tenant="changed")
    assert (second.discovered, second.indexed, second.unchanged) == (5, 1, 4)
    assert sent(model)["inputs"] == 1, "one section of one document has changed"
    held = system.audit("changed", "changed")
    assert (held.documents, held.chunks) == (5, first.chunks)
    texts = [hit.text for hit in system.platform.search(asked("Edition page station 3", "changed", k=50)).hits]
    mine = [text for text in texts if "page of station 3." in text]
    assert any("Edition 2" in text for text in mine) and not any("Edition 1 " in text for text in mine)


def test_changed_metadata_reach_the_index_without_a_model_call(system: System, model: ModelServer, tmp_path: Path) -> None:
    folder = fill(tmp_path / "docs", 2)
    ingested(system, folder, collection="meta", tenant="meta", metadata={"year": 2024})
    model.reset()
    second = ingested(system, folder, collection="meta", tenant="meta", metadata={"year": 2025})
    assert (second.indexed, second.unchanged) == (2, 0)
    assert sent(model)["inputs"] == 0
    for year, found in ((2024, False), (2025, True)):
        hits = system.platform.search(asked("station", "meta", filters=(Filter("year", Op.EQ, year),))).hits
        assert bool(hits) is found


# ---------------------------------------------------------------- one owner


def test_a_second_up_on_the_same_data_folder_is_refused_and_names_the_process(system: System) -> None:
    with pytest.raises(Conflict, match=str(system.pid)) as refused:
        session.up_detached(system.settings)
    assert refused.value.code == "home_in_use" and "DUJIANG_HOME" in refused.value.hint
    command = [sys.executable, "-m", "workers.supervisor", "--bare", "--quiet"]
    environment = child_environment(system.settings)
    second = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 1 and second.stderr.startswith("home_in_use: ") and str(system.pid) in second.stderr
    assert system.running() and system.state().pid == system.pid


def test_whoever_needs_a_system_is_handed_the_running_one_and_leaves_it_running(system: System) -> None:
    with session.ensure_running(system.settings) as found:
        assert found.redis_url == system.state().redis_url
    assert system.running()
