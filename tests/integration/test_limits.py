"""Real workers of several nodes and one model server with limits: what it is asked, when, and what its refusals cost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.parts import Part, worker
from tests.servers import Lacking, lacking
from tests.servers.redis import RedisServer, endless_keys
from tests.simulators.model_server import ModelServer
from tests.system import System, fill, until
from workers.limits import rules
from workers.views import RunView

DIM = 32
UNDER_WAY_S = 1.0
"""Requests that were sent before the first refusal was read arrive so much later on a busy machine."""
SMALL = "windows:32/0"
"""Many chunks for little text."""


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer(dim=DIM) as running:
        yield running


@pytest.fixture
def model(server: ModelServer) -> ModelServer:
    """A model server that is well, and remembers."""
    server.clear()
    server.config(dim=DIM, keep_log=True)
    return server


class Site:
    """A system with one node of its own and others beside it, all with one credential."""

    def __init__(self, home: Path, model: ModelServer, redis_url: str, **given: Any) -> None:
        # Its preset takes ten texts a request: many requests for few documents.
        common = {"embedder": "qwen:stub", "embedder_base_url": model.url, "embedder_api_key": "k", "chunker": SMALL, "worker_processes": 1}
        self.system = System(home, redis_url=redis_url, **{**common, **given})
        self.more: list[Part] = []

    def __enter__(self) -> Site:
        self.system.start()
        return self

    def __exit__(self, *_: object) -> None:
        for part in self.more:
            part.end()
        self.system.close(check=False)

    def add(self, name: str) -> Part:
        """One more node that embeds."""
        self.more.append(worker(self.system.settings, name, "embed", concurrency=4))
        return self.more[-1].ready()

    def spared(self, run: RunView) -> None:
        """Nobody lost an attempt, and everything is there."""
        assert (run.failed, run.indexed) == (0, run.discovered)
        with self.system.ledger() as ledger:
            assert ledger.execute("SELECT count(*) FROM attempts WHERE outcome = 'dead'").fetchone() == (0,)
        self.system.audit(run.collection)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as held:
        yield held


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, server: ModelServer) -> Iterator[Site]:
    """Two nodes without a limit of ours. Each test has a collection of its own, and leaves the model server well."""
    try:
        redis = RedisServer()
    except Lacking as reason:
        lacking("Redis", str(reason))
    redis.start()
    with ExitStack() as held:
        held.callback(redis.close)
        site = held.enter_context(Site(tmp_path_factory.mktemp("pair"), server, redis.url))
        site.add("second")
        yield site


def busiest(times: list[float], window_s: float) -> int:
    """Most requests within any such window."""
    times, first, most = sorted(times), 0, 0
    for last, moment in enumerate(times):
        while moment - times[first] >= window_s:
            first += 1
        most = max(most, last - first + 1)
    return most


def embeddings(model: ModelServer, status: int | None = None) -> list[float]:
    return [moment for moment, path, said in model.log() if path.endswith("/embeddings") and status in (None, said)]


def test_some_refusals_cost_no_more_than_themselves(tmp_path: Path, model: ModelServer, pair: Site) -> None:
    folder = fill(tmp_path / "docs", 115, paragraphs=12)
    undisturbed = pair.system.finish(pair.system.ingest(folder, collection="undisturbed"), 120.0)
    least = model.stats()["requests"]
    model.reset()
    model.config(fail_429_rate=0.02, fail_500_rate=0.01)
    run = pair.system.finish(pair.system.ingest(folder, collection="refused"), 120.0)
    stats = model.stats()
    assert stats["embed"] >= 500 and stats["fail_429"] > 2 and stats["fail_500"] > 1
    assert stats["requests"] <= 1.06 * least
    assert pair.system.counts(run) == pair.system.counts(undisturbed)
    pair.spared(run)


def test_two_nodes_with_one_credential_keep_one_rate(tmp_path: Path, model: ModelServer, redis_url: str, stack: ExitStack) -> None:
    rate = 25
    site = stack.enter_context(Site(tmp_path / "home", model, redis_url, embedder_rps=rate))
    site.add("second")
    run = site.system.finish(site.system.ingest(fill(tmp_path / "docs", 32, paragraphs=12)), 60.0)
    times = embeddings(model)
    assert len(times) > 4 * rate
    assert busiest(times, 4.0) <= 4 * rate, "in any four seconds"
    assert busiest(times, 1.0) <= 1.2 * rate, "threads of a busy machine do not all wake in time"
    assert max(times) - min(times) < 4.0 * len(times) / rate, "and it is made use of, on a busy machine too"
    site.spared(run)


def test_a_429_stops_every_node_for_as_long_as_the_server_says(tmp_path: Path, model: ModelServer, pair: Site) -> None:
    model.config(latency_ms=20)
    run = pair.system.ingest(fill(tmp_path / "docs", 30, paragraphs=12), collection="stopped")
    until(lambda: len(embeddings(model)) > 20, 30.0, "both are at work")
    model.config(status=429, retry_after="3")
    until(lambda: len({round(moment) for moment in embeddings(model, 429)}) > 2, 60.0, "it has said so three times")
    model.config(status=0, retry_after="")
    run = pair.system.finish(run, 60.0)
    refused = sorted(embeddings(model, 429))
    first = refused[0]
    assert not [moment for moment in refused if first + UNDER_WAY_S < moment < first + 3.0], "those under way came, then nobody"
    assert len([moment for moment in refused if moment > first + UNDER_WAY_S]) <= 4, "afterwards one asked for all"
    assert not pair.system.rows("SELECT 1 FROM documents WHERE attempts > 0")
    pair.spared(run)


def test_no_more_requests_are_in_flight_than_there_are_slots(tmp_path: Path, model: ModelServer, redis_url: str, stack: ExitStack) -> None:
    site = stack.enter_context(Site(tmp_path / "home", model, redis_url, embedder_concurrency=3))
    site.add("second")
    model.config(latency_ms=25)
    run = site.system.finish(site.system.ingest(fill(tmp_path / "docs", 30, paragraphs=12)), 60.0)
    assert model.stats()["most_in_flight"] == 3
    site.spared(run)


def test_the_slots_of_a_killed_node_are_free_within_their_lease(
    tmp_path: Path, model: ModelServer, redis_server: RedisServer, stack: ExitStack
) -> None:
    site = stack.enter_context(Site(tmp_path / "home", model, redis_server.url, embedder_concurrency=2, lease_s=6, request_timeout_s=60))
    node = site.system.child("network")
    model.config(hang=True)
    run = site.system.ingest(fill(tmp_path / "docs", 3))
    with redis_server.client() as client:
        (name,) = until(lambda: list(client.scan_iter("dujiang.limit.embedder.*.slots")), 30.0, "slots are taken")
        held = until(lambda: found if len(found := set(client.zrange(name, 0, -1))) == 2 or embeddings(model) else None, 30.0, "requests hang")
        os.kill(node, signal.SIGKILL)
        model.config(hang=False)
        until(lambda: not held & set(client.zrange(name, 0, -1)), rules.LEASE_S + 10.0, "the dead node's slots are free")
        run = site.system.finish(run, 30.0)
        assert not endless_keys(client) - {key for key in endless_keys(client) if key.startswith(("dujiang._kombu", "dujiang.unacked"))}
    assert run.failed == 0


def test_a_server_that_fails_is_left_alone_and_asked_again_within_seconds(tmp_path: Path, model: ModelServer, pair: Site) -> None:
    model.config(latency_ms=10, status=500)
    run = pair.system.ingest(fill(tmp_path / "docs", 30, paragraphs=12), collection="failing")
    first = until(lambda: embeddings(model), 30.0, "it is asked")[0]
    shown = 'dujiang_breaker_open{dependency="embedder.qwen"} 1'
    until(lambda: shown in pair.system.platform.metrics(), 20.0, "it is said to be left alone")
    until(lambda: [moment for moment in embeddings(model) if moment > first + 5.0], 30.0, "it is asked now and then")
    model.config(status=0)
    failed = sorted(embeddings(model, 500))
    assert len([moment for moment in failed if moment > first + UNDER_WAY_S]) <= 5, "by one probe after 1, 2, 4, 5 … seconds"
    well = until(lambda: embeddings(model, 200), 30.0, "it is asked again")
    assert min(well) - max(failed) < rules.COOL_MOST_S + 3.0
    pair.spared(pair.system.finish(run, 60.0))
    assert not pair.system.rows("SELECT 1 FROM documents WHERE attempts > 0")


def test_losing_redis_contents_in_mid_run_loses_nothing(tmp_path: Path, model: ModelServer, redis_server: RedisServer, stack: ExitStack) -> None:
    site = stack.enter_context(Site(tmp_path / "home", model, redis_server.url, embedder_concurrency=4, embedder_rps=60))
    model.config(latency_ms=10)
    run = site.system.ingest(fill(tmp_path / "docs", 40, paragraphs=12))
    for wanted in (20, 60, 100):
        until(lambda wanted=wanted: len(embeddings(model)) > wanted, 30.0, "it goes on")
        redis_server.flush()
    run = site.system.finish(run, 60.0)
    assert model.stats()["most_in_flight"] <= 8, "slots that were lost are said again"
    with redis_server.client() as client:
        assert not [key for key in client.scan_iter("dujiang.limit.*") if client.ttl(key) == -1]
    site.spared(run)
