"""Dead letters from end to end: through HTTP and the command line, with the stages run for real."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from pipeline.settings import Settings, load
from workers.dispatch import Platform, open_platform
from workers.inline import run_inline
from workers.views import Incoming, RunView


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load({"home": str(tmp_path / "home"), "embedder": "hashed"}, environ={}, cwd=tmp_path).settings


@pytest.fixture
def platform(settings: Settings) -> Iterator[Platform]:
    with open_platform(settings) as opened:
        yield opened


@pytest.fixture
def http(platform: Platform, settings: Settings) -> TestClient:
    return TestClient(create_app(platform, settings), base_url="http://127.0.0.1:8400", client=("127.0.0.1", 50000))


@pytest.fixture
def broken(tmp_path: Path, platform: Platform) -> Path:
    """A file that cannot be parsed, and one that can, both ingested."""
    bad, good = tmp_path / "levels.json", tmp_path / "notes.md"
    bad.write_text('{"station": "Stone Bridge", "level":')
    good.write_text("# Notes\n\nThe gauge is read at eight.\n")
    run = platform.ingest("handbook", [Incoming(key=path.name, path=str(path)) for path in (bad, good)])
    assert run_inline(platform.runtime, run.run_id).failed == 1
    return bad


def test_a_mended_document_is_indexed_by_a_replay_and_leaves_the_list(http: TestClient, platform: Platform, broken: Path) -> None:
    [letter] = http.get("/api/v1/failures").json()["data"]
    assert letter["stage"] == "parse" and letter["code"] == "malformed" and letter["detail"] and letter["hint"]
    dry = http.post("/api/v1/failures/replay", json={"code": "malformed", "dry_run": True}).json()
    assert (dry["documents"], dry["collections"], dry["runs"]) == (1, {"handbook": 1}, [])
    # what stopped it was its content, so mending it needs the bytes anew
    broken.write_text('{"station": "Stone Bridge", "level": 7.84}')
    again = platform.ingest("handbook", [Incoming(key=broken.name, path=str(broken))])
    assert run_inline(platform.runtime, again.run_id).indexed == 1
    assert http.get("/api/v1/failures").json()["data"] == []


def test_a_replay_of_what_is_still_broken_fails_again_with_its_reason_and_balances(http: TestClient, platform: Platform, broken: Path) -> None:
    answer = http.post("/api/v1/failures/replay", json={"collections": ["handbook"]})
    assert answer.status_code == 202
    [run] = answer.json()["runs"]
    ended = run_inline(platform.runtime, run["run_id"])
    assert (ended.discovered, ended.failed, ended.status) == (1, 1, "done")
    assert len(http.get("/api/v1/failures").json()["data"]) == 1
    assert platform.audit("handbook").ok


def test_a_failure_tells_every_attempt_and_the_numbers_of_a_run_lead_to_it(http: TestClient, platform: Platform, broken: Path) -> None:
    [first] = http.get("/api/v1/runs", params={"collection": "handbook"}).json()["data"]
    assert first["balance"] == {"parse": {"failed": 1}, "index": {"indexed": 1}} and first["ahead"] == 0
    [run] = http.post("/api/v1/failures/replay", json={"stage": "parse"}).json()["runs"]
    run_inline(platform.runtime, run["run_id"])
    [letter] = http.get("/api/v1/failures", params={"stage": "parse"}).json()["data"]
    assert http.get("/api/v1/failures", params={"stage": "embed"}).json()["data"] == []
    shown = http.get(f"/api/v1/failures/{letter['document_id']}").json()
    assert [(one["run_id"], one["stage"], one["outcome"], one["code"]) for one in shown["history"]] == [
        (first["run_id"], "parse", "dead", "malformed"),
        (run["run_id"], "parse", "dead", "malformed"),
    ]
    assert all(one["worker"] and one["code_version"] and one["detail"] for one in shown["history"])
    for one in (first["run_id"], run["run_id"]):
        items = http.get(f"/api/v1/runs/{one}/items", params={"outcome": "failed", "stage": "parse"}).json()["data"]
        assert [(item["document_id"], item["stage"]) for item in items] == [(letter["document_id"], "parse")]
        assert http.get(f"/api/v1/runs/{one}/items", params={"outcome": "failed", "stage": "load"}).json()["data"] == []


def test_a_run_still_says_why_a_document_failed_in_it_when_a_later_one_took_it_in(platform: Platform, broken: Path) -> None:
    [first] = platform.runs(collection="handbook").data
    broken.write_text('{"station": "Stone Bridge", "level": 7.84}')
    again = platform.ingest("handbook", [Incoming(key=broken.name, path=str(broken))])
    assert run_inline(platform.runtime, again.run_id).indexed == 1
    [failure] = platform.run(first.run_id).failures
    assert (failure.code, failure.stage, failure.run_id) == ("malformed", "parse", first.run_id)
    assert failure.detail and again.run_id in failure.hint


def test_a_discarded_document_leaves_the_list_and_an_unknown_one_is_named(http: TestClient, broken: Path) -> None:
    [letter] = http.get("/api/v1/failures").json()["data"]
    unknown = http.post("/api/v1/failures/discard", json={"document_ids": ["f" * 32]})
    assert unknown.status_code == 404 and unknown.json()["code"] == "failure_not_found"
    assert http.post("/api/v1/failures/discard", json={"document_ids": [letter["document_id"]]}).json()["documents"] == 1
    assert http.get("/api/v1/failures").json()["data"] == []


def test_a_paused_collection_is_begun_when_it_goes_on(http: TestClient, platform: Platform, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# A\n\nText.\n")
    run = platform.ingest("later", [Incoming(key="a.md", path=str(tmp_path / "a.md"))])
    assert http.post("/api/v1/collections/later/pause").status_code == 200
    from workers.ledger import forming

    assert not forming.anything_waits(platform.db)
    assert http.post("/api/v1/collections/later/resume").status_code == 200
    assert run_inline(platform.runtime, run.run_id).indexed == 1


def test_cancelling_a_collection_ends_its_runs(http: TestClient, platform: Platform, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# A\n\nText.\n")
    run = platform.ingest("later", [Incoming(key="a.md", path=str(tmp_path / "a.md"))])
    [stopped] = http.post("/api/v1/collections/later/cancel").json()["data"]
    assert (stopped["run_id"], stopped["status"], stopped["cancelled"]) == (run.run_id, "cancelled", 1)


def test_tenants_are_weighed_over_http(http: TestClient) -> None:
    assert http.put("/api/v1/tenants/acme", json={"weight": 3}).json()["weight"] == 3.0
    assert ("acme", 3.0) in [(one["name"], one["weight"]) for one in http.get("/api/v1/tenants").json()["data"]]
    assert http.put("/api/v1/tenants/acme", json={"most": 2}).json() == {"name": "acme", "weight": 3.0, "most": 2}
    assert http.put("/api/v1/tenants/acme", json={"weight": 0}).status_code == 422


def test_a_collection_is_built_anew_over_http_and_returns_to_what_it_was(http: TestClient, platform: Platform, broken: Path) -> None:
    dry = http.post("/api/v1/collections/handbook/reindex", json={"chunker": "windows:64/8", "dry_run": True}).json()
    assert (dry["documents"], dry["chunker"]) == (1, "windows:64/8")
    begun = http.post("/api/v1/collections/handbook/reindex", json={"chunker": "windows:64/8"})
    assert begun.status_code == 202 and begun.json()["status"] == "running"
    from workers import generations
    from workers.ledger import browse

    until = run_stages(platform, begun.json()["run_id"])
    assert until.status == "done" and browse.run(platform.db, until.run_id).indexed == 1
    assert [one["status"] for one in http.get("/api/v1/collections/handbook/generations").json()["data"]] == ["retained", "live"]
    assert http.post("/api/v1/collections/handbook/rollback").json()["status"] == "done"
    generations.advance(platform.runtime)
    assert http.get("/api/v1/collections/handbook").json()["generation"] == 1
    refused = http.post("/api/v1/collections/handbook/reindex", json={"chunker": "nonsense"})
    assert refused.status_code >= 400 and refused.json()["code"] == "unknown_chunker"


def run_stages(platform: Platform, run_id: str) -> RunView:
    from tests.integration.test_generations import build

    return build(platform, platform.run(run_id))


def test_a_repair_is_asked_for_over_http_and_says_what_it_began(http: TestClient, platform: Platform, broken: Path) -> None:
    from workers.ledger import catalog, refs

    row = catalog.find(platform.db, "default", "handbook")
    platform.runtime.artifacts.remove({ref.pack for ref in refs.answering(platform.db, row.id) if ref.stage.value == "chunk"})
    assert http.get("/api/v1/audit").json()["ok"] is False
    assert http.post("/api/v1/audit/repair", json={"dry_run": True}).json()["begun"] == 1
    mended = http.post("/api/v1/audit/repair", json={"collection": "handbook"})
    assert mended.status_code == 202
    for run in mended.json()["runs"]:
        run_inline(platform.runtime, run)
    assert http.get("/api/v1/audit?deep=true").json()["ok"] is True


def test_a_tenant_is_deleted_over_http(http: TestClient, platform: Platform, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# A\n\nText.\n")
    run_inline(platform.runtime, platform.ingest("theirs", [Incoming(key="a.md", path=str(tmp_path / "a.md"))], tenant="acme").run_id)
    assert http.delete("/api/v1/tenants/acme?dry_run=true").json()["documents"] == 1
    assert http.delete("/api/v1/tenants/acme").json()["collections"] == ["theirs"]
    assert platform.collections(tenant="acme").data == ()
