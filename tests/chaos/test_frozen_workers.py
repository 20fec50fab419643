"""A worker that sleeps past its lease and wakes up finds its work done by others, and does no harm."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulators.model_server import ModelServer
from tests.system import Counts, Held, System, until


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory, model: ModelServer) -> Iterator[System]:
    """A system whose leases run out after a second."""
    with System(tmp_path_factory.mktemp("home"), embedder="openai:stub", embedder_base_url=model.url, lease_s=1) as running:
        yield running


@pytest.mark.parametrize("stages", ["load,parse,chunk", "embed", "index"])
def test_a_worker_that_wakes_up_after_its_lease_commits_nothing(hasty: System, corpus: Path, undisturbed: Counts, stages: str) -> None:
    tenant = stages.replace(",", "-")
    run = hasty.ingest(corpus, tenant=tenant)
    frozen = hasty.caught(stages, lambda held: os.kill(held.pid, signal.SIGSTOP))
    try:
        until(lambda: reissued(hasty, frozen), 15.0, "its documents are given to others")
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    ended = hasty.finish(run)
    assert hasty.counts(ended, tenant) == undisturbed
    name = frozen.owner.split("@")[0]
    until(lambda: "lease lost" in hasty.log(name), 15.0, "it says that its lease was lost")


def reissued(system: System, frozen: Held) -> bool:
    return bool(system.rows("SELECT 1 FROM batches WHERE id = ? AND status = 'lost'", frozen.batch))
