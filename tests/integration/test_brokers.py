"""Redis, Valkey and RabbitMQ: whichever carries the messages, the same is built, whatever happens to workers and broker."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import amqp
import pytest

from pipeline.contracts import Lane
from tests.servers import Lacking, lacking
from tests.servers.rabbitmq import RabbitMQ
from tests.servers.redis import RedisServer, debian, endless_keys, program
from tests.simulators.model_server import ModelServer
from tests.system import Counts, System, fill, until
from workers import queues
from workers.ledger import sweeping
from workers.views import Incoming

TEXTS, DOCUMENTS = 80, 20
BULK = "dujiang.parse.bulk"


@dataclass(frozen=True)
class Server:
    """One broker, and what may happen to it."""

    settings: Mapping[str, Any]
    depth: Callable[[str], int]
    purge: Callable[[], int]
    """Its queues lose the messages that wait in them; gives how many, of those that nobody else could have taken meanwhile."""
    crash: Callable[[], None]
    """It is killed, and comes back as its configuration has it."""
    wipe: Callable[[], None]
    """It comes back as one that has never run."""
    leftovers: Callable[[], set[str]]
    close: Callable[[], None]


def redis_like(path: Path) -> Server:
    server = RedisServer(path)
    server.start()

    def depth(queue: str) -> int:
        with server.client() as client:
            return int(client.llen(f"dujiang.{queue}"))

    def left() -> set[str]:
        with server.client() as client:
            lists = {key.decode() for key in client.scan_iter("dujiang.dujiang.*") if client.type(key) == b"list"}
            unacked = {f"unacked {tag!r}" for tag in client.hkeys("dujiang.unacked")}
            return lists | unacked | endless_keys(client)

    def purge() -> int:
        waiting = depth(BULK)
        if waiting:
            server.flush()
        return waiting

    return Server({"redis_url": server.url}, depth, purge, server.restart, server.restart, left, server.close)


def rabbitmq(server: RabbitMQ, *, quorum: bool) -> Server:
    host = server.fresh()

    def declared(queue: str) -> tuple[str, int, int]:
        with server.connect(host) as connection, closing(connection.channel()) as channel:
            try:
                return channel.queue_declare(queue, passive=True)  # pyright: ignore[reportReturnType]
            except amqp.NotFound:
                return queue, 0, 0

    def purge() -> int:
        there = [queue for queue in queues.all_queues() if declared(queue)[1]]
        with server.connect(host) as connection, closing(connection.channel()) as channel:
            return sum(channel.queue_purge(queue) or 0 for queue in there)

    def left() -> set[str]:
        return {queue for queue in queues.all_queues() if declared(queue)[1]}

    settings = {"broker_url": server.url(host), "broker_queues": "quorum" if quorum else "classic"}
    return Server(settings, lambda queue: declared(queue)[1], purge, server.restart, lambda: server.restart(wiped=True), left, lambda: None)


def make(name: str, request: pytest.FixtureRequest) -> Server:
    match name:
        case "redis":
            return redis_like(debian())
        case "valkey":
            return redis_like(program())
        case _:
            return rabbitmq(request.getfixturevalue("node"), quorum=False)


@pytest.fixture(scope="module")
def node() -> Iterator[RabbitMQ]:
    """A node of this module's own, to be crashed and wiped."""
    try:
        server = RabbitMQ()
    except Lacking as reason:
        lacking("RabbitMQ", str(reason))
    server.start()
    yield server
    server.close()


BOTH_KINDS = pytest.mark.parametrize("broker", ["valkey", "rabbitmq"], indirect=True)
"""Where nothing depends on which of the two speaks Redis' protocol."""


@pytest.fixture(scope="module", params=["valkey", "rabbitmq", "redis"])
def broker(request: pytest.FixtureRequest) -> Iterator[Server]:
    try:
        server = make(request.param, request)
    except Lacking as reason:
        lacking(request.param, str(reason))
    yield server
    server.close()


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    with ModelServer(dim=64, latency_ms=30) as server:
        yield server


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("corpus") / "docs", TEXTS, documents=DOCUMENTS)


@pytest.fixture(scope="module")
def undisturbed(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Counts:
    """What the corpus comes to without any broker."""
    system = System(tmp_path_factory.mktemp("undisturbed"))
    counts = system.counts(system.inline(corpus))
    system.close()
    return counts


@pytest.fixture(scope="module")
def system(broker: Server, model: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """Every test uses a tenant of its own."""
    with System(tmp_path_factory.mktemp("home"), embedder="openai:stub", embedder_base_url=model.url, **broker.settings) as running:
        yield running


def done(system: System, tenant: str) -> int:
    return int(system.rows("SELECT count(*) FROM documents WHERE tenant = ? AND status = 'done'", tenant)[0][0])


def wait_for_progress(system: System, tenant: str) -> None:
    until(lambda: done(system, tenant) > 0, 30.0, "a document is done")


def test_a_run_builds_what_is_built_without_a_broker_and_leaves_nothing_behind(
    system: System, broker: Server, corpus: Path, undisturbed: Counts
) -> None:
    # Of a worker that another test has killed, a message may be held until its time is up.
    others = {name for name in broker.leftovers() if name.startswith("unacked")}
    run = system.finish(system.ingest(corpus, tenant="plain"))
    assert system.counts(run, "plain") == undisturbed
    until(lambda: not broker.leftovers() - others, 15.0, "the broker holds nothing of it")
    assert system.rows("SELECT count(*) FROM batches WHERE status IN ('queued', 'leased')") == [(0,)]


@BOTH_KINDS
def test_a_killed_worker_costs_nothing(system: System, corpus: Path, undisturbed: Counts) -> None:
    run = system.ingest(corpus, tenant="killed")
    system.caught("embed", lambda held: os.kill(held.node_pid, signal.SIGKILL))
    assert system.counts(system.finish(run), "killed") == undisturbed


def test_lost_messages_are_sent_again(system: System, broker: Server, corpus: Path, undisturbed: Counts) -> None:
    """The node that consumes BULK is stopped while it fills. It may have been handed a message before; the next one waits until it is lost."""
    node = system.child("compute")
    # What an earlier test left behind is no message of this run.
    until(lambda: not any(broker.depth(queue) for queue in queues.declared()), 30.0, "the queues are empty")
    os.kill(node, signal.SIGSTOP)
    try:
        run = system.ingest(corpus, tenant="lost")
        until(broker.purge, 30.0, "a message waited in a queue, and was lost")
    finally:
        os.kill(node, signal.SIGCONT)
    assert system.counts(system.finish(run), "lost") == undisturbed
    assert system.rows("SELECT count(*) FROM batches WHERE tenant = 'lost' AND token > 1")[0][0] > 0, "nothing was lost"


def test_a_broker_that_crashes_in_mid_run_costs_nothing(system: System, broker: Server, corpus: Path, undisturbed: Counts) -> None:
    run = system.ingest(corpus, tenant="crashed")
    wait_for_progress(system, "crashed")
    broker.crash()
    assert system.counts(system.finish(run, 90.0), "crashed") == undisturbed


def test_a_broker_that_forgot_everything_is_noticed_by_its_missing_mark(system: System, broker: Server, corpus: Path, undisturbed: Counts) -> None:
    until(lambda: system.platform.runtime.broker.epoch(), 15.0, "the broker has its mark")
    run = system.ingest(corpus, tenant="wiped")
    wait_for_progress(system, "wiped")
    broker.wipe()
    assert system.counts(system.finish(run, 90.0), "wiped") == undisturbed
    mark = sweeping.epoch(system.platform.db)
    until(lambda: system.platform.runtime.broker.epoch() == mark, 30.0, "the mark is set again")


@BOTH_KINDS
def test_what_a_person_uploads_goes_by_queues_of_its_own(system: System) -> None:
    run = system.platform.ingest("docs", [Incoming("note.md", data=b"# A note\n\nThe gauge was read.\n")], lane=Lane.INTERACTIVE, tenant="person")
    assert system.finish(run).indexed == 1
    lanes = {queue.rpartition(".")[2] for (queue,) in system.rows("SELECT queue FROM batches WHERE tenant = 'person'")}
    assert lanes == {"interactive"}


@BOTH_KINDS
def test_a_run_is_paused_resumed_and_cancelled(system: System, corpus: Path, undisturbed: Counts) -> None:
    run = system.ingest(corpus, tenant="held")
    system.platform.pause(run.run_id)
    assert system.platform.run(run.run_id).status == "paused"
    system.platform.resume(run.run_id)
    assert system.counts(system.finish(run), "held") == undisturbed
    second = system.ingest(corpus, tenant="cancelled")
    system.platform.cancel(second.run_id)
    ended = system.finish(second)
    assert ended.status == "cancelled" and ended.discovered == ended.indexed + ended.unchanged + ended.failed + ended.cancelled + ended.skipped


def test_status_and_doctor_know_the_broker(system: System, broker: Server) -> None:
    status = until(lambda: _healthy(system), 30.0, "every queue has a consumer")
    assert set(status.queues) == set(queues.all_queues())
    assert all(view.depth == 0 for view in status.queues.values())
    named = {check.name: check for check in system.platform.doctor()}
    assert named["broker"].ok and named["queues"].ok
    lacks_redis = any("no Redis" in part for part in status.degraded)
    assert lacks_redis == ("broker_url" in broker.settings), status.degraded


def _healthy(system: System):
    status = system.platform.status()
    return status if all(view.consumers for view in status.queues.values()) else None


@BOTH_KINDS
def test_the_number_of_waiting_messages_is_told(system: System, broker: Server, corpus: Path) -> None:
    node = system.child("compute")
    os.kill(node, signal.SIGSTOP)
    try:
        run = system.ingest(corpus, tenant="waiting")
        until(lambda: broker.depth(BULK), 15.0, "messages wait in the queue")
        until(lambda: system.platform.status().queues[BULK].depth == broker.depth(BULK), 5.0, "status tells how many")
    finally:
        os.kill(node, signal.SIGCONT)
    system.finish(run)


def test_quorum_queues_carry_a_run_through_a_crash_and_queues_of_another_kind_are_refused_with_the_cure(
    node: RabbitMQ, model: ModelServer, corpus: Path, undisturbed: Counts, tmp_path: Path
) -> None:
    quorum = rabbitmq(node, quorum=True)
    given = {"embedder": "openai:stub", "embedder_base_url": model.url}
    with System(tmp_path / "quorum", **given, **quorum.settings) as system:
        run = system.ingest(corpus)
        wait_for_progress(system, "default")
        quorum.crash()
        assert system.counts(system.finish(run, 90.0)) == undisturbed
    classic = System(tmp_path / "classic", **given, **{**quorum.settings, "broker_queues": "classic"})
    with pytest.raises(AssertionError, match=r"queue_of_another_kind: the queue .* is not classic"):
        classic.start()
    classic.close()
