"""Queues that nobody serves, workers that serve nothing, and whoever must not starve beside a flood."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.contracts import Lane
from tests.chaos.proof import Begin
from tests.parts import beat, worker
from tests.servers.redis import RedisServer
from tests.simulators.model_server import ModelServer
from tests.system import System, fill, markdown, settings_for, until
from workers.app import create_app
from workers.views import Incoming

FLOOD = {False: 1500, True: 8000}


def test_a_queue_that_no_worker_serves_is_named_by_status_and_doctor(
    tmp_path: Path, redis_server: RedisServer, begin: Begin, model: ModelServer
) -> None:
    """A deployment that forgot one: the workers serve all stages but embed."""
    given: dict[str, Any] = {"redis_url": redis_server.url, "embedder": "openai:stub", "embedder_base_url": model.url}
    settings = settings_for(tmp_path / "home", **given)
    system = System(tmp_path / "home", **given)
    with beat(settings).ready(), worker(settings, "compute", "parse,chunk", pool="prefork", concurrency=2).ready():
        with worker(settings, "network", "load,index", concurrency=2).ready():
            trial = begin(system, "forgotten")
            nobody = {f"dujiang.embed.{lane.value}: nobody consumes it" for lane in Lane}
            until(lambda: nobody <= set(system.platform.status().degraded), 30.0, "status names the queues")
            others = [part for part in system.platform.status().degraded if "nobody consumes" in part]
            assert set(others) == nobody
            (check,) = [check for check in system.platform.doctor() if check.name == "queues"]
            assert not check.ok and "dujiang.embed.bulk" in check.detail
            with worker(settings, "late", "embed", concurrency=2).ready():
                trial.prove()
    system.close()


def test_a_worker_told_to_serve_a_queue_that_does_not_exist_refuses_to_start(tmp_path: Path, redis_server: RedisServer) -> None:
    with worker(settings_for(tmp_path, redis_url=redis_server.url), "mistyped", "pasre") as part:
        assert part.process.wait(30) != 0
        assert "pasre" in part.said()


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_worker_that_is_alive_and_consumes_nothing_is_restarted(system: System, begin: Begin) -> None:
    """Its consumers are cancelled from outside, as a lost subscription would: it goes on answering, and takes no more."""
    before = system.child("network")
    app = create_app(system.settings, redis_url=system.state().redis_url)
    try:
        served = [name for entry in system.state().processes if entry.name == "network" for name in entry.queues]
        for queue in served:
            answers = app.control.cancel_consumer(queue, reply=True, timeout=5.0)
            assert answers, "it answers"
        trial = begin(system, "deaf")
        until(lambda: system.child("network") != before, 150.0, "the watchdog has restarted it")
        trial.prove()
    finally:
        app.close()


# ---------------------------------------------------------------- fairness


@pytest.fixture(scope="module")
def flooded_folder(tmp_path_factory: pytest.TempPathFactory, full: bool) -> Path:
    return fill(tmp_path_factory.mktemp("flood") / "docs", FLOOD[full], paragraphs=1)


def test_beside_a_flood_a_person_is_served_and_another_tenant_goes_on(system: System, flooded_folder: Path, tmp_path: Path, full: bool) -> None:
    flood = system.ingest(flooded_folder, tenant="flood")
    until(lambda: system.rows("SELECT 1 FROM batches WHERE tenant = 'flood' AND status = 'done'"), 30.0, "the flood has begun")
    notes = [Incoming(f"note-{number}.md", data=markdown(number).encode()) for number in range(3)]
    person = system.platform.ingest("docs", notes, tenant="person", lane=Lane.INTERACTIVE)
    other = system.ingest(fill(tmp_path / "other", 30), tenant="other")
    system.finish(person)
    system.finish(other)
    left = system.rows("SELECT count(*) FROM documents WHERE tenant = 'flood' AND status <> 'done'")[0][0]
    assert left > 0, "they were served only after the flood"
    ended = system.finish(flood, 300.0)
    assert ended.indexed == FLOOD[full]
