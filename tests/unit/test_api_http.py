"""The HTTP routes over a platform in memory."""

from __future__ import annotations

import json
import re
import threading
from functools import cache

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from api.app import create_app
from pipeline.errors import QuotaExhausted, RateLimited, Unavailable
from pipeline.settings import Settings
from tests.fakes_platform import FakePlatform

BASE = "http://127.0.0.1:8400"


@pytest.fixture
def platform() -> FakePlatform:
    return FakePlatform()


@pytest.fixture
def http(platform: FakePlatform) -> TestClient:
    return client(platform)


def client(platform: FakePlatform, **settings: object) -> TestClient:
    app = application(Settings(**settings))  # type: ignore[arg-type]
    app.state.platform = platform
    return TestClient(app, base_url=BASE, client=("127.0.0.1", 50000), follow_redirects=False)


@cache
def application(settings: Settings) -> FastAPI:
    """Building the routes takes half a second; they hold no state but the platform."""
    return create_app(FakePlatform(), settings)  # type: ignore[arg-type]


def put(http: TestClient, key: str, text: str, collection: str = "books", **more: object) -> dict[str, object]:
    answer = http.post(f"/api/v1/collections/{collection}/documents", json={"documents": [{"key": key, "text": text, **more}]})
    assert answer.status_code == 202, answer.text
    return answer.json()


def test_texts_sent_as_json_become_documents_of_a_run_that_location_leads_to(http: TestClient, platform: FakePlatform) -> None:
    answer = http.post(
        "/api/v1/collections/books/documents",
        json={"documents": [{"name": "a.md", "content": "# One"}, {"url": "https://example.com/b", "text": "two", "metadata": {"year": 2024}}]},
    )
    assert answer.status_code == 202
    run = http.get(answer.headers["location"]).json()
    assert (run["run_id"], run["discovered"], run["indexed"]) == (answer.json()["run_id"], 2, 2)
    assert [item.key for item in platform.ingested] == ["a.md", "https://example.com/b"]
    assert [item.media_type for item in platform.ingested] == ["", "text/plain"]
    assert platform.ingested[1].metadata == {"year": 2024}


def test_uploaded_files_carry_what_the_form_says_of_them(http: TestClient, platform: FakePlatform) -> None:
    answer = http.post(
        "/api/v1/collections/books/documents",
        data={"metadata": '{"team": "ops"}', "documents": '[{"key": "k1", "title": "T1"}, {}]', "options": '{"pages": "1-3"}', "lane": "bulk"},
        files=[("file", ("a.txt", b"first", "text/plain")), ("file", ("b.bin", b"second", "application/octet-stream"))],
    )
    assert answer.status_code == 202, answer.text
    first, second = platform.ingested
    assert (first.key, first.title, first.data, first.media_type) == ("k1", "T1", b"first", "text/plain")
    assert (second.key, second.data, second.media_type) == ("b.bin", b"second", "")
    assert platform.calls[-1][1] == {"lane": "bulk", "source": "http", "options": {"pages": "1-3"}, "tenant": "default"}


@pytest.mark.parametrize(
    ("form", "pointer"),
    [
        ({"wrong": "1"}, "/wrong"),
        ({"lane": "fast"}, "/lane"),
        ({"metadata": "{"}, "/metadata"),
        ({"metadata": '{"a": {"b": 1}}'}, "/metadata"),
        ({"documents": "[{}, {}]"}, "/documents"),
        ({"documents": '[{"zz": 1}]'}, "/documents/0/zz"),
    ],
)
def test_a_wrong_field_of_a_form_is_named_by_its_pointer(http: TestClient, form: dict[str, str], pointer: str) -> None:
    answer = http.post("/api/v1/collections/books/documents", data=form, files={"file": ("a.txt", b"x")})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"].startswith(pointer)


def test_a_file_over_the_limit_is_refused_while_it_is_read(platform: FakePlatform) -> None:
    http = client(platform, max_file_mb=1)
    answer = http.post("/api/v1/collections/books/documents", files={"file": ("big.txt", b"x" * 1_000_001)})
    assert (answer.status_code, answer.json()["code"], answer.json()["document"]) == (413, "too_large", "big.txt")
    assert "DUJIANG_MAX_FILE_MB" in answer.json()["hint"]
    several = http.post("/api/v1/collections/books/documents", files=[("file", (f"{n}.txt", b"x" * 900_000)) for n in range(3)])
    assert several.status_code == 202
    assert http.post("/api/v1/collections/books/documents", json={"documents": [{"key": "a", "text": "x" * 1_000_000}]}).status_code == 413


def test_a_page_leads_to_the_next_one(http: TestClient) -> None:
    for name in ("a", "b", "c"):
        http.post("/api/v1/collections", json={"name": name})
    first = http.get("/api/v1/collections", params={"limit": 2}).json()
    assert ([item["name"] for item in first["data"]], first["first_id"], first["last_id"], first["has_more"]) == (["a", "b"], "a", "b", True)
    rest = http.get("/api/v1/collections", params={"limit": 2, "after": first["last_id"]}).json()
    assert ([item["name"] for item in rest["data"]], rest["has_more"]) == (["c"], False)


def test_a_collection_is_created_once_and_refused_with_other_options(http: TestClient) -> None:
    made = http.post("/api/v1/collections", json={"name": "books", "chunker": "windows:256/32"})
    assert (made.status_code, made.headers["location"]) == (201, "/api/v1/collections/books")
    assert http.post("/api/v1/collections", json={"name": "books", "chunker": "windows:256/32"}).status_code == 200
    assert http.post("/api/v1/collections", json={"name": "books", "chunker": "sections"}).json()["code"] == "conflict"
    gone = http.delete("/api/v1/collections/books").json()
    assert gone == {"deleted": True, "id": "books", "documents": 0, "chunks": 0, "kept": 0, "outstanding": []}
    assert http.get("/api/v1/collections/books").status_code == 404


def test_a_deletion_that_has_something_left_to_do_is_answered_with_where_to_look(http: TestClient, platform: FakePlatform) -> None:
    put(http, "a.txt", "one")
    identity = http.get("/api/v1/collections/books/documents").json()["data"][0]["document_id"]
    platform.deleting.left = ("cached answers",)
    for place in (f"/api/v1/collections/books/documents/{identity}", "/api/v1/collections/books"):
        answered = http.delete(place)
        assert (answered.status_code, answered.headers["location"], answered.json()["outstanding"]) == (202, "/api/v1/deletions", ["cached answers"])
    left = http.get("/api/v1/deletions").json()["data"]
    assert [(one["what"], one["number"]) for one in left] == [("cached answers", 1)]
    platform.deleting.left = ()
    assert http.get("/api/v1/deletions").json() == {"data": []}


def test_a_documents_text_is_served_by_code_points(http: TestClient) -> None:
    put(http, "a.txt", "林岑批准😀這次")
    identity = http.get("/api/v1/collections/books/documents").json()["data"][0]["document_id"]
    place = f"/api/v1/collections/books/documents/{identity}"
    assert http.get(f"{place}/text", params={"start_char": 2, "end_char": 5}).json() == {
        "document_id": identity,
        "start_char": 2,
        "end_char": 5,
        "text": "批准😀",
        "length": 7,
        "cut": "",
    }
    assert http.get(f"{place}/text", headers={"accept": "text/plain"}).text == "林岑批准😀這次"
    assert http.get(place).json()["text"] is None
    assert http.get(place, params={"text": "true"}).json()["text"] == "林岑批准😀這次"
    assert http.delete(place).json()["deleted"]
    assert http.get(place).status_code == 404


def test_a_search_answers_with_the_published_shape(http: TestClient, platform: FakePlatform) -> None:
    put(http, "a.txt", "travel approval", metadata={"year": 2024})
    found = http.post("/api/v1/search", json={"query": "travel", "collection": "books", "mode": "keyword", "k": 3}).json()
    hit = found["hits"][0]
    wanted = {
        *("chunk_id", "document_id", "ordinal", "title", "url", "score", "scores", "text", "start_char", "end_char"),
        *("page", "heading_path", "highlight", "metadata", "collection"),
    }
    assert wanted <= hit.keys()
    assert (found["query"], found["mode"], hit["text"], hit["metadata"]) == ("travel", "participle", "travel approval", {"year": 2024})
    assert platform.questions[-1].k == 3


def test_a_question_without_collections_goes_to_all_of_them(http: TestClient, platform: FakePlatform) -> None:
    put(http, "a.txt", "travel", collection="one")
    put(http, "b.txt", "travel", collection="two")
    assert len(http.post("/api/v1/search", json={"query": "travel"}).json()["hits"]) == 2
    assert platform.questions[-1].collections == ("one", "two")


@pytest.mark.parametrize(
    "filters", [["year>=2020"], [{"name": "year", "op": "gte", "value": 2020}], {"year": 2024}, ["year = 2024", {"name": "year", "value": 2024}]]
)
def test_filters_are_given_as_text_or_objects(http: TestClient, platform: FakePlatform, filters: object) -> None:
    put(http, "a.txt", "travel")
    assert http.post("/api/v1/search", json={"query": "travel", "filters": filters}).status_code == 200
    assert platform.questions[-1].filters[0].name == "year"


def test_a_wrong_filter_is_named(http: TestClient) -> None:
    put(http, "a.txt", "travel")
    answer = http.post("/api/v1/search", json={"query": "travel", "filters": ["nonsense"]})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/filters")


def test_an_answer_has_citations_and_a_refusal_its_reason(http: TestClient) -> None:
    put(http, "a.txt", "the boss approves travel")
    answer = http.post("/api/v1/ask", json={"question": "travel", "collections": ["books"]}).json()
    citation = answer["citations"][0]
    assert (answer["refused"], citation["quote"], citation["marker"]) == (False, "the boss approves travel", 1)
    assert set(answer["usage"]) == {"build", "query", "rerank", "reader"}
    assert answer["usage"]["rerank"]["total_tokens"] is None
    refused = http.post("/api/v1/ask", json={"query": "zebra", "collections": ["books"]}).json()
    assert refused["refused"]
    assert refused["reason"]


def events_of(text: str) -> list[tuple[str, dict[str, object]]]:
    found = re.findall(r"event: (\w+)\ndata: (.*)\n\n", text)
    return [(name, json.loads(data)) for name, data in found]


@pytest.mark.parametrize("how", ["field", "header"])
def test_an_answer_is_streamed_as_tokens_then_whole(http: TestClient, how: str) -> None:
    put(http, "a.txt", "the boss approves travel")
    more = (
        {"json": {"query": "travel", "stream": True}} if how == "field" else {"json": {"query": "travel"}, "headers": {"accept": "text/event-stream"}}
    )
    answer = http.post("/api/v1/ask", **more)  # type: ignore[arg-type]
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = events_of(answer.text)
    assert "".join(str(data["text"]) for name, data in found if name == "token").strip() == "the boss approves travel [1]"
    assert found[-1][0] == "answer"
    assert found[-1][1]["citations"]


def test_what_fails_before_the_first_token_has_its_own_status_and_later_it_is_an_event(http: TestClient, platform: FakePlatform) -> None:
    put(http, "a.txt", "the boss approves travel")
    assert http.post("/api/v1/ask", json={"query": "travel", "collection": "none", "stream": True}).status_code == 404
    platform.breaks_after = Unavailable("the reader went away", dependency=True)
    answer = http.post("/api/v1/ask", json={"query": "travel", "stream": True})
    assert answer.status_code == 200
    assert events_of(answer.text)[-1][0] == "error"
    assert events_of(answer.text)[-1][1]["code"] == "unavailable"
    platform.breaks_after = RuntimeError("a bug with secrets")
    answer = http.post("/api/v1/ask", json={"query": "travel", "stream": True})
    assert "event: error" in answer.text
    assert "secrets" not in answer.text


def test_a_run_is_followed_to_its_end(http: TestClient, platform: FakePlatform) -> None:
    platform.held = True
    run_id = str(put(http, "a.txt", "x")["run_id"])
    threading.Timer(0.2, platform.release, [run_id]).start()
    answer = http.get(f"/api/v1/runs/{run_id}/events", headers={"last-event-id": "41"})
    found = events_of(answer.text)
    assert [name for name, _ in found] == ["progress", "finished"]
    assert (found[0][1]["status"], found[-1][1]["status"]) == ("running", "done")
    assert "id: 42\n" in answer.text


def test_a_run_can_be_paused_resumed_and_cancelled_but_not_after_its_end(http: TestClient, platform: FakePlatform) -> None:
    platform.held = True
    place = f"/api/v1/runs/{put(http, 'a.txt', 'x')['run_id']}"
    assert http.post(f"{place}/pause").json()["status"] == "paused"
    assert http.post(f"{place}/resume").json()["status"] == "running"
    assert http.post(f"{place}/cancel").json()["status"] == "cancelled"
    assert http.post(f"{place}/cancel").status_code == 409
    assert http.get(f"{place}/items", params={"outcome": "indexed"}).json()["data"][0]["document"] == "a.txt"
    assert http.get(f"{place}/failures").json()["data"] == []
    assert http.get("/api/v1/runs/none").json()["code"] == "not_found"


@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [
        (RateLimited("slow down", after=7.2), 429, "8"),
        (RateLimited("slow down"), 429, "1"),
        (QuotaExhausted("no money"), 429, None),
        (Unavailable("the store is away", dependency=True), 503, None),
    ],
)
def test_a_failure_says_what_to_do_next(http: TestClient, platform: FakePlatform, error: Exception, status: int, retry_after: str | None) -> None:
    put(http, "a.txt", "x")
    platform.fails = error
    answer = http.post("/api/v1/search", json={"query": "x", "collection": "books"})
    assert (answer.status_code, answer.headers.get("retry-after")) == (status, retry_after)
    assert answer.headers["content-type"] == "application/problem+json"
    assert set(answer.json()) == {"type", "title", "status", "detail", "code", "hint", "document", "stage", "errors"}


def test_a_bug_is_told_by_its_id_only(http: TestClient, platform: FakePlatform, caplog: pytest.LogCaptureFixture) -> None:
    put(http, "a.txt", "x")
    platform.fails = ZeroDivisionError("secret inside")
    answer = http.post("/api/v1/search", json={"query": "x", "collection": "books"})
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert "secret" not in answer.text
    assert answer.json()["instance"].rpartition(":")[2] in caplog.text


@pytest.mark.parametrize(
    ("method", "path", "request_", "status", "code"),
    [
        ("GET", "/nowhere", {}, 404, "not_found"),
        ("GET", "/api/v1/nowhere", {}, 404, "not_found"),
        ("PUT", "/api/v1/collections", {"json": {}}, 405, "method_not_allowed"),
        ("POST", "/api/v1/search", {"json": {"query": "x", "zz": 1}}, 422, "invalid_request"),
        ("POST", "/api/v1/search", {"content": b"{", "headers": {"content-type": "application/json"}}, 400, "bad_request"),
        ("POST", "/api/v1/search", {"content": b"query=x", "headers": {"content-type": "application/x-www-form-urlencoded"}}, 415, "unsupported"),
        ("POST", "/api/v1/collections/a/documents", {"content": b"hello", "headers": {"content-type": "text/plain"}}, 415, "unsupported"),
        ("POST", "/api/v1/collections/a/documents", {"json": {"documents": []}}, 422, "invalid_request"),
        ("POST", "/api/v1/collections/a/documents", {"json": {"documents": [{"text": "x"}]}}, 422, "invalid_request"),
        ("GET", "/api/v1/runs?limit=0", {}, 422, "invalid_request"),
        ("POST", "/api/v1/search", {"json": {"query": "x", "as_of": "2024-05-01T00:00:00"}}, 422, "invalid_request"),
    ],
)
def test_every_wrong_request_gets_a_problem(http: TestClient, method: str, path: str, request_: dict[str, object], status: int, code: str) -> None:
    answer = http.request(method, path, **request_)  # type: ignore[arg-type]
    assert (answer.status_code, answer.headers["content-type"], answer.json()["code"]) == (status, "application/problem+json", code)
    assert answer.json()["hint"]


def test_an_unknown_field_is_refused_by_name(http: TestClient) -> None:
    answer = http.post("/api/v1/search", json={"query": "x", "zz": 1})
    assert answer.json()["errors"] == [{"pointer": "/zz", "detail": "unknown field"}]


def test_readiness_names_what_is_degraded_and_fails_without_ledger_or_store(http: TestClient, platform: FakePlatform) -> None:
    assert http.get("/livez").status_code == 200
    assert http.get("/readyz").json() == {"status": "ok", "degraded": []}
    platform.degraded = ("redis: does not answer",)
    assert (http.get("/readyz").status_code, http.get("/healthz").json()["status"]) == (200, "degraded")
    platform.degraded = ("store: connection refused",)
    assert http.get("/readyz").status_code == 503
    platform.fails = Unavailable("the ledger does not answer")
    assert http.get("/healthz").status_code == 503
    assert http.get("/livez").status_code == 200


def test_a_batch_is_shown_with_its_documents(http: TestClient) -> None:
    put(http, "a.txt", "x")
    batch = http.get("/api/v1/batches/1").json()
    assert (batch["batch_id"], [one["document"] for one in batch["documents"]]) == (1, ["a.txt"])
    assert [http.get(f"/api/v1/batches/{number}").status_code for number in ("2", "0", "x")] == [404, 422, 422]


def test_metrics_count_requests_by_route_and_never_by_id(http: TestClient) -> None:
    put(http, "a.txt", "x")
    http.get("/api/v1/runs/run-0001")
    http.get("/api/v1/runs/secret-id")
    text = http.get("/metrics").text
    assert "dujiang_documents 1" in text
    assert re.search(r'dujiang_http_requests_total\{method="GET",route="/api/v1/runs/\{run_id\}",status="404"\} \d', text)
    assert "secret-id" not in text


def test_the_api_page_loads_nothing_from_another_host(http: TestClient) -> None:
    assert http.get("/").headers["location"] == "/docs"
    page = http.get("/docs")
    assert "//" not in page.text.replace("<!DOCTYPE html>", "")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for path in re.findall(r'(?:src|href)="([^"]+)"', page.text):
        assert http.get(path).status_code == 200, path
    assert "http" not in http.get("/docs/start.js").text
    described = http.get("/openapi.json").json()
    assert described["openapi"] == "3.0.3"
    assert "DocumentsIn" in described["components"]["schemas"]
    assert '"type": "null"' not in json.dumps(described)
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(described)))
    assert references <= set(described["components"]["schemas"])


def test_behind_a_proxy_links_begin_with_its_path(platform: FakePlatform) -> None:
    http = client(platform, root_path="/rag")
    assert http.get("/").headers["location"] == "/rag/docs"
    assert '"/rag/docs/assets/swagger-ui.css"' in http.get("/docs").text
    assert http.post("/api/v1/collections", json={"name": "a"}).headers["location"] == "/rag/api/v1/collections/a"
    public = client(platform, public_url="https://rag.example.com/base")
    assert public.post("/api/v1/collections", json={"name": "b"}).headers["location"] == "https://rag.example.com/base/api/v1/collections/b"
