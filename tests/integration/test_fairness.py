"""Tenants and lanes beside each other, on real workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.contracts import Lane
from tests.simulators.model_server import ModelServer
from tests.system import System, fill, markdown, until
from workers.views import Incoming, RunView

DOCUMENTS = 320
LEASED = "SELECT count(*) FROM batches WHERE status = 'leased' AND lane = 'bulk' AND stages = ?"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("corpus") / "docs", DOCUMENTS)


def test_tenants_of_weights_one_and_three_are_served_in_that_proportion(tmp_path: Path, corpus: Path) -> None:
    system = System(tmp_path / "home")
    system.platform.steering.weigh("three", 3.0)
    light, heavy = system.ingest(corpus, tenant="one"), system.ingest(corpus, tenant="three")
    with system:
        heavy = system.finish(heavy)
        assert not system.platform.run(light.run_id).finished
        # As long as both waited, which is until the heavy one's last batch was formed.
        formed = [tenant for (tenant,) in system.rows("SELECT tenant FROM batches WHERE stages LIKE 'load%' ORDER BY id")]
        while_both = formed[: len(formed) - formed[::-1].index("three")]
        assert while_both.count("three") == 5 and while_both.count("one") in (1, 2, 3)
        light = system.finish(light)
        assert (light.indexed, heavy.indexed) == (DOCUMENTS, DOCUMENTS)


def test_an_upload_is_done_long_before_the_bulk_run_of_another_tenant_that_came_first(tmp_path: Path, corpus: Path) -> None:
    with ModelServer(dim=64, latency_ms=1500) as model:
        # One thread waits for models, and the one that is kept free.
        with System(tmp_path / "home", embedder="openai:stub", embedder_base_url=model.url, worker_threads=1) as system:
            bulk = system.ingest(corpus, tenant="bulk")
            until(lambda: system.rows(LEASED, "embed")[0][0], 30.0, "the bulk run waits for the model")
            most = 0

            def ended() -> RunView | None:
                nonlocal most
                most = max(most, system.rows(LEASED, "embed")[0][0])
                now = system.platform.run(mine.run_id)
                return now if now.finished else None

            mine = upload(system, tmp_path / "mine.md")
            assert until(ended, 30.0, "the upload is done").indexed == 1
            other = system.platform.run(bulk.run_id)
            assert not other.finished and other.indexed < DOCUMENTS
            assert most == 1
            assert system.platform.cancel(bulk.run_id).status in ("cancelled", "running")
            system.finish(bulk)


def upload(system: System, path: Path) -> RunView:
    path.write_text(markdown(1), encoding="utf-8")
    return system.platform.ingest("mine", [Incoming(key=path.name, path=str(path))], lane=Lane.INTERACTIVE, tenant="desk")
