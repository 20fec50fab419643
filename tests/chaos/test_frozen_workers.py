"""A worker that sleeps past its lease and wakes up finds its work done by others, and does no harm."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from pipeline.identity import index_name
from tests.chaos.proof import Begin, balanced, nothing_left, once_each
from tests.parts import worker
from tests.simulators.model_server import ModelServer
from tests.system import Held, System, fill, markdown, until
from workers.session import connected

FEW = 12
READ_S = 0.7
"""Many times what the index stage takes until it writes."""


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory, model: ModelServer) -> Iterator[System]:
    """A system whose leases run out after a second."""
    with System(tmp_path_factory.mktemp("home"), embedder="openai:stub", embedder_base_url=model.url, lease_s=1) as running:
        yield running


@pytest.mark.parametrize("stages", ["load,parse,chunk", "embed", "index"])
def test_a_worker_that_wakes_up_after_its_lease_commits_nothing(hasty: System, begin: Begin, stages: str) -> None:
    trial = begin(hasty, stages.replace(",", "-"))
    frozen = hasty.caught(stages, lambda held: os.kill(held.pid, signal.SIGSTOP))
    try:
        until(lambda: lost(hasty, frozen), 15.0, "its documents are given to others")
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    # Who froze among the threads of one node froze with all of them: their requests are asked for again, too.
    trial.prove(waste=trial.reference.inputs)
    name = frozen.owner.split("@")[0]
    until(lambda: "lease lost" in hasty.log(name), 15.0, "it says that its lease was lost")


def lost(system: System, frozen: Held) -> bool:
    return bool(system.rows("SELECT 1 FROM batches WHERE id = ? AND status = 'lost'", frozen.batch))


@contextmanager
def locked(system: System, tenant: str) -> Iterator[None]:
    """Nobody can write into the tenant's collection meanwhile: whoever is about to, waits."""
    connection = apsw.Connection(str(system.home / "store" / f"{index_name(tenant, 'docs', 1)}.db"))
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")
        connection.close()


def test_a_worker_that_wakes_up_in_the_middle_of_its_write_cannot_bring_an_old_version_back(hasty: System, tmp_path: Path) -> None:
    """It is stopped right before its write, a newer version is indexed by somebody else, then it goes on and writes."""
    folder, tenant = fill(tmp_path / "docs", FEW), "written-late"
    hasty.finish(hasty.ingest(folder, tenant=tenant))
    change(folder, 2)
    with locked(hasty, tenant):
        first = hasty.ingest(folder, tenant=tenant)
        until(lambda: leased(hasty, tenant), 20.0, "somebody is about to write")
        seen = time.monotonic()
        until(lambda: time.monotonic() > seen + READ_S, 5.0, "it has read what it needs, and waits for its turn to write")
        late = hasty.child("index")
        os.kill(late, signal.SIGSTOP)
    try:
        with worker(connected(hasty.settings), "other", "index").ready():
            change(folder, 3)
            second = hasty.finish(hasty.ingest(folder, tenant=tenant))
            assert second.indexed == FEW
            newest = hasty.audit(tenant=tenant)
            until(lambda: hasty.rows("SELECT 1 FROM batches WHERE tenant = ? AND status = 'lost'", tenant), 20.0, "its lease has run out")
            os.kill(late, signal.SIGCONT)
            until(lambda: "lease lost" in hasty.log("index"), 20.0, "the late one says that its lease was lost")
    finally:
        os.kill(late, signal.SIGCONT)
    balanced(hasty.finish(first))
    assert hasty.audit(tenant=tenant) == newest
    once_each(hasty, tenant)
    nothing_left(hasty)


def change(folder: Path, edition: int) -> None:
    for number in range(FEW):
        (folder / f"station-{number:04}.md").write_text(markdown(number, edition=edition), encoding="utf-8")


def leased(system: System, tenant: str) -> bool:
    return bool(system.rows("SELECT 1 FROM batches WHERE tenant = ? AND stages = 'index' AND status = 'leased'", tenant))
