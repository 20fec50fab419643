"""Who may do what over HTTP, and posts that are repeated."""

from __future__ import annotations

import threading
from functools import cache

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from api.app import create_app
from pipeline.errors import Unavailable
from tests.fakes_platform import FakePlatform
from workers.views import Incoming

BASE = "http://127.0.0.1:8400"


@pytest.fixture
def platform() -> FakePlatform:
    made = FakePlatform()
    made.create_collection("open")
    made.create_collection("closed")
    return made


def client(platform: FakePlatform, *, host: str = "127.0.0.1", base: str = BASE, key: str = "") -> TestClient:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    app = application()
    app.state.platform = platform
    return TestClient(app, base_url=base, client=(host, 50000), headers=headers)


@cache
def application() -> FastAPI:
    """Building the routes takes half a second; they hold no state but the platform."""
    return create_app(FakePlatform())  # type: ignore[arg-type]


def key(platform: FakePlatform, *permissions: str, collections: tuple[str, ...] = (), tenant: str = "default") -> str:
    made = platform.create_key("k", collections=collections, permissions=permissions or ("read", "write"), tenant=tenant)
    assert made.key is not None
    return made.key


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
def test_on_this_machine_no_key_is_needed_until_one_exists(platform: FakePlatform, host: str) -> None:
    http = client(platform, host=host)
    assert http.get("/api/v1/collections").status_code == 200
    secret = key(platform)
    answer = http.get("/api/v1/collections")
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, 'Bearer realm="dujiang"')
    assert http.get("/api/v1/collections", headers={"authorization": f"Bearer {secret}"}).status_code == 200


@pytest.mark.parametrize(
    ("host", "base", "headers"),
    [
        ("10.0.0.5", BASE, {}),
        ("8.8.8.8", "http://dujiang.example.com", {}),
        ("127.0.0.1", BASE, {"x-forwarded-for": "127.0.0.1"}),
        ("127.0.0.1", BASE, {"forwarded": "for=127.0.0.1"}),
        ("127.0.0.1", BASE, {"x-real-ip": "10.0.0.1"}),
        ("127.0.0.1", "http://rebound.example.com", {}),
        ("127.0.0.1", BASE, {"origin": "https://evil.example.com"}),
        ("127.0.0.1", BASE, {"origin": "null"}),
    ],
)
def test_whoever_may_come_from_elsewhere_needs_a_key(platform: FakePlatform, host: str, base: str, headers: dict[str, str]) -> None:
    assert client(platform, host=host, base=base).get("/api/v1/collections", headers=headers).status_code == 401
    secret = key(platform)
    assert client(platform, host=host, base=base, key=secret).get("/api/v1/collections", headers=headers).status_code == 200


@pytest.mark.parametrize("header", ["Bearer wrong", "Basic dXNlcjpwdw==", "Bearer ", "wrong"])
def test_a_wrong_key_is_refused_even_where_none_is_needed(platform: FakePlatform, header: str) -> None:
    assert client(platform).get("/api/v1/collections", headers={"authorization": header}).status_code == 401


def test_who_is_asking_is_settled_before_the_body_is_read(platform: FakePlatform) -> None:
    http = client(platform, host="10.0.0.5")
    assert http.post("/api/v1/search", content=b"{nonsense", headers={"content-type": "application/json"}).status_code == 401
    assert http.post("/api/v1/collections/open/documents", files={"file": ("a", b"x")}).status_code == 401
    assert platform.ingested == []


def test_a_collection_outside_a_keys_scope_looks_as_if_it_did_not_exist(platform: FakePlatform) -> None:
    platform.held = True
    hidden = client(platform).post("/api/v1/collections/closed/documents", json={"documents": [{"key": "a", "text": "x"}]}).json()["run_id"]
    http = client(platform, key=key(platform, "read", "write", collections=("open",)))
    assert [item["name"] for item in http.get("/api/v1/collections").json()["data"]] == ["open"]
    for path in (
        "collections/closed",
        "collections/closed/documents",
        f"runs/{hidden}",
        f"runs/{hidden}/events",
        f"runs/{hidden}/items",
        "runs?collection=closed",
    ):
        answer = http.get(f"/api/v1/{path}")
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), path
    assert http.get("/api/v1/runs").json()["data"] == []
    assert http.get("/api/v1/audit?collection=closed").status_code == 404
    assert [item["name"] for item in http.get("/api/v1/audit").json()["collections"]] == ["open"]
    assert http.post("/api/v1/search", json={"query": "x", "collections": ["open", "closed"]}).status_code == 404
    assert http.post("/api/v1/search", json={"query": "x"}).json()["hits"] == []
    assert platform.questions[-1].collections == ("open",)
    assert http.post(f"/api/v1/runs/{hidden}/cancel").status_code == 404
    assert http.post("/api/v1/collections/closed/documents", json={"documents": [{"key": "a", "text": "x"}]}).status_code == 403
    assert http.delete("/api/v1/collections/closed").status_code == 403


def test_a_key_does_only_what_it_may(platform: FakePlatform) -> None:
    reader, writer = client(platform, key=key(platform, "read")), client(platform, key=key(platform, "write"))
    assert reader.get("/api/v1/collections/open").status_code == 200
    assert reader.post("/api/v1/collections", json={"name": "new"}).status_code == 403
    assert reader.get("/api/v1/keys").status_code == 403
    assert reader.get("/api/v1/doctor").status_code == 403
    assert writer.post("/api/v1/collections", json={"name": "new"}).status_code == 201
    assert writer.get("/api/v1/collections/open").status_code == 403
    assert writer.post("/api/v1/search", json={"query": "x"}).status_code == 403


def test_a_key_is_shown_once_and_ends_when_it_is_revoked(platform: FakePlatform) -> None:
    admin = client(platform, key=key(platform, "read", "write", "admin"))
    made = admin.post("/api/v1/keys", json={"name": "reader", "permissions": ["read"], "collections": ["open"]})
    assert (made.status_code, made.headers["cache-control"]) == (201, "no-store")
    secret = made.json()["key"]
    assert all(item["key"] is None for item in admin.get("/api/v1/keys").json()["data"])
    assert client(platform, key=secret).get("/api/v1/collections/open").status_code == 200
    assert admin.delete(f"/api/v1/keys/{made.json()['key_id']}").status_code == 200
    assert client(platform, key=secret).get("/api/v1/collections/open").status_code == 401
    assert admin.delete("/api/v1/keys/none").status_code == 404


def test_a_key_cannot_create_one_that_reaches_further(platform: FakePlatform) -> None:
    admin = client(platform, key=key(platform, "read", "admin", collections=("open",)))
    assert admin.post("/api/v1/keys", json={"name": "x", "permissions": ["read"], "collections": ["open"]}).status_code == 201
    assert admin.post("/api/v1/keys", json={"name": "x", "permissions": ["read"]}).status_code == 403
    assert admin.post("/api/v1/keys", json={"name": "x", "permissions": ["write"], "collections": ["open"]}).status_code == 403


def test_tenants_do_not_see_each_other(platform: FakePlatform) -> None:
    other = client(platform, key=key(platform, tenant="other"))
    run = other.post("/api/v1/collections/mine/documents", json={"documents": [{"key": "a", "text": "x"}]}).json()["run_id"]
    here = client(platform, key=key(platform, "read", "write", "admin"))
    assert [item["name"] for item in other.get("/api/v1/collections").json()["data"]] == ["mine"]
    assert here.get("/api/v1/collections/mine").status_code == 404
    assert here.get(f"/api/v1/runs/{run}").status_code == 404
    assert here.post(f"/api/v1/runs/{run}/cancel").status_code == 404


DOCUMENTS = "/api/v1/collections/open/documents"


def test_a_repeated_post_is_answered_from_memory(platform: FakePlatform) -> None:
    http, once = client(platform), {"idempotency-key": "one"}
    body = {"documents": [{"key": "a", "text": "x"}]}
    first, second = http.post(DOCUMENTS, json=body, headers=once), http.post(DOCUMENTS, json=body, headers=once)
    assert (second.status_code, second.json(), second.headers["location"]) == (202, first.json(), first.headers["location"])
    assert ("idempotency-replayed" in first.headers, second.headers["idempotency-replayed"]) == (False, "true")
    assert len(platform.ingested) == 1
    other = http.post(DOCUMENTS, json={"documents": [{"key": "b", "text": "x"}]}, headers=once)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")
    assert http.post("/api/v1/collections", json={"name": "x"}, headers=once).status_code == 201


def test_a_repeated_upload_is_recognised_though_its_boundary_differs(platform: FakePlatform) -> None:
    http, once = client(platform), {"idempotency-key": "one"}
    first = http.post(DOCUMENTS, files={"file": ("a.txt", b"x")}, headers=once)
    assert http.post(DOCUMENTS, files={"file": ("a.txt", b"x")}, headers=once).json() == first.json()
    assert http.post(DOCUMENTS, files={"file": ("a.txt", b"y")}, headers=once).status_code == 422
    assert len(platform.ingested) == 1


def test_a_repeated_stream_is_replayed_whole(platform: FakePlatform) -> None:
    http, once = client(platform), {"idempotency-key": "one"}
    http.post(DOCUMENTS, json={"documents": [{"key": "a", "text": "the boss approves travel"}]})
    first = http.post("/api/v1/ask", json={"query": "travel", "stream": True}, headers=once)
    second = http.post("/api/v1/ask", json={"query": "travel", "stream": True}, headers=once)
    assert second.text == first.text
    assert second.headers["content-type"].startswith("text/event-stream")
    assert len(platform.questions) == 1


def test_a_post_that_failed_may_be_tried_again_with_its_key(platform: FakePlatform) -> None:
    http, once = client(platform), {"idempotency-key": "one"}
    platform.fails = Unavailable("away")
    body = {"documents": [{"key": "a", "text": "x"}]}
    assert http.post(DOCUMENTS, json=body, headers=once).status_code == 503
    platform.fails = RuntimeError("a bug")
    assert http.post(DOCUMENTS, json=body, headers=once).status_code == 500
    platform.fails = None
    assert http.post(DOCUMENTS, json=body, headers=once).status_code == 202


def test_a_second_post_is_refused_while_the_first_is_in_flight(platform: FakePlatform) -> None:
    http, once = client(platform), {"idempotency-key": "one"}
    http.post(DOCUMENTS, json={"documents": [{"key": "a", "text": "the boss approves travel"}]})
    platform.gate = threading.Event()
    ask = {"query": "travel", "stream": True}
    answers: list[int] = []
    first = threading.Thread(target=lambda: answers.append(http.post("/api/v1/ask", json=ask, headers=once).status_code))
    first.start()
    while not platform.questions:
        threading.Event().wait(0.01)
    second = client(platform).post("/api/v1/ask", json=ask, headers=once)
    platform.gate.set()
    first.join(10)
    assert (second.status_code, second.json()["code"], answers) == (409, "in_flight", [200])


def test_a_batch_of_a_collection_that_a_key_does_not_reach_is_not_there(platform: FakePlatform) -> None:
    platform.ingest("closed", [Incoming("secret.md", data=b"x")])
    platform.ingest("open", [Incoming("plain.md", data=b"x")])
    http = client(platform, key=key(platform, "read", collections=("open",)))
    assert [http.get(f"/api/v1/batches/{number}").status_code for number in (1, 2)] == [404, 200]
