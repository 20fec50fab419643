"""JSON from a model: what is right stays as it is, what can be mended is, what cannot is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.contracts import Completion, Usage
from pipeline.errors import BrokenContract, PipelineError
from pipeline.llm.openai import build
from pipeline.protocols import Generation
from pipeline.settings import Settings
from pipeline.structured import ask_json, read
from tests.simulators.model_server import ModelServer

SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 40},
        "rating": {"type": "number"},
        "count": {"type": "integer"},
        "sure": {"type": "boolean"},
        "kind": {"type": "string", "enum": ["person", "place"]},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
    },
    "required": ["title"],
}


@dataclass
class Saying:
    """A model that says these in turn."""

    answers: list[str]
    finish: str = "stop"
    name: str = "stub"
    revision: str = "1"
    asked: list[tuple[Sequence[tuple[str, str]], Generation]] = field(default_factory=list[tuple[Sequence[tuple[str, str]], Generation]])

    def complete(self, messages: Sequence[tuple[str, str]], options: Generation) -> Completion:
        self.asked.append((messages, options))
        return Completion(self.answers[len(self.asked) - 1], "stub", Usage(10, 5, 15, requests=1), self.finish)

    def stream(self, messages: Sequence[tuple[str, str]], options: Generation) -> Iterator[str | Completion]:
        yield self.complete(messages, options)


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ('```json\n{"title": "Gauge",}\n```', {"title": "Gauge"}),
        ('Here it is: {"title": "Gauge"} I hope it helps!', {"title": "Gauge"}),
        ("{'title': 'Gauge', 'sure': True}", {"title": "Gauge", "sure": True}),
        ('{"title": "Gauge", "rating": 7, "count": "12"}', {"title": "Gauge", "rating": 7, "count": 12}),
        ('{"title": "Gauge", "tags": "one"}', {"title": "Gauge", "tags": ["one"]}),
        ('{"title": "Gauge", "tags": ["a", "b", "c", "d"]}', {"title": "Gauge", "tags": ["a", "b", "c"]}),
        ('{"title": "Gauge", "kind": "Person"}', {"title": "Gauge", "kind": "person"}),
        ('{"title": "Gauge", "tags": ["a", "b"', {"title": "Gauge", "tags": ["a", "b"]}),
        ('{"title": "Gauge", "unasked": 1, "rating": null}', {"title": "Gauge"}),
        ("{“title”: “Gauge”}", {"title": "Gauge"}),
    ],
)
def test_what_models_get_wrong_is_put_right(said: str, value: dict[str, Any]) -> None:
    assert read(said, SCHEMA)[0] == value


@pytest.mark.parametrize("said", ["no JSON at all", "[1, 2]", '{"rating": 7}', '{"title": "x", "kind": "thing"}', '{"title": "x", "count": 1.5}', ""])
def test_what_does_not_fit_is_refused_and_named(said: str) -> None:
    with pytest.raises(BrokenContract):
        read(said, SCHEMA)


VALID = st.fixed_dictionaries(
    {"title": st.text(max_size=40)},
    optional={
        "rating": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**9), 10**9),
        "count": st.integers(-(10**9), 10**9),
        "sure": st.booleans(),
        "kind": st.sampled_from(["person", "place"]),
        "tags": st.lists(st.text(max_size=8), max_size=3),
    },
)


@settings(max_examples=200, deadline=None)
@given(VALID)
def test_a_right_answer_comes_back_unchanged(value: dict[str, Any]) -> None:
    assert read(json.dumps(value), SCHEMA) == (value, False)


@settings(max_examples=200, deadline=None)
@given(VALID, st.data())
def test_an_answer_that_was_cut_off_gives_nothing_that_was_not_said(value: dict[str, Any], data: st.DataObject) -> None:
    said = json.dumps(value)
    cut = said[: data.draw(st.integers(0, len(said)))]
    try:
        found, _ = read(cut, SCHEMA)
    except BrokenContract:
        return
    assert set(found) <= set(value)


def test_a_wrong_answer_is_asked_for_once_more_with_what_was_wrong() -> None:
    model = Saying(["I would rather not.", '{"title": "Gauge"}'])
    made = ask_json(model, [("user", "name it")], SCHEMA)
    assert (made.value, made.asked, made.usage.total_tokens) == ({"title": "Gauge"}, 2, 30)
    assert "no JSON object" in model.asked[1][0][-1][1] and model.asked[0][1].schema == SCHEMA


def test_two_wrong_answers_are_an_error_that_names_the_model() -> None:
    with pytest.raises(BrokenContract, match="stub gave no object"):
        ask_json(Saying(["no", "no"]), [("user", "name it")], SCHEMA)


def test_an_answer_that_was_cut_off_says_so() -> None:
    assert ask_json(Saying(['{"title": "Gau'], finish="length"), [("user", "name it")], SCHEMA).truncated


@pytest.mark.parametrize("text", ['{"title":' + "[" * 100_000, '{"title":' + "[" * 50_000 + "]" * 50_000 + "}"])
def test_an_answer_that_is_nested_without_end_is_refused_like_any_other(text: str) -> None:
    with pytest.raises(BrokenContract):
        read(text, SCHEMA)


def test_a_long_number_keeps_every_digit() -> None:
    assert read('{"title": "x", "count": "12345678901234567890"}', SCHEMA)[0]["count"] == 12345678901234567890


def test_a_refusal_that_has_nothing_to_do_with_the_form_does_not_weaken_it() -> None:
    with ModelServer(answers=['{"title": "x"}']) as server:
        llm = build(Settings(llm="openai:stub", llm_base_url=server.url))
        server.config(status=400)
        with pytest.raises(PipelineError):
            ask_json(llm, [("user", "name it")], SCHEMA)
        server.config(status=0)
        ask_json(llm, [("user", "name it")], SCHEMA)
        assert server.stats()["last"]["response_format"]["type"] == "json_schema"
