"""The HTTP routes over the real platform: ledger, store and question path in one process, without a broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from pipeline.settings import Settings, load
from workers.dispatch import Platform, open_platform
from workers.inline import run_inline

TEXTS = {
    "travel.md": "# Travel\n\nThe head of department approves travel before it is booked. Trains are preferred.\n",
    "出差.txt": "林岑批准這次出差搭高鐵。費用由部門承擔。",
}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load({"home": str(tmp_path), "embedder": "hashed", "max_file_mb": 1}, environ={}, cwd=tmp_path).settings


@pytest.fixture
def platform(settings: Settings) -> Iterator[Platform]:
    with open_platform(settings) as opened:
        yield opened


@pytest.fixture
def http(platform: Platform, settings: Settings) -> TestClient:
    return client(platform, settings)


def client(platform: Platform, settings: Settings, key: str = "") -> TestClient:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return TestClient(create_app(platform, settings), base_url="http://127.0.0.1:8400", client=("127.0.0.1", 50000), headers=headers)


def ingest(http: TestClient, platform: Platform, **texts: bytes) -> dict[str, object]:
    files = [("file", (name, data)) for name, data in texts.items()] or [("file", (name, text.encode())) for name, text in TEXTS.items()]
    started = http.post("/api/v1/collections/handbook/documents", files=files, data={"metadata": '{"year": 2024}'})
    assert started.status_code == 202, started.text
    run_inline(platform.runtime, started.json()["run_id"])
    return http.get(started.headers["location"]).json()


def test_an_upload_becomes_an_answer_whose_quote_stands_in_the_document(http: TestClient, platform: Platform) -> None:
    run = ingest(http, platform)
    assert (run["status"], run["discovered"], run["indexed"], run["failed"]) == ("done", 2, 2, 0)
    answer = http.post("/api/v1/ask", json={"query": "Who approves travel?", "collections": ["handbook"]}).json()
    assert not answer["refused"], answer
    for citation in answer["citations"]:
        place = f"/api/v1/collections/handbook/documents/{citation['document_id']}/text"
        span = {"start_char": citation["start_char"], "end_char": citation["end_char"]}
        assert http.get(place, params=span).json()["text"] == citation["quote"]
    found = http.post("/api/v1/search", json={"query": "誰批准出差", "collections": ["handbook"], "filters": ["year>=2024"]}).json()
    assert "林岑批准這次出差" in found["hits"][0]["text"]
    audited = http.get("/api/v1/audit").json()
    assert (audited["ok"], audited["collections"][0]["documents"]) == (True, 2)


def test_the_same_upload_again_is_unchanged_at_once(http: TestClient, platform: Platform) -> None:
    ingest(http, platform)
    again = http.post(
        "/api/v1/collections/handbook/documents",
        files=[("file", (name, text.encode())) for name, text in TEXTS.items()],
        data={"metadata": '{"year": 2024}'},
    ).json()
    assert (again["status"], again["unchanged"], again["discovered"]) == ("done", 2, 2)


def test_a_bad_document_fails_alone_and_says_why(http: TestClient, platform: Platform) -> None:
    run = ingest(http, platform, **{"good.md": b"# Good\n\nThis one is fine.\n", "bad.docx": b"PK\x03\x04 cut off"})
    assert (run["indexed"], run["failed"], run["discovered"]) == (1, 1, 2)
    failure = http.get(f"/api/v1/runs/{run['run_id']}/failures").json()["data"][0]
    assert (failure["document"], failure["stage"]) == ("bad.docx", "parse")
    assert failure["detail"]
    assert failure["hint"]
    assert http.get(f"/api/v1/failures/{failure['document_id']}").json()["code"] == failure["code"]
    items = http.get(f"/api/v1/runs/{run['run_id']}/items", params={"outcome": "failed"}).json()["data"]
    assert [item["document"] for item in items] == ["bad.docx"]


def test_a_finished_run_is_followed_to_its_end_at_once(http: TestClient, platform: Platform) -> None:
    run = ingest(http, platform)
    assert "event: finished" in http.get(f"/api/v1/runs/{run['run_id']}/events").text


def test_deleting_a_document_takes_it_out_of_the_answers(http: TestClient, platform: Platform) -> None:
    ingest(http, platform)
    documents = http.get("/api/v1/collections/handbook/documents").json()["data"]
    travel = next(item for item in documents if item["document"] == "travel.md")
    assert http.delete(f"/api/v1/collections/handbook/documents/{travel['document_id']}").status_code == 200
    found = http.post("/api/v1/search", json={"query": "approves travel", "collections": ["handbook"]}).json()["hits"]
    assert travel["document_id"] not in {hit["document_id"] for hit in found}
    assert http.delete("/api/v1/collections/handbook").json()["documents"] == 1
    assert http.get("/api/v1/collections").json()["data"] == []


def test_a_repeated_post_is_answered_from_the_ledger(http: TestClient) -> None:
    once, body = {"idempotency-key": "one"}, {"documents": [{"key": "a.md", "text": "x 誰"}]}
    first = http.post("/api/v1/collections/handbook/documents", json=body, headers=once)
    again = http.post("/api/v1/collections/handbook/documents", json=body, headers=once)
    assert (again.status_code, again.json(), again.headers["location"]) == (202, first.json(), first.headers["location"])
    assert again.headers["idempotency-replayed"] == "true"
    assert len(http.get("/api/v1/runs").json()["data"]) == 1
    body["documents"][0]["text"] = "y"
    assert http.post("/api/v1/collections/handbook/documents", json=body, headers=once).json()["code"] == "idempotency_mismatch"


def test_keys_are_kept_as_hashes_and_hold_to_their_scope(http: TestClient, platform: Platform, settings: Settings) -> None:
    ingest(http, platform)
    made = http.post("/api/v1/keys", json={"name": "reader", "collections": ["other"], "permissions": ["read"]}).json()
    assert http.get("/api/v1/collections").status_code == 401
    reader = client(platform, settings, made["key"])
    assert reader.get("/api/v1/collections").json()["data"] == []
    assert reader.get("/api/v1/collections/handbook").json()["code"] == "not_found"
    assert reader.get("/api/v1/runs").json()["data"] == []
    assert made["key"].encode() not in Path(settings.home, "ledger.db").read_bytes()
    platform.revoke_key(made["key_id"])
    assert reader.get("/api/v1/collections").status_code == 401


def test_the_system_reports_on_itself(http: TestClient, platform: Platform) -> None:
    ingest(http, platform)
    assert http.get("/readyz").json()["status"] == "ok"
    assert http.get("/api/v1/status").json()["documents"]["done"] == 2
    assert all(check["name"] for check in http.get("/api/v1/doctor").json())
    assert 'dujiang_documents{status="done"} 2' in http.get("/metrics").text


def test_a_name_that_cannot_be_one_is_refused_by_its_pointer(http: TestClient) -> None:
    answer = http.post("/api/v1/collections", json={"name": "../etc"})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/name")
    assert http.get("/api/v1/runs/run_99").json()["code"] == "run_not_found"
