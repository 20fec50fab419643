"""Money is told by the operator's price list; what has no price or no count has no cost, and never costs nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline import pricing, settings
from pipeline.answer import ask
from pipeline.cache import MemoryCache
from pipeline.contracts import EmbeddedChunks, Question, Step, Usage
from pipeline.errors import BadRequest
from pipeline.llm.openai import build
from pipeline.protocols import Generation
from pipeline.settings import Settings
from pipeline.shapes import usage_json
from tests.fakes_answer import HashEmbedder, Reader, target
from tests.simulators.model_server import ModelServer

LIST = json.dumps(
    {
        "currency": "CNY",
        "qwen-*": {"input": 1.0},
        "qwen-plus*": {"input": 2.0, "output": 8.0, "cached": 0.5},
        "openai:stub": {"input": 4.0, "output": 8.0},
    }
)


def test_the_longest_pattern_that_fits_counts_with_or_without_the_provider() -> None:
    prices = pricing.load(LIST)
    found = [prices.of(name) for name in ("dashscope:qwen-plus-latest", "Qwen-Max", "openai:stub", "azure:stub", "stub")]
    assert [price and price.input for price in found] == [2.0, 1.0, 4.0, None, None]
    assert pricing.load("").of("stub") is None


def test_a_cost_is_input_cached_input_and_output_by_the_million() -> None:
    price = pricing.load(LIST).of("qwen-plus")
    assert price is not None
    spent = price.of(Usage(1_000_000, 500_000, 1_500_000, requests=1))
    assert (spent.cost, spent.currency) == (6.0, "CNY")
    assert price.of(Usage(1_000_000, 0, 1_000_000, requests=1, cached_tokens=400_000)).cost == pytest.approx(0.6 * 2.0 + 0.4 * 0.5)


def test_what_was_not_reported_has_no_cost() -> None:
    price = pricing.load(LIST).of("qwen-plus")
    assert price is not None
    assert price.of(Usage(requests=1)).cost is None
    assert price.of(Usage(10, None, None, requests=1)).cost is None
    assert pricing.Price("USD", 1.0).of(Usage(10, None, 10, requests=1)).cost == pytest.approx(1e-5)


def test_a_sum_is_unknown_as_soon_as_one_part_is() -> None:
    known, unknown = Usage(10, 5, 15, 1, 0, 0.5, None, "USD"), Usage(requests=1)
    assert pricing.added([known, known]).cost == 1.0
    assert pricing.added([known, Usage()]).cost == 0.5, "a part that was not asked costs nothing"
    mixed = pricing.added([known, unknown])
    assert (mixed.cost, mixed.total_tokens, mixed.requests) == (None, None, 2)
    assert pricing.added([]).cost is None


@pytest.mark.parametrize(
    "text",
    [
        "[",
        "[]",
        '{"a": 1}',
        '{"a": {}}',
        '{"a": {"input": -1}}',
        '{"a": {"input": true}}',
        '{"a": {"input": "1"}}',
        '{"a": {"input": 1, "out": 2}}',
        '{"currency": 3}',
    ],
)
def test_a_list_that_cannot_be_read_is_refused_with_its_cure(text: str) -> None:
    with pytest.raises(BadRequest, match="price list") as caught:
        pricing.load(text)
    assert "[prices]" in caught.value.hint


def test_the_list_is_a_table_of_the_settings_file_or_json_in_the_environment(tmp_path: Path) -> None:
    (tmp_path / "dujiang.toml").write_text('[prices]\ncurrency = "EUR"\n"gpt-4o-mini*" = { input = 0.15, output = 0.6 }\n', encoding="utf-8")
    from_file = settings.load(environ={"DUJIANG_HOME": str(tmp_path)}, cwd=tmp_path).settings
    price = pricing.load(from_file.prices).of("openai:gpt-4o-mini-2024")
    assert price == pricing.Price("EUR", 0.15, 0.6)
    told = settings.load(environ={"DUJIANG_HOME": str(tmp_path), "DUJIANG_PRICES": LIST}, cwd=tmp_path)
    assert pricing.load(told.settings.prices).currency == "CNY" and told.origin["prices"] == "DUJIANG_PRICES"


def test_a_list_that_cannot_be_read_is_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="price list"):
        settings.load(environ={"DUJIANG_HOME": str(tmp_path), "DUJIANG_PRICES": '{"a": 1}'}, cwd=tmp_path)


def test_a_reader_tells_its_cost_and_what_the_provider_had_cached() -> None:
    raw = {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "stub",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "yes"}}],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100, "prompt_cache_hit_tokens": 600},
    }
    prices = json.dumps({"stub": {"input": 1.0, "output": 2.0, "cached": 0.1}})
    with ModelServer(raw=json.dumps(raw)) as server:
        reader = build(Settings(llm="openai:stub", llm_base_url=server.url, prices=prices))
        usage = reader.complete([("user", "hi")], Generation()).usage
        assert usage.cached_tokens == 600 and usage.cost == pytest.approx((400 * 1.0 + 600 * 0.1 + 100 * 2.0) / 1e6)
        server.config(raw="")
        *_, whole = reader.stream([("user", "hi")], Generation())
        assert not isinstance(whole, str) and whole.usage.cost is not None
        server.config(no_usage=True)
        assert reader.complete([("user", "hi")], Generation()).usage.cost is None
        unpriced = build(Settings(llm="openai:stub", llm_base_url=server.url))
        assert unpriced.complete([("user", "hi")], Generation()).usage.cost is None


class Priced(HashEmbedder):
    def __init__(self, name: str, price: float | None) -> None:
        super().__init__(name, in_process=False)
        self.profile = replace(self.profile, price=price, currency="USD")

    def encode(self, texts):  # type: ignore[no-untyped-def]
        made = super().encode(texts)
        return EmbeddedChunks(made.vectors, made.model, made.revision, tokens=1_000_000)


TRIP = "Lin Cen approved the trip to Basalt Bay by high-speed train."
ASKED = Question("Who approved the trip to Basalt Bay?", ("handbook",), k=3)


def test_the_embedding_of_a_question_has_its_price_and_a_cached_answer_costs_nothing_anew() -> None:
    cache, place = MemoryCache(), target(TRIP, embedder=Priced("openai:e", 0.02))
    answer = ask(ASKED, [place], Reader("Lin Cen [1]."), cache=cache)
    assert answer.usage["query"].cost == 0.02 and answer.usage["reader"].cost is None
    shape = usage_json(answer.usage)
    assert isinstance(shape["query"], dict) and (shape["query"]["cost"], shape["query"]["currency"]) == (0.02, "USD")
    again = ask(ASKED, [place], Reader("Lin Cen [1]."), cache=cache)
    assert again.cache == "hit" and all(usage.cost is None and not usage.requests for usage in again.usage.values())


def test_two_embedders_of_which_one_has_no_price_have_no_cost_together() -> None:
    places = [target(TRIP, embedder=Priced("openai:e", 0.02)), target(TRIP, collection="b", embedder=Priced("openai:f", None))]
    assert ask(ASKED, places, Reader("Lin Cen [1].")).usage["query"].cost is None


def test_a_bill_names_k_the_budget_and_every_part() -> None:
    place = target(TRIP, embedder=Priced("openai:e", 0.02))
    answer = ask(ASKED, [place], Reader("Lin Cen [1]."))
    bill = pricing.bill(answer.usage, answer.steps)
    assert (bill.detail["k"], bill.detail["K"], bill.detail["budget_tokens"]) == (3, 32, 6000)
    assert bill.detail["parts"] == {
        "query": {"tokens": 1_000_000, "requests": 1, "cost": 0.02},
        "reader": {"tokens": 15, "requests": 1, "cost": None},
    }
    assert bill.detail["cost"] is None and bill.detail["currency"] == "USD" and bill.seconds > 0
    assert pricing.bill({}, [Step("retrieve", 1.0, {"from_cache": True})]).seconds == 0.0
