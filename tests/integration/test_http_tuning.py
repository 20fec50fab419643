"""A collection's search settings and its calibrated refusals, through a served system and the command line's client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from api import cli
from tests.served_api import Served, served

TEXTS = {
    f"{name}.md": f"# {name.title()}\n\nThe {name} is repaired by {keeper}.\n\n## Tools\n\nThe {name} needs {tool}.\n"
    for name, keeper, tool in (
        ("sluice", "Lin Cen", "grease"),
        ("weir", "Zhou Mei", "gravel"),
        ("lock", "Han Bo", "timber"),
        ("dam", "Wu Yi", "clay"),
    )
}
KNOWN = [f"Who repairs the {name}?" for name in ("sluice", "weir", "lock", "dam")] + ["What does the sluice need?", "Which tools does the weir need?"]
FOREIGN = ["Which comet was seen over Peru?", "How old is the emperor's violin?", "When did the opera burn?", "Which spice grows in Zanzibar?"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("tuning")) as here:
        here.platform.create_collection("works", chunker="sections:16/0")
        here.ingest("works", TEXTS)
        yield here


def key(home: Served, *permissions: str) -> str:
    made = home.platform.create_key("tuner", collections=(), permissions=permissions).key
    assert made
    return made


@pytest.fixture
def works(home: Served) -> Iterator[httpx.Client]:
    """The collection as nobody has set it."""
    headers = {"Authorization": f"Bearer {key(home, 'read', 'write')}"}
    with httpx.Client(base_url=f"{home.url}/api/v1", headers=headers, timeout=60.0) as client:
        client.patch("/collections/works", json=dict.fromkeys(("top_k", "score_threshold", "merge", "lexical_weight", "widen"))).raise_for_status()
        yield client


def search(client: httpx.Client, query: str = "Who repairs the sluice?", **given: Any) -> dict[str, Any]:
    return client.post("/search", json={"query": query, "collections": ["works"], **given}).raise_for_status().json()


def ask(client: httpx.Client, query: str, **given: Any) -> dict[str, Any]:
    return client.post("/ask", json={"query": query, "collections": ["works"], "trace": True, **given}).raise_for_status().json()


def step(found: dict[str, Any], stage: str) -> dict[str, Any]:
    return next(one["detail"] for one in found["trace"] if one["stage"] == stage)


def test_a_search_follows_its_collection_until_it_says_otherwise(works: httpx.Client) -> None:
    before = len(search(works)["hits"])
    view = works.patch("/collections/works", json={"top_k": 2, "merge": "rrf"}).raise_for_status().json()
    assert view["search"] == {"top_k": 2, "score_threshold": None, "merge": "rrf", "lexical_weight": None, "widen": None}
    found = search(works)
    assert len(found["hits"]) == 2 < before and step(found, "retrieve")["merge"] == "rrf"
    other = search(works, k=3, merge="weighted")
    assert len(other["hits"]) == 3 and step(other, "retrieve")["merge"] == "weighted"


def test_an_answer_from_widened_passages_cites_verbatim(works: httpx.Client) -> None:
    works.patch("/collections/works", json={"widen": "1"}).raise_for_status()
    found = ask(works, KNOWN[0], k=1)
    assert step(found, "widen")["widened"] > 0 and found["citations"]
    for citation in found["citations"]:
        text = works.get(f"/collections/works/documents/{citation['document_id']}/text").raise_for_status().json()["text"]
        assert text[citation["start_char"] : citation["end_char"]] == citation["quote"]


@pytest.mark.parametrize("wrong", [{"merge": "sum"}, {"widen": "9"}, {"top_k": 0}, {"colour": "red"}])
def test_a_wrong_setting_is_refused_by_name(works: httpx.Client, wrong: dict[str, Any]) -> None:
    refused = works.patch("/collections/works", json=wrong)
    assert refused.status_code in {400, 422} and next(iter(wrong)) in refused.text
    assert works.get("/collections/works").json()["search"]["merge"] is None


def test_labelled_questions_set_where_refusals_begin(home: Served, works: httpx.Client) -> None:
    questions = [{"question": text, "answerable": True} for text in KNOWN] + [{"question": text, "answerable": False} for text in FOREIGN]
    shown = works.post("/collections/works/calibrate", json={"questions": questions, "dry_run": True}).raise_for_status().json()
    assert (shown["stored"], shown["before_source"]) == (False, "embedder profile") and shown["calibration"]["auc"] > 0.9
    assert works.get("/collections/works").json()["calibration"] is None
    stored = works.post("/collections/works/calibrate", json={"questions": questions}).raise_for_status().json()
    assert stored["calibration"] == shown["calibration"] == works.get("/collections/works").json()["calibration"]
    judged = step(ask(works, KNOWN[1]), "refuse")
    assert (judged["source"], judged["threshold"]) == ("calibrated", stored["calibration"]["threshold"])
    refused = ask(works, FOREIGN[0])
    assert refused["refused"] and f"{stored['calibration']['threshold']:.2f}" in refused["reason"]


def test_a_reader_s_key_sets_nothing(home: Served) -> None:
    headers = {"Authorization": f"Bearer {key(home, 'read')}"}
    assert httpx.patch(f"{home.url}/api/v1/collections/works", json={"top_k": 2}, headers=headers).status_code == 403


def test_the_command_line_sets_shows_and_calibrates(
    home: Served, works: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def dujiang(*arguments: str) -> str:
        assert cli.run(list(arguments)) == 0
        return capfd.readouterr().out

    monkeypatch.setenv("DUJIANG_URL", home.url)
    monkeypatch.setenv("DUJIANG_API_KEY", key(home, "read", "write"))
    made = dujiang("collections", "update", "works", "--top-k", "3", "--widen", "1", "--json")
    assert json.loads(made)["search"]["top_k"] == 3
    assert "widen" in dujiang("collections", "show", "works")
    assert json.loads(dujiang("collections", "update", "works", "--unset", "top_k", "--json"))["search"]["top_k"] is None
    file = tmp_path / "labelled.jsonl"
    file.write_text("".join(json.dumps({"question": text, "answerable": text in KNOWN}) + "\n" for text in KNOWN + FOREIGN), encoding="utf-8")
    told = dujiang("eval", "calibrate", "-c", "works", str(file), "--dry-run")
    assert all(word in told for word in ("AUC", "threshold", "6 answered", "4 refused"))
