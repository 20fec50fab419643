"""Redis, Elasticsearch and PostgreSQL: used for real, away at the start, and away in mid-run."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.contracts import Question, Stage
from pipeline.errors import Unavailable
from pipeline.settings import child_environment
from tests.servers import Lacking, lacking
from tests.servers.postgres import Postgres
from tests.servers.redis import RedisServer, endless_keys
from tests.system import ROOT, Counts, System, fill, settings_for, until
from workers import session
from workers.app import Publisher, create_app
from workers.dispatch import open_platform
from workers.inline import run_inline
from workers.ledger.work import Issue
from workers.views import RunView

NOBODY = "127.0.0.1:1"
"""Where nothing listens."""
TEXTS, DOCUMENTS = 60, 8


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("corpus") / "docs", TEXTS, documents=DOCUMENTS)


@pytest.fixture(scope="module")
def undisturbed(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Counts:
    """What the corpus comes to on SQLite alone, driven inline."""
    system = System(tmp_path_factory.mktemp("undisturbed"))
    counts = system.counts(system.inline(corpus))
    system.close()
    return counts


def command(system: System, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line on the same data folder."""
    environment = child_environment(system.settings)
    return subprocess.run([sys.executable, "-m", "api.cli", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100)


def progressed(system: System, run: RunView, number: int) -> None:
    until(lambda: system.platform.run(run.run_id).stages.get("done", 0) >= number, 40.0, f"{number} documents are done")


# ---------------------------------------------------------------- Redis


def test_redis_away_at_the_start_is_an_error_that_names_its_setting(tmp_path: Path) -> None:
    system = System(tmp_path / "home", redis_url=f"redis://{NOBODY}/0")
    folder = fill(tmp_path / "docs", 1)
    with pytest.raises(Unavailable) as refused, session.ensure_running(system.settings):
        raise AssertionError("it started without Redis")
    assert refused.value.code == "redis_unavailable" and "DUJIANG_REDIS_URL" in refused.value.hint
    for arguments in (("up",), ("ingest", str(folder), "-c", "docs")):
        done = command(system, *arguments)
        assert done.returncode == 1 and "DUJIANG_REDIS_URL" in done.stderr and "Traceback" not in done.stderr
    system.close()


def test_a_given_redis_that_goes_and_comes_back_empty_in_mid_run_costs_nothing(
    tmp_path: Path, redis_server: RedisServer, corpus: Path, undisturbed: Counts
) -> None:
    with System(tmp_path / "home", redis_url=redis_server.url) as system:
        run = system.ingest(corpus)
        until(lambda: system.rows("SELECT 1 FROM batches WHERE status = 'leased'"), 30.0, "somebody is at work")
        redis_server.kill()
        until(lambda: not system.rows("SELECT 1 FROM batches WHERE status = 'leased'"), 30.0, "who is at work finishes without Redis")
        assert "redis: does not answer" in system.platform.status().degraded
        redis_server.start()
        assert system.counts(system.finish(run)) == undisturbed
        with redis_server.client() as client:
            mine = {key for key in endless_keys(client) if not key.startswith("dujiang._kombu") and not key.startswith("dujiang.unacked")}
        assert not mine


def test_a_publisher_says_at_once_that_the_broker_is_away_and_goes_on_when_it_is_back(tmp_path: Path, redis_server: RedisServer) -> None:
    """The supervisor publishes: waiting in it for Redis would keep it from starting Redis again."""
    publish = Publisher(create_app(settings_for(tmp_path, redis_url=redis_server.url)))
    issue = Issue(1, 1, Stage.LOAD, "dujiang.load.bulk")
    for _ in range(2):
        publish([issue, issue])
        with redis_server.client() as client:
            assert client.llen("dujiang.dujiang.load.bulk") == 2
        redis_server.kill()
        for _ in range(2):
            with pytest.raises(Unavailable, match="broker"):
                publish([issue])
        redis_server.start()


# ---------------------------------------------------------------- Elasticsearch


def test_elasticsearch_away_makes_documents_wait_and_status_names_the_store(tmp_path: Path) -> None:
    system = System(tmp_path / "home", store_url=f"elasticsearch+http://{NOBODY}")
    run = system.ingest(fill(tmp_path / "docs", 2))
    worker = threading.Thread(target=run_inline, args=(system.platform.runtime, run.run_id), daemon=True)
    worker.start()
    waiting = "SELECT error_stage, attempts, error_hint FROM documents WHERE status = 'retry' AND waits > 0"
    rows = until(lambda: system.rows(waiting), 20.0, "documents wait for the store")
    assert {(row[0], row[1]) for row in rows} == {("index", 0)} and all("DUJIANG_STORE_URL" in row[2] for row in rows)
    assert any(part.startswith("store: ") and NOBODY in part for part in system.platform.status().degraded)
    assert not system.platform.failures().data
    system.platform.cancel(run.run_id)
    worker.join(10.0)
    system.close()


def test_elasticsearch_holds_what_the_embedded_store_holds(tmp_path: Path, elasticsearch_url: str, corpus: Path, undisturbed: Counts) -> None:
    name = f"docs-{tmp_path.name[-40:]}"
    with System(tmp_path / "home", store_url=elasticsearch_url) as system:
        run = system.finish(system.ingest(corpus, collection=name))
        assert system.counts(run) == undisturbed
        hits = system.platform.search(Question("station number 7", (name,))).hits
        assert hits and "number7." in hits[0].text
        again = system.ingest(corpus, collection=name)
        assert again.unchanged == again.discovered == run.indexed
        system.platform.delete_collection(name)


# ---------------------------------------------------------------- PostgreSQL


@pytest.fixture(scope="module")
def postgres_server() -> Iterator[Postgres]:
    """One of this module's own, to be killed."""
    try:
        server = Postgres()
    except Lacking as reason:
        lacking("PostgreSQL", str(reason))
    try:
        server.start()
        yield server
    finally:
        server.close()


def test_postgresql_away_at_the_start_is_an_error_that_names_its_setting_and_no_password(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    url = f"postgresql+psycopg://dujiang:geheim@{NOBODY}/dujiang"
    settings = settings_for(tmp_path, ledger_url=url)
    with pytest.raises(Unavailable) as refused:
        open_platform(settings)
    assert "DUJIANG_LEDGER_URL" in refused.value.hint and "geheim" not in refused.value.detail + refused.value.hint
    with pytest.raises(Unavailable) as not_started, session.ensure_running(settings):
        raise AssertionError("it started without a ledger")
    assert not_started.value.code == "ledger_unavailable" and "DUJIANG_LEDGER_URL" in not_started.value.hint


def test_a_ledger_in_postgresql_gives_the_same_index_and_outlives_the_servers_death(
    tmp_path: Path, postgres_server: Postgres, corpus: Path, undisturbed: Counts
) -> None:
    url = postgres_server.url(postgres_server.create_database())
    with System(tmp_path / "home", ledger_url=url) as system:
        run = system.finish(system.ingest(corpus, tenant="calm"))
        assert system.counts(run, "calm") == undisturbed
        assert system.ingest(corpus, tenant="calm").unchanged == run.indexed
        stormy = system.ingest(corpus, tenant="stormy")
        progressed(system, stormy, 1)
        postgres_server.kill()
        with pytest.raises(Unavailable, match="does not answer"):
            system.platform.run(stormy.run_id)
        postgres_server.start()
        assert system.counts(system.finish(stormy, 90.0), "stormy") == undisturbed
