"""A machine is lost with its disk, and another one with the same ledger, store and artifacts goes on; a bucket is away for a while."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from api.incoming import listed
from tests.chaos.proof import Reference, Trial
from tests.chaos.strikes import unfinished
from tests.servers.s3 import S3Server
from tests.simulators.model_server import ModelServer
from tests.system import System, living, until
from workers.views import Incoming

GONE_S = 10.0
WAITS_S = 20.0

Shared = Callable[[str], dict[str, Any]]


@pytest.fixture
def shared(tmp_path: Path, request: pytest.FixtureRequest) -> Shared:
    """What every machine is told, by where the artifacts are."""

    def told(artifacts: str) -> dict[str, Any]:
        common = {"ledger_url": f"sqlite:///{tmp_path}/shared/ledger.db", "store_url": f"sqlite:///{tmp_path}/shared/store"}
        (tmp_path / "shared").mkdir()
        if artifacts == "folder":
            return {**common, "artifacts_url": f"file://{tmp_path}/shared/artifacts"}
        server: S3Server = request.getfixturevalue("s3_server")
        return {**common, **server.settings(server.bucket("machines"), uuid4().hex)}

    return told


def uploaded(corpus: Path) -> list[Incoming]:
    """The corpus as bytes: no machine has the files."""
    return [Incoming(item.key, data=Path(item.path).read_bytes()) for item in listed([str(corpus)], max_bytes=10_000_000)]


def upload(corpus: Path, reference: Reference, model: ModelServer, system: System, tenant: str) -> Trial:
    trial = Trial(corpus, reference, model, system, tenant)
    trial._before = model.stats()
    trial.run = system.platform.ingest("docs", uploaded(corpus), tenant=tenant)
    return trial


@pytest.mark.parametrize("artifacts", ["folder", "s3"])
def test_a_new_machine_goes_on_where_the_lost_one_stopped(
    tmp_path: Path, shared: Shared, artifacts: str, corpus: Path, reference: Reference, model: ModelServer
) -> None:
    told: dict[str, Any] = {**shared(artifacts), "embedder": "openai:stub", "embedder_base_url": model.url}
    lost = System(tmp_path / "lost", lease_s=3, **told).start()
    with unfinished(model):
        trial = upload(corpus, reference, model, lost, "moved")
        trial.reached(40)
        family = lost.kill()
        until(lambda: not living(family), GONE_S, "the machine is dead")
    done = trial.done()
    assert done < reference.counts.documents, "it was killed too late"
    lost.close(check=False)
    shutil.rmtree(lost.home)

    with System(tmp_path / "new", lease_s=3, **told) as trial.system:
        trial.prove()
        for stage in ("load", "parse", "chunk", "embed", "index"):
            committed = trial.system.rows("SELECT members FROM batches WHERE status = 'done' AND ',' || stages || ',' LIKE ?", f"%,{stage},%")
            times = Counter(name for (names,) in committed for name in names.splitlines())
            assert len(times) == reference.counts.documents and set(times.values()) == {1}, f"{stage} was done twice"


def test_a_bucket_that_goes_away_and_comes_back_makes_documents_wait_at_no_cost(
    tmp_path: Path, shared: Shared, corpus: Path, reference: Reference, model: ModelServer, s3_server: S3Server
) -> None:
    told: dict[str, Any] = {**shared("s3"), "embedder": "openai:stub", "embedder_base_url": model.url}
    with System(tmp_path / "home", **told) as system:
        trial = upload(corpus, reference, model, system, "away")
        trial.reached(20)
        # What a model has answered and no shelf takes would have to be asked for again, so nobody is to be waiting for an answer then.
        system.lull("embed", s3_server.stop)
        try:
            waiting = "SELECT error_code, attempts FROM documents WHERE status = 'retry'"
            rows = until(lambda: system.rows(waiting), WAITS_S, "documents wait")
            assert set(rows) == {("artifacts_unavailable", 0)}
            assert any("artifacts: " in line for line in system.platform.status().degraded)
        finally:
            s3_server.start()
        trial.prove()
