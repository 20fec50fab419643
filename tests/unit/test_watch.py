"""Status and doctor: what is wrong is named, with its cure, and what is well is not."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import update

from tests.servers.redis import RedisServer
from tests.system import System, fill
from workers import queues
from workers.ledger import nodes, watched
from workers.views import CheckView


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    """A data folder in which nothing runs."""
    made = System(tmp_path / "home")
    yield made
    made.close()


@pytest.fixture
def manned(tmp_path: Path, redis_url: str) -> Iterator[System]:
    """Every queue has a worker that announces itself, and somebody sweeps."""
    made = System(tmp_path / "home", redis_url=redis_url)
    nodes.announce(made.platform.db, "all@a-1", "worker", 1, queues.all_queues())
    nodes.announce(made.platform.db, "beat@a-2", "beat", 2, progress=True)
    yield made
    made.close()


def check(system: System, name: str) -> CheckView:
    return next(one for one in system.platform.doctor() if one.name == name)


def change(system: System, name: str, **values: object) -> None:
    with system.platform.db.write() as connection:
        connection.execute(update(watched.nodes).where(watched.nodes.c.name == name).values(**values))


# ---------------------------------------------------------------- status


def test_where_nothing_runs_nothing_is_wrong(system: System) -> None:
    view = system.platform.status()
    assert (view.up, view.degraded, view.broker, view.nodes) == (False, (), "redis", ())
    assert all(queue.consumers is None and queue.depth is None for queue in view.queues.values())
    assert {one.name for one in system.platform.doctor() if not one.ok} == set()


def test_documents_that_wait_are_shown_by_queue_stage_and_lane(system: System, tmp_path: Path) -> None:
    system.ingest(fill(tmp_path / "docs", 3, documents=2))
    view = system.platform.status()
    assert (view.queues["dujiang.parse.bulk"].ready, view.queues["dujiang.load.bulk"].ready) == (3, 2)
    assert view.stages["load"].waiting == 5 and view.stages["load"].oldest_s is not None
    assert view.ahead == {"interactive": 0, "bulk": 5}
    assert view.documents == {"ready": 5}


def test_what_works_on_the_ledger_from_other_hosts_is_shown_and_well(manned: System) -> None:
    view = manned.platform.status()
    assert [(node.name, node.role) for node in view.nodes] == [("all@a-1", "worker"), ("beat@a-2", "beat")]
    assert view.degraded == ()
    assert all(queue.consumers == 1 and queue.depth == 0 for queue in view.queues.values())


def test_a_queue_that_nobody_consumes_is_named(manned: System) -> None:
    change(manned, "all@a-1", queues='["dujiang.parse.bulk"]')
    assert "dujiang.index.interactive: nobody consumes it" in manned.platform.status().degraded
    found = check(manned, "queues")
    assert not found.ok and "dujiang.index.interactive" in found.detail and "dujiang worker" in found.hint


def test_nobody_who_sweeps_is_named(manned: System) -> None:
    change(manned, "beat@a-2", progress_at=watched.nodes.c.progress_at - 90.0)
    assert any(part.startswith("sweep: nobody has looked for lost work for 9") for part in manned.platform.status().degraded)
    assert not check(manned, "sweep").ok


def test_a_worker_of_another_version_is_named(manned: System) -> None:
    change(manned, "all@a-1", code_version="0.0.9")
    assert "all@a-1: runs version 0.0.9" in manned.platform.status().degraded
    assert "all@a-1 (0.0.9)" in check(manned, "versions").detail


def test_a_broker_that_is_away_is_named(tmp_path: Path, redis_server: RedisServer) -> None:
    with_broker = System(tmp_path / "home", redis_url=redis_server.url)
    nodes.announce(with_broker.platform.db, "all@a-1", "worker", 1, queues.all_queues())
    redis_server.kill()
    assert "redis: does not answer" in with_broker.platform.status().degraded
    assert not check(with_broker, "broker").ok and not check(with_broker, "redis").ok
    with_broker.close()


def test_what_rabbitmq_alone_lacks_is_said(tmp_path: Path) -> None:
    alone = System(tmp_path / "home", broker_url="amqp://guest:hidden@127.0.0.1:9/")
    nodes.announce(alone.platform.db, "all@a-1", "worker", 1, queues.all_queues())
    said = alone.platform.status().degraded
    assert "rabbitmq: does not answer" in said
    assert any(part.startswith("answer cache: off") for part in said) and any(part.startswith("limits: ") for part in said)
    checks = alone.platform.doctor()
    assert next(one for one in checks if one.name == "broker").hint.startswith("Start RabbitMQ")
    assert "hidden" not in str(checks) + str(said)
    alone.close()


# ---------------------------------------------------------------- doctor


def test_a_host_whose_clock_is_wrong_is_named(manned: System) -> None:
    assert check(manned, "clock").ok
    change(manned, "all@a-1", clock=watched.nodes.c.seen_at + 600.0)
    found = check(manned, "clock")
    assert not found.ok and "all@a-1's is +600 s off" in found.detail and "NTP" in found.hint


def test_a_data_folder_that_everybody_can_change_is_named(system: System) -> None:
    system.home.chmod(0o777)
    found = check(system, "permissions")
    assert not found.ok and "o-w" in found.hint
    system.home.chmod(0o700)
    assert check(system, "permissions").ok


@pytest.mark.parametrize(("free", "total", "well"), [(400e6, 1e9, False), (15e9, 1e12, False), (40e9, 1e12, True), (2e9, 10e9, True)])
def test_a_disk_that_is_nearly_full_is_named(system: System, monkeypatch: pytest.MonkeyPatch, free: float, total: float, well: bool) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=int(total), used=0, free=int(free)))
    assert check(system, "data folder").ok is well


def test_a_foreign_package_of_one_of_our_names_is_named(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "packages_distributions", lambda: {"graphrag": ["graphrag-of-others"], "pipeline": ["dujiang"]})
    found = check(system, "package graphrag")
    assert not found.ok and found.hint == "pip uninstall graphrag-of-others"
    assert check(system, "package pipeline").ok
