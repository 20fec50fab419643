"""How work meets limits: short waits are slept, long ones told, and losing Redis stops nobody."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pipeline import embed, llm
from pipeline.contracts import Question, Stage
from pipeline.errors import BadRequest, PipelineError, QuotaExhausted, RateLimited, Unavailable
from pipeline.protocols import Generation, Service
from pipeline.settings import Settings
from tests.servers.redis import RedisServer
from tests.simulators.model_server import ModelServer
from tests.system import markdown, settings_for, until
from workers import queues
from workers.dispatch import Platform, open_platform
from workers.feeder import Feeder
from workers.inline import run_inline
from workers.ledger import forming, nodes, tallies
from workers.ledger.work import Issue
from workers.limits import Gate, Limits, fallback, rules, shared_url
from workers.limits.local import LocalBuckets
from workers.limits.rules import Rule, Said, Take
from workers.views import Incoming

EMBEDDER = Service("embedder", "openai", "openai at http://there", "secret")


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    with open_platform(settings_for(tmp_path)) as opened:
        yield opened


@pytest.fixture
def limits(platform: Platform) -> Limits:
    return platform.runtime.limits


def ask(gate: Gate, error: PipelineError | None = None, *, patience_s: float = 1.0) -> None:
    """One request, with what it came to."""
    with gate.request(patience_s=patience_s):
        if error is not None:
            raise error


def fail(gate: Gate, error: PipelineError, times: int = 1) -> None:
    for _ in range(times):
        with pytest.raises(type(error)):
            ask(gate, error)


def slow(limits: Limits, naps: list[float], **given: float) -> Gate:
    """A gate that notes its naps."""
    gate = limits.gate(Service("embedder", "openai", "openai at http://there", "secret", rps=given.get("rps", 0.0), tpm=int(given.get("tpm", 0))))
    sleep = gate.sleep

    def nap(seconds: float) -> None:
        naps.append(seconds)
        sleep(seconds)

    gate.sleep = nap
    return gate


def test_a_short_wait_is_slept_and_a_long_one_is_told(limits: Limits) -> None:
    naps: list[float] = []
    gate = slow(limits, naps, rps=5)
    for _ in range(3):
        ask(gate)
    assert len(naps) == 2 and all(0.1 < nap <= 0.22 for nap in naps)
    with pytest.raises(RateLimited) as told:
        ask(gate, patience_s=0.05)
    assert told.value.after is not None and 0.05 < told.value.after <= 0.22 and "http://there" in told.value.detail
    assert "secret" not in f"{told.value.detail} {gate.scope}"


def test_what_a_service_says_to_one_is_told_to_the_next_without_asking(limits: Limits) -> None:
    first, second = limits.gate(EMBEDDER), limits.gate(EMBEDDER)
    fail(first, RateLimited("no", after=30.0))
    with pytest.raises(RateLimited) as told:
        ask(second)
    assert told.value.after is not None and 29.0 < told.value.after <= 30.0 and not told.value.costs_attempt


def test_a_turn_that_came_while_the_service_was_closed_is_taken_anew(limits: Limits) -> None:
    """Else all who waited for their turns would ask in the moment that it opens again."""
    said = iter([Take(Said.LATER, 0.2), Take(Said.THROTTLED, 0.5), Take(Said.LATER, 0.1), Take(Said.SLOTS, 0.1), Take(Said.GO)])
    flags: list[bool] = []

    class Scripted(LocalBuckets):
        def take(self, scope: str, rule: Rule, holder: str, *, tokens: int, patience_s: float, paid: bool) -> Take:
            flags.append(paid)
            return next(said)

    gate = Gate(Scripted(), limits, "source.feishu.x", Rule(5.0, 1.0), "feishu", sleep=lambda seconds: None)
    with gate.request(patience_s=5.0):
        pass
    assert flags == [False, True, False, True, True]


def test_a_quota_is_told_as_one(limits: Limits) -> None:
    gate = limits.gate(EMBEDDER)
    fail(gate, QuotaExhausted("none left", until=datetime.now(UTC) + timedelta(seconds=200)))
    with pytest.raises(QuotaExhausted) as told:
        ask(gate)
    assert told.value.until is not None and 100 < (told.value.until - datetime.now(UTC)).total_seconds() < 201


def test_a_service_that_fails_again_and_again_is_left_alone_and_says_for_how_long(limits: Limits) -> None:
    gate = limits.gate(EMBEDDER)
    fail(gate, Unavailable("away", dependency=True), rules.FAILURES - 1)
    last = Unavailable("away", dependency=True)
    fail(gate, last)
    assert last.after is not None and 0 < last.after <= rules.COOL_S, "documents come back when it is asked again"
    with pytest.raises(Unavailable) as told:
        ask(gate, patience_s=0.0)
    assert told.value.code == "left_alone" and not told.value.costs_attempt


def test_a_request_that_the_service_refuses_shows_that_it_is_there(limits: Limits) -> None:
    gate = limits.gate(EMBEDDER)
    for _ in range(3):
        fail(gate, Unavailable("away", dependency=True), rules.FAILURES - 1)
        fail(gate, BadRequest("not like this"))
    ask(gate)


def test_a_bug_while_a_service_is_asked_says_nothing_about_it(limits: Limits) -> None:
    gate = limits.gate(EMBEDDER)
    for _ in range(2 * rules.FAILURES):
        with pytest.raises(ZeroDivisionError), gate.request():
            raise ZeroDivisionError
    ask(gate)


def test_tokens_are_paid_as_the_service_counts_them(limits: Limits) -> None:
    gate = limits.gate(Service("llm", "openai", "openai", "k", tpm=60_000))
    with gate.request(tokens=10_000) as permit:
        permit.used(100)
    ask(gate, patience_s=0.5)
    with gate.request(tokens=1, patience_s=0.5) as permit:
        permit.used(10_000)
    with pytest.raises(RateLimited):
        ask(gate)


def test_waits_and_refusals_are_counted_in_the_ledger(platform: Platform, limits: Limits) -> None:
    gate = slow(limits, [], rps=5)
    ask(gate)
    ask(gate)
    fail(gate, RateLimited("no", after=30.0))
    limits.counts.flush()
    with platform.db.read() as connection:
        counted = {name: value for (name, labels), value in tallies.kept(connection).items() if labels == ("openai",)}
    assert counted["provider_waits"] == 2 and 0.1 < counted["provider_wait_seconds"] < 0.5 and counted["provider_throttles"] == 1


# ---------------------------------------------------------------- embedder and reader


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer(dim=8) as running:
        yield running


def asking(home: Path, server: ModelServer) -> Settings:
    server.clear()
    server.config(dim=8)
    given = {"embedder": "qwen:stub", "embedder_base_url": server.url, "llm": "openai:stub", "llm_base_url": server.url}
    return settings_for(home, **given)


def test_embedder_and_reader_are_throttled_apart(tmp_path: Path, server: ModelServer) -> None:
    settings = asking(tmp_path, server)
    with open_platform(settings) as platform:
        limits = platform.runtime.limits
        found, reader = embed.service(settings), llm.service(settings)
        assert found is not None and reader is not None
        embedder, model = embed.create(settings, limits.gate(found)), llm.create(settings, limits.gate(reader))
        server.config(status=429, retry_after="30")
        for _ in range(3):
            with pytest.raises(RateLimited):
                embedder.encode(["text"])
        assert server.stats()["requests"] == 1
        server.config(status=0)
        assert model.complete([("user", "hello")], Generation()).usage.requests == 1
        pieces = list(model.stream([("user", "hello")], Generation()))
        assert len(pieces) > 1
        server.config(status=429)
        for _ in range(3):
            with pytest.raises(RateLimited):
                list(model.stream([("user", "hello")], Generation()))
        assert server.stats()["requests"] == 4


def test_a_reranker_that_says_not_so_fast_is_left_alone_and_its_tokens_count(tmp_path: Path, server: ModelServer) -> None:
    server.clear()
    address = {"reranker": "jina:stub", "reranker_base_url": server.url}
    passages = ["boats on the river", "a gauge"] * 200
    with open_platform(settings_for(tmp_path, **address)) as platform:
        model = platform.runtime.reranker
        assert model is not None and model.rerank("gauge", passages[:2]) == [0.0, 1.0]
        server.config(status=429, retry_after="30")
        for _ in range(3):
            with pytest.raises(RateLimited):
                model.rerank("gauge", passages)
        assert server.stats()["requests"] == 2
        server.config(status=0)
    with open_platform(settings_for(tmp_path, **address, reranker_api_key="another", reranker_tpm=600)) as platform:
        model = platform.runtime.reranker
        assert model is not None and len(model.rerank("gauge", passages)) == len(passages)
        with pytest.raises(RateLimited):
            model.rerank("gauge", passages)
        assert server.stats()["requests"] == 3


def test_a_question_is_answered_in_the_order_of_retrieval_while_the_reranker_has_no_turn(tmp_path: Path, server: ModelServer) -> None:
    server.clear()
    settings = settings_for(tmp_path, reranker="jina:stub", reranker_base_url=server.url, reranker_tpm=1)
    with open_platform(settings) as platform:
        run_inline(platform.runtime, platform.ingest("docs", [Incoming("a.md", data=b"# A\n\nThe gauge is checked every month.\n")]).run_id)
        steps = [platform.search(Question("gauge", ("docs",))).steps for _ in range(2)]
    said = [step.degraded for found in steps for step in found if step.stage == "rerank"]
    assert said[0] == "" and "rate_limited" in said[1]
    assert server.stats()["rerank"] == 1


def test_a_stream_that_is_closed_in_the_middle_gives_its_slot_back(tmp_path: Path, server: ModelServer) -> None:
    settings = settings_for(tmp_path, **{"llm": "openai:stub", "llm_base_url": server.url, "llm_concurrency": 1})
    server.clear()
    with open_platform(settings) as platform:
        found = llm.service(settings)
        assert found is not None
        model = llm.create(settings, platform.runtime.limits.gate(found))
        for _ in range(3):
            stream = model.stream([("user", "hello")], Generation())
            next(stream)
            stream.close()  # pyright: ignore[reportAttributeAccessIssue]


def test_vectors_that_came_before_a_failure_are_not_asked_for_again(tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """One document of many requests, some of which fail each time."""
    monkeypatch.setattr("workers.verdict.jitter", lambda tries, cap_s=0.0: 0.02)
    monkeypatch.setattr(rules, "PAUSE_S", 0.02)
    settings = asking(tmp_path, server)
    server.config(fail_500_rate=0.3, fail_429_rate=0.1)
    with open_platform(settings) as platform:
        platform.create_collection("docs", chunker="windows:32/0")
        text = "\n".join(markdown(number, paragraphs=12) for number in range(6))
        run = run_inline(platform.runtime, platform.ingest("docs", [Incoming("long.md", data=text.encode())]).run_id)
        assert run.indexed == 1
        stats = server.stats()
        assert stats["fail_500"] > 2
        assert stats["inputs"] == platform.audit("docs").collections[0].chunks, "no text is sent twice, once it was answered"


# ---------------------------------------------------------------- the feeder


def test_documents_stay_ready_while_their_service_is_left_alone(tmp_path: Path, server: ModelServer) -> None:
    with open_platform(asking(tmp_path, server)) as platform:
        runtime, sent = platform.runtime, list[Issue]()
        feeder = Feeder(platform.db, {stage: forming.Window(4) for stage in queues.ORDER}, sent.extend, runtime.pace)
        items = [Incoming(f"{number}.md", data=markdown(number).encode()) for number in range(600)]
        platform.ingest("docs", items)
        found = embed.service(runtime.settings)
        assert found is not None
        gate = runtime.limits.gate(found)
        with platform.db.write() as connection:
            connection.exec_driver_sql("UPDATE documents SET stage = 'embed', chunks = 20")
        fail(gate, RateLimited("no", after=0.4))
        assert feeder.tick() == 0 and not sent
        until(lambda: feeder.tick(), 10.0, "somebody may ask")
        assert [issue.stage for issue in sent] == [Stage.EMBED] and feeder.tick() == 0, "one batch, until it is answered"
        ask(gate)
        assert feeder.tick() == 3, "and then as many as its window holds"
        with platform.db.read() as connection:
            assert connection.exec_driver_sql("SELECT max(attempts), max(waits) FROM documents").fetchone() == (0, 0)


def test_other_stages_go_on_meanwhile(tmp_path: Path, server: ModelServer) -> None:
    with open_platform(asking(tmp_path, server)) as platform:
        runtime, sent = platform.runtime, list[Issue]()
        feeder = Feeder(platform.db, {stage: forming.Window(4) for stage in queues.ORDER}, sent.extend, runtime.pace)
        found = embed.service(runtime.settings)
        assert found is not None
        fail(runtime.limits.gate(found), RateLimited("no", after=60.0))
        platform.ingest("docs", [Incoming("a.md", data=b"# A\n\ntext")])
        assert feeder.tick() == 1 and sent[0].stage is Stage.LOAD


# ---------------------------------------------------------------- without Redis


def test_without_redis_nodes_divide_what_is_allowed(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, broker_url="amqp://nowhere")
    assert not shared_url(settings)
    with open_platform(settings) as platform:
        for name in ("one", "two", "three", "four"):
            nodes.announce(platform.db, name, "worker", 1, ("dujiang.embed.bulk",))
        nodes.announce(platform.db, "parses", "worker", 1, ("dujiang.parse.bulk",))
        gate = platform.runtime.limits.gate(Service("embedder", "openai", "openai", "k", rps=4))
        ask(gate)
        with pytest.raises(RateLimited) as told:
            ask(gate, patience_s=0.5)
        assert told.value.after == pytest.approx(4 / 4 / rules.HEADROOM, abs=0.2)


def test_losing_redis_is_said_once_stops_nobody_and_ends_with_it(
    tmp_path: Path, redis_server: RedisServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fallback, "AGAIN_S", 0.2)
    caplog.set_level(logging.INFO, logger="dujiang.limits")
    with open_platform(settings_for(tmp_path, redis_url=redis_server.url)) as platform:
        limits = platform.runtime.limits
        gate = limits.gate(Service("embedder", "openai", "openai", "k", rps=1000, concurrency=2))
        ask(gate)
        with redis_server.client() as client:
            assert list(client.scan_iter("dujiang.limit.*"))
        redis_server.kill()
        for _ in range(20):
            ask(gate)
        assert [record.levelname for record in caplog.records] == ["WARNING"] and "limits of its own" in caplog.text
        fail(gate, RateLimited("no", after=30.0))
        with pytest.raises(RateLimited):
            ask(gate)
        assert limits.figures() == {}
        limits.counts.flush()
        with platform.db.read() as connection:
            assert tallies.kept(connection)["limits_alone", ()] == 1
        redis_server.start()
        until(lambda: _asked(gate), 10.0, "limits are shared again, and Redis knows of no 429")
        assert "shared again" in caplog.text


def _asked(gate: Gate) -> bool:
    try:
        ask(gate)
    except RateLimited:
        return False
    return True
