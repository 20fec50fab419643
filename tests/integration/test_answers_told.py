"""What an installation is told about its answers: support, cost by part, counts in the metrics, and what the cache did."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.questions import every_collection
from pipeline.contracts import Answer, Question
from pipeline.shapes import answer_json
from tests.simulators.model_server import ModelServer
from tests.system import settings_for
from workers.dispatch import Platform, open_platform
from workers.inline import run_inline
from workers.runtime import Runtime
from workers.views import Incoming

TEXT = "# Travel\n\nLin Cen approved the trip to Basalt Bay by high-speed train. Tickets cost 1,200 yuan.\n"
PRICES = json.dumps({"currency": "CNY", "openai:embed": {"input": 2.0}, "openai:chat": {"input": 4.0, "output": 8.0}})
ASKED = Question("Who approved the trip to Basalt Bay?", ("docs",))


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


@pytest.fixture
def given(model: ModelServer, redis_url: str) -> dict[str, object]:
    model.clear()
    served = {"embedder_base_url": model.url, "llm_base_url": model.url, "redis_url": redis_url}
    return {"embedder": "openai:embed", "llm": "openai:chat", "prices": PRICES, **served}


@pytest.fixture
def opened(tmp_path: Path, given: dict[str, object]) -> Iterator[Platform]:
    with filled(tmp_path / "home", given) as platform:
        yield platform


def filled(home: Path, given: dict[str, object]) -> Platform:
    """A platform with one document in it."""
    settings = settings_for(home, **given)
    runtime = Runtime(settings)
    runtime.db.migrate()
    platform = Platform(runtime)
    page = home / "a.md"
    page.write_text(TEXT, encoding="utf-8")
    run = platform.ingest("docs", [Incoming(key="a.md", path=str(page))])
    ended = run_inline(runtime, run.run_id)
    assert (ended.indexed, ended.failed) == (1, 0)
    return platform


def test_an_answer_and_a_run_tell_their_cost_by_part_and_the_metrics_add_it_up(opened: Platform) -> None:
    (name,) = every_collection(opened, "default")
    build = opened.run(opened.runs(collection=name).data[0].run_id).usage["build"]
    assert build.total_tokens and build.cost == pytest.approx(build.total_tokens * 2.0 / 1e6) and build.currency == "CNY"
    first, again = opened.ask(ASKED), opened.ask(ASKED)
    assert (first.cache, again.cache) == ("miss", "hit")
    reader, query = first.usage["reader"], first.usage["query"]
    assert reader.prompt_tokens and reader.completion_tokens and query.total_tokens
    assert reader.cost is not None and query.cost is not None
    assert reader.cost == pytest.approx((reader.prompt_tokens * 4.0 + reader.completion_tokens * 8.0) / 1e6)
    assert query.cost == pytest.approx(query.total_tokens * 2.0 / 1e6)
    bill = first.steps[-1]
    assert bill.stage == "cost" and bill.detail["cost"] == pytest.approx(reader.cost + query.cost)
    assert {bill.detail[name] for name in ("k", "budget_tokens")} == {10, 6000}
    assert again.steps[-1].detail["cost"] is None and again.steps[-1].detail["parts"] == {}
    text = opened.metrics()
    assert metric(text, 'dujiang_question_cost_total{part="reader",currency="CNY"}') == pytest.approx(reader.cost)
    assert metric(text, 'dujiang_question_tokens_total{part="reader",direction="input"}') == reader.prompt_tokens
    assert metric(text, 'dujiang_model_cost_total{part="build",model="openai:embed",currency="CNY"}') == pytest.approx(build.cost)


def metric(text: str, series: str) -> float:
    found = re.search(rf"^{re.escape(series)} (\S+)$", text, re.MULTILINE)
    assert found, f"no {series} in\n{text}"
    return float(found[1])


def test_status_and_metrics_tell_what_the_cache_did_for_every_process(opened: Platform) -> None:
    for _ in range(3):
        opened.ask(ASKED)
    opened.runtime.cache_tally.flush()
    with open_platform(opened.settings) as other:
        cache = other.status().cache
        assert cache is not None and (cache.hits, cache.misses, cache.entries) == (2, 1, 3)
        assert metric(other.metrics(), 'dujiang_cache_lookups_total{level="answer",outcome="hit"}') == 2
    opened.delete_document("docs", opened.documents("docs").data[0].document_id)
    cache = opened.status().cache
    assert cache is not None and cache.entries == 0, "what a collection's change made worthless is gone"
    assert opened.ask(ASKED).cache == "miss"


def test_an_answer_that_its_passages_do_not_carry_is_flagged_or_withheld_by_the_settings(
    tmp_path: Path, given: dict[str, object], model: ModelServer
) -> None:
    said = "Lin Cen approved the trip [1]. It rained for 40 days."
    with filled(tmp_path / "flag", {**given, "grounding_threshold": 0.6}) as platform:
        model.config(answers=[said])
        answer = platform.ask(ASKED)
        assert answer.text == said and answer.grounding.flagged and answer.grounding.unsupported == ("40",)
        assert metric(platform.metrics(), 'dujiang_question_ungrounded_total{action="flagged"}') == 1
    with filled(tmp_path / "refuse", {**given, "grounding_threshold": 0.6, "grounding_action": "refuse"}) as platform:
        answer = platform.ask(ASKED)
        assert answer.refused and "It rained for 40 days." in answer.reason
        *pieces, last = platform.stream(ASKED)
        assert isinstance(last, Answer) and last.refused and "".join(map(str, pieces)) == last.text
        shape = answer_json(last)["grounding"]
        assert isinstance(shape, dict) and shape["flagged"] is True


def test_a_cached_answer_is_given_only_to_those_who_may_read_its_collection_now(opened: Platform) -> None:
    reads = opened.create_key("reads", collections=("docs",), permissions=("read",))
    elsewhere = opened.create_key("elsewhere", collections=("other",), permissions=("read",))
    http = TestClient(create_app(opened, opened.settings), base_url="http://127.0.0.1:8400", client=("127.0.0.1", 50000))

    def asked(secret: str | None) -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {secret}"}
        answer = http.post("/api/v1/ask", json={"query": ASKED.text, "collections": ["docs"], "trace": True}, headers=headers)
        return answer.status_code, answer.json().get("cache", "")

    assert [asked(reads.key), asked(reads.key)] == [(200, "miss"), (200, "hit")]
    assert asked(elsewhere.key) == (404, "")
    opened.revoke_key(reads.key_id)
    assert asked(reads.key) == (401, "")
