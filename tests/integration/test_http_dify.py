"""A client written to Dify's contract for external knowledge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.served_api import Served, served

TEXTS = {"travel.md": "# Travel\n\nThe head of department approves travel. Trains are preferred.\n"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("dify")) as here:
        here.ingest("handbook", TEXTS, year=2024, team="duty", day="2024-05-01")
        here.ingest(
            "handbook", {"boats.md": "# Boats\n\nTravel by boat is approved by the lock keeper.\n"}, year=2020, team="locks", day="2020-05-01"
        )
        here.ingest("secret", {"plan.md": "# Plan\n\nTravel to the secret station.\n"})
        yield here


@pytest.fixture(scope="module")
def key(home: Served) -> str:
    return home.key("dify", "handbook")


def ask(
    home: Served, key: str, knowledge: str = "handbook", conditions: list[dict[str, Any]] | None = None, joined: str = "and", **setting: Any
) -> httpx.Response:
    body: dict[str, Any] = {"knowledge_id": knowledge, "query": "Who approves travel?"}
    body["retrieval_setting"] = {"top_k": 5, "score_threshold": 0.0, **setting}
    if conditions is not None:
        body["metadata_condition"] = {"logical_operator": joined, "conditions": conditions}
    return httpx.post(f"{home.url}/dify/retrieval", json=body, headers={"Authorization": f"Bearer {key}"})


def titles(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return sorted(record["title"] for record in answer.json()["records"])


def test_records_have_what_dify_reads(home: Served, key: str) -> None:
    records = ask(home, key).json()["records"]
    assert {"Travel", "Boats"} == {record["title"] for record in records}
    for record in records:
        assert set(record) == {"content", "score", "title", "metadata"} and 0.0 <= record["score"] <= 1.0
        assert isinstance(record["metadata"], dict) and record["metadata"]["team"] in {"duty", "locks"} and record["content"]
    assert len(ask(home, key, top_k=1).json()["records"]) == 1
    assert ask(home, key, score_threshold=1.0).json() == {"records": []}


@pytest.mark.parametrize(
    ("operator", "name", "value", "found"),
    [
        ("is", "team", "duty", ["Travel"]),
        ("is not", "team", "duty", ["Boats"]),
        ("≥", "year", "2021", ["Travel"]),
        ("<", "year", 2021, ["Boats"]),
        ("=", "year", 2024, ["Travel"]),
        ("in", "team", ["duty", "locks"], ["Boats", "Travel"]),
        ("not in", "team", "duty, locks", []),
        ("in", "team", "duty, none", ["Travel"]),
        ("before", "day", "2021-01-01", ["Boats"]),
        ("after", "day", "2021-01-01", ["Travel"]),
        ("after", "year", 2021, ["Travel"]),
        ("not empty", "team", None, ["Boats", "Travel"]),
        ("empty", "team", None, []),
    ],
)
def test_conditions_on_metadata_hold(home: Served, key: str, operator: str, name: str, value: object, found: list[str]) -> None:
    condition = {"name": name, "comparison_operator": operator, "value": value}
    assert titles(ask(home, key, conditions=[condition])) == found
    assert titles(ask(home, key, conditions=[{**condition, "name": [name]}])) == found


@pytest.mark.parametrize(
    "condition",
    [
        {"comparison_operator": "contains", "value": "du"},
        {"comparison_operator": "≥", "value": "old"},
        {"comparison_operator": "≥", "value": "1e999"},
        {"comparison_operator": "before", "value": "2024-W10-1"},
        {"comparison_operator": "in"},
        {"comparison_operator": "is", "value": {"a": 1}},
    ],
)
def test_a_condition_that_cannot_be_kept_is_refused_and_never_left_out(home: Served, key: str, condition: dict[str, Any]) -> None:
    answer = ask(home, key, conditions=[{"name": "team", **condition}])
    assert answer.status_code == 422 and answer.json()["error_code"] == 422 and answer.json()["error_msg"]


def test_alternatives_are_kept_where_one_field_has_one_of_several_values_and_refused_otherwise(home: Served, key: str) -> None:
    duty = {"name": "team", "comparison_operator": "is", "value": "duty"}
    locks = {"name": "team", "comparison_operator": "in", "value": ["locks"]}
    young = {"name": "year", "comparison_operator": "=", "value": 2024}
    late = {"name": "year", "comparison_operator": ">", "value": 2021}
    assert titles(ask(home, key, conditions=[duty, locks], joined="or")) == ["Boats", "Travel"]
    assert titles(ask(home, key, conditions=[duty, {**duty, "value": "none"}], joined="or")) == ["Travel"]
    assert titles(ask(home, key, conditions=[late], joined="or")) == ["Travel"], "one condition has no alternative"
    assert titles(ask(home, key, conditions=[duty, locks], joined="and")) == []
    for several in ([duty, young], [late, young], [locks, {**duty, "comparison_operator": "is not"}]):
        assert ask(home, key, conditions=several, joined="or").status_code == 422
    assert ask(home, key, conditions=[duty], joined="xor").status_code == 422


def test_errors_have_difys_codes(home: Served, key: str) -> None:
    assert ask(home, key, "nothing").json()["error_code"] == 2001
    assert ask(home, key, "secret").json()["error_code"] == 2001, "what a key may not see does not exist"
    assert (ask(home, "wrong").status_code, ask(home, "wrong").json()["error_code"]) == (401, 1002)
    header = httpx.post(f"{home.url}/dify/retrieval", content=b"{", headers={"Authorization": "Token x", "Content-Type": "application/json"})
    assert (header.status_code, header.json()["error_code"]) == (401, 1001)
    assert ask(home, key, top_k=0).status_code == 422
