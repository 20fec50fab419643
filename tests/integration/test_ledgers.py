"""SQLite and PostgreSQL: whichever remembers, real workers build the same, also when they are killed; PostgreSQL also for several hosts."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import select

from tests.simulators.model_server import ModelServer
from tests.system import LOOK_S, Counts, Held, System, fill, until
from workers.ledger import nodes
from workers.ledger.engine import Database
from workers.ledger.schema import batches, documents

TEXTS, DOCUMENTS = 80, 20


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    with ModelServer(dim=64, latency_ms=150) as server:
        yield server


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("corpus") / "docs", TEXTS, documents=DOCUMENTS)


@pytest.fixture(scope="module")
def undisturbed(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Counts:
    system = System(tmp_path_factory.mktemp("undisturbed"))
    counts = system.counts(system.inline(corpus))
    system.close()
    return counts


def kill_a_holder(db: Database, stages: str, *, whole: int | None = None) -> Held:
    """Kill who holds a batch of `stages`, or the supervisor `whole` above it, while nobody can commit that batch."""

    query = select(batches.c.id, batches.c.token, batches.c.owner).where(batches.c.status == "leased", batches.c.stages == stages)

    def hit() -> Held | None:
        # A look first: whoever asked for the lock again and again would keep the workers from it.
        with db.read() as connection:
            if connection.execute(query).first() is None:
                return None
        with db.write() as connection:
            row = connection.execute(query.with_for_update(skip_locked=True)).first()
            if row is None:
                return None
            held = Held(row.id, row.token, row.owner)
            if whole is not None and f"/{whole}" not in _ancestry(held.node_pid):
                return None
            with suppress(ProcessLookupError):
                os.kill(held.node_pid if whole is None else whole, signal.SIGKILL)
                return held
        return None

    return until(hit, 40.0, f"somebody is caught at work on {stages}", pause_s=LOOK_S)


def _ancestry(pid: int) -> str:
    """``/1/20/300``: the processes above one."""
    found = ""
    while pid > 1:
        found = f"/{pid}{found}"
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return ""
    return found


@pytest.mark.parametrize("ledger", ["sqlite", "postgresql"])
def test_a_run_in_which_workers_are_killed_builds_what_an_undisturbed_one_builds(
    ledger: str, request: pytest.FixtureRequest, tmp_path: Path, model: ModelServer, corpus: Path, undisturbed: Counts
) -> None:
    given = {"ledger_url": request.getfixturevalue("postgres_database")} if ledger == "postgresql" else {}
    with System(tmp_path / "home", embedder="openai:stub", embedder_base_url=model.url, **given) as system:
        run = system.ingest(corpus)
        db = system.platform.db
        kill_a_holder(db, "load,parse,chunk")
        kill_a_holder(db, "embed")
        ended = system.finish(run)
        assert system.counts(ended) == undisturbed
        assert ended.discovered == ended.indexed
        with db.read() as connection:
            assert connection.execute(select(batches.c.id).where(batches.c.status.in_(("queued", "leased")))).all() == []
            assert connection.execute(select(documents.c.id).where(documents.c.status != "done")).all() == []
        again = system.ingest(corpus)
        assert (again.finished, again.unchanged) == (True, undisturbed.indexed)
        until(lambda: not system.platform.status().degraded, 30.0, "everything is well again")


def test_when_one_of_two_hosts_dies_the_other_finishes_its_work(
    postgres_database: str, redis_url: str, elasticsearch_url: str, tmp_path: Path, model: ModelServer, corpus: Path, undisturbed: Counts
) -> None:
    """Two supervisors with data folders of their own share ledger, broker, artifacts and store."""
    common = {
        "ledger_url": postgres_database,
        "redis_url": redis_url,
        "artifacts_url": f"file://{tmp_path}/artifacts",
        "store_url": elasticsearch_url,
        "embedder": "openai:stub",
        "embedder_base_url": model.url,
        "worker_processes": 1,
        "lease_s": 4,
    }
    with System(tmp_path / "one", **common) as one:
        other = System(tmp_path / "other", **common).start()
        try:
            here = {node.name for node in nodes.living(one.platform.db) if node.role == "worker"}
            assert len(here) == 4, "both hosts have a compute and a network node"
            # The corpus makes one or two batches to embed: while this host's node stands still, it is the other host that takes them.
            network = one.child("network")
            os.kill(network, signal.SIGSTOP)
            try:
                run = one.ingest(corpus, collection="two-hosts")
                kill_a_holder(one.platform.db, "embed", whole=other.pid)
            finally:
                os.kill(network, signal.SIGCONT)
            ended = one.finish(run, 90.0)
        finally:
            other.close(check=False)
        assert one.counts(ended) == undisturbed
        with one.platform.db.read() as connection:
            owners = set(connection.scalars(select(batches.c.owner).where(batches.c.status == "done")))
        assert len({owner.rpartition(":")[0].rpartition(":")[0] for owner in owners}) > 2, "both had a part in it"
