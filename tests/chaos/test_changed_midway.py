"""What people do in the middle of a run: cancel, pause, resume, start again, edit a document, delete one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.proof import Begin, Reference, Trial, balanced, nothing_left, once_each
from tests.simulators.model_server import ModelServer
from tests.system import System, docx, fill, markdown, until
from workers.views import RunView

FEW = 40


@contextmanager
def held_up(system: System, *names: str) -> Iterator[None]:
    """These nodes stand still meanwhile, so that a run is caught in the middle."""
    pids = [system.child(name) for name in names]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


HOLDS = {"embed": ("network", FEW), "index": ("index", FEW + FEW // 4)}
"""Stage → who is held up for it, and how many documents then wait there: DOCX files are loaded by who embeds."""


def waiting_for(system: System, tenant: str, stage: str) -> int:
    return int(system.rows("SELECT count(*) FROM documents WHERE tenant = ? AND stage = ? AND status <> 'done'", tenant, stage)[0][0])


def test_a_run_paused_in_the_middle_stands_still_and_goes_on_to_the_same_end(system: System, begin: Begin) -> None:
    with held_up(system, "network"):
        trial = begin(system, "paused")
        until(lambda: waiting_for(system, "paused", "embed") > 0, 20.0, "chunks wait for their vectors")
        system.platform.pause(trial.run.run_id)
    until(lambda: not system.rows("SELECT 1 FROM batches WHERE tenant = 'paused' AND status IN ('queued', 'leased')"), 20.0, "it stands still")
    assert system.platform.run(trial.run.run_id).status == "paused"
    system.platform.resume(trial.run.run_id)
    trial.prove()


def test_a_run_cancelled_in_the_middle_ends_at_once_and_no_late_worker_changes_that(system: System, begin: Begin) -> None:
    with held_up(system, "network"):
        trial = begin(system, "cancelled")
        until(lambda: waiting_for(system, "cancelled", "embed") > 0, 20.0, "chunks wait for their vectors")
        ended = system.platform.cancel(trial.run.run_id)
    assert ended.status == "cancelled" and ended.cancelled > 0
    nothing_left(system)
    balanced(ended)
    assert figures(system.platform.run(trial.run.run_id)) == figures(ended)
    again = begin(system, "cancelled")
    again.prove(waste=again.reference.inputs)
    assert figures(system.platform.run(trial.run.run_id)) == figures(ended)


def figures(run: RunView) -> tuple[object, ...]:
    return run.status, run.discovered, run.indexed, run.unchanged, run.skipped, run.failed, run.cancelled


def test_a_run_begun_while_the_same_one_is_being_cancelled_takes_everything_over(system: System, begin: Begin) -> None:
    first = begin(system, "rerun")
    until(lambda: system.rows("SELECT 1 FROM batches WHERE tenant = 'rerun' AND status = 'leased'"), 20.0, "somebody is at work")
    system.platform.cancel(first.run.run_id)
    second = begin(system, "rerun")
    ended = second.prove(waste=2 * second.reference.inputs)
    assert ended.status == "done" and ended.discovered == ended.indexed + ended.unchanged
    balanced(system.platform.run(first.run.run_id))


@pytest.mark.full
def test_the_same_run_begun_twice_at_once_is_done_once(system: System, begin: Begin) -> None:
    first, second = begin(system, "twice"), begin(system, "twice")
    first.prove()
    ended = system.finish(second.run)
    balanced(ended)
    assert ended.indexed + ended.unchanged == ended.discovered == first.reference.counts.indexed
    assert system.rows("SELECT max(version) FROM documents WHERE tenant = 'twice'") == [(1,)]


# ---------------------------------------------------------------- documents


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return fill(tmp_path / "docs", FEW, documents=FEW // 4)


def edit(folder: Path, edition: int) -> list[str]:
    """Another edition of two documents, one of each kind."""
    (folder / "station-0003.md").write_text(markdown(3, edition=edition), encoding="utf-8")
    (folder / f"station-{FEW:04}.docx").write_bytes(docx(markdown(FEW, paragraphs=12, edition=edition)))
    return ["station-0003.md", f"station-{FEW:04}.docx"]


@pytest.mark.parametrize("stage", [pytest.param("embed", marks=pytest.mark.full), "index"])
def test_a_document_edited_between_load_and_index_ends_in_its_last_edition(
    system: System, model: ModelServer, folder: Path, tmp_path: Path, stage: str
) -> None:
    """The second run is begun while the first one's documents wait at `stage`; no worker of the first may win."""
    tenant = f"edited-{stage}"
    before = model.stats()
    node, number = HOLDS[stage]
    with held_up(system, node):
        first = system.ingest(folder, tenant=tenant)
        until(lambda: waiting_for(system, tenant, stage) == number, 30.0, f"documents wait at {stage}")
        edited = edit(folder, 2)
        second = system.ingest(folder, tenant=tenant)
    for run in (system.finish(first), system.finish(second)):
        balanced(run)
    inputs = model.stats()["inputs"] - before["inputs"]
    calm = undisturbed(folder, tmp_path, model)
    trial = Trial(folder, calm, model, system, tenant)
    trial.run = second
    trial.prove(waste=None)
    assert system.rows("SELECT count(*) FROM documents WHERE tenant = ? AND version = 2", tenant) == [(len(edited),)]
    assert inputs < 1.5 * calm.inputs


def undisturbed(folder: Path, tmp_path: Path, model: ModelServer) -> Reference:
    before = model.stats()
    calm = System(tmp_path / "calm", embedder="openai:stub", embedder_base_url=model.url)
    counts = calm.counts(calm.inline(folder))
    calm.close()
    after = model.stats()
    return Reference(counts, after["embed"] - before["embed"], after["inputs"] - before["inputs"])


@pytest.mark.parametrize("stage", [pytest.param("embed", marks=pytest.mark.full), "index"])
def test_a_document_deleted_in_the_middle_of_its_run_does_not_come_back(system: System, folder: Path, stage: str) -> None:
    tenant = f"deleted-{stage}"
    node, number = HOLDS[stage]
    sent = "SELECT 1 FROM batches WHERE tenant = ? AND stages = ? AND status = 'queued'"
    with held_up(system, node):
        run = system.ingest(folder, tenant=tenant)
        until(lambda: waiting_for(system, tenant, stage) == number, 30.0, f"documents wait at {stage}")
        until(lambda: system.rows(sent, tenant, stage), 20.0, "a batch is sent")
        gone = system.rows("SELECT id FROM documents WHERE tenant = ? AND stage = ? ORDER BY id LIMIT 3", tenant, stage)
        for (document,) in gone:
            system.platform.delete_document("docs", document, tenant=tenant)
    ended = system.finish(run)
    balanced(ended)
    once_each(system, tenant)
    nothing_left(system)
    assert system.audit(tenant=tenant).documents == ended.indexed == FEW + FEW // 4 - len(gone)
