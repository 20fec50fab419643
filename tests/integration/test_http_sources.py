"""The verbs on sources over HTTP and by the command line, which say the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from api import problems
from api.app import create_app
from api.cli import run
from api.local import Local
from api.sourcing import SourceChange, SourcesThere
from pipeline.errors import BadRequest, NotFound
from tests.simulators.shelf import Shelf, filled, signature
from tests.sourced import Bench, plugged

AT = "/api/v1/sources"


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    with plugged(monkeypatch):
        made = Bench(tmp_path / "home")
        yield made
        made.close()


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    shelf = filled(tmp_path / "shelf.json", "apples", "pears")
    with shelf.edit():
        shelf.token = "s3cret"
    return shelf


@pytest.fixture
def http(bench: Bench) -> TestClient:
    return client(bench)


def client(bench: Bench, key: str = "") -> TestClient:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    app = create_app(bench.platform, bench.runtime.settings)
    return TestClient(app, base_url="http://127.0.0.1:8400", client=("127.0.0.1", 50000), headers=headers)


def body(shelf: Shelf, **more: object) -> dict[str, object]:
    return {"name": "shelf", "kind": "shelf", "collection": "docs", "options": {"path": str(shelf.path)}, "secrets": {"token": "s3cret"}, **more}


def test_a_source_is_made_synced_paused_and_deleted_over_http(http: TestClient, bench: Bench, shelf: Shelf) -> None:
    made = http.post(AT, json=body(shelf, cron="0 2 * * *", timezone="Asia/Shanghai"))
    assert made.status_code == 201 and made.headers["location"] == f"{AT}/shelf"
    assert made.json()["secrets"] == {"token": "***"} and "s3cret" not in made.text and made.json()["next_at"]
    assert http.post(AT, json=body(shelf)).status_code == 409
    assert [check["ok"] for check in http.post(f"{AT}/shelf/validate").json()] == [True]
    begun = http.post(f"{AT}/shelf/sync", json={"full": True})
    assert begun.status_code == 202
    bench.sync()
    assert http.get(begun.headers["location"]).json()["indexed"] == 2
    status = http.get(f"{AT}/shelf/status").json()
    assert status["source"]["status"] == "idle" and status["documents"] == {"done": 2} and status["run"]["indexed"] == 2
    assert http.post(f"{AT}/shelf/pause").json()["status"] == "paused"
    assert http.post(f"{AT}/shelf/sync").status_code == 409
    assert http.post(f"{AT}/shelf/resume").json()["status"] == "idle"
    assert http.patch(f"{AT}/shelf", json={"cron": ""}).json()["next_at"] is None
    assert [view["name"] for view in http.get(AT).json()["data"]] == ["shelf"]
    gone = http.delete(f"{AT}/shelf")
    assert (gone.status_code, gone.json()["id"], gone.json()["documents"], gone.json()["outstanding"]) == (200, "shelf", 2, [])
    assert http.get(f"{AT}/shelf").status_code == 404


def test_what_a_mass_disappearance_holds_is_listed_and_released(http: TestClient, bench: Bench, shelf: Shelf) -> None:
    with shelf.edit():
        for number in range(30):
            shelf.put(f"page-{number}")
    http.post(AT, json=body(shelf))
    bench.sync()
    with shelf.edit():
        shelf.items = {}
    bench.sync()
    bench.sync()
    listed = http.get(f"{AT}/shelf/prune", params={"limit": 10}).json()
    assert len(listed["data"]) == 10 and listed["has_more"] and listed["data"][0]["evidence"] == "missing"
    assert http.post(f"{AT}/shelf/prune", json={"approve": False}).status_code == 422
    assert http.post(f"{AT}/shelf/prune", json={"approve": True}).json()["documents"] == 32


def test_wrong_options_are_named_by_their_pointer(http: TestClient, shelf: Shelf) -> None:
    wrong = http.post(AT, json=body(shelf) | {"options": {"pth": "x"}})
    assert wrong.status_code == 422 and wrong.json()["errors"][0]["pointer"] == "/options/pth"
    assert http.post(AT, json=body(shelf, cron="whenever")).json()["errors"][0]["pointer"] == "/cron"
    assert http.post(AT, json=body(shelf, colour="red")).status_code == 422
    assert http.post(AT, json=body(shelf) | {"kind": "attic"}).json()["code"] == "unknown_kind"


def test_a_key_changes_only_what_its_collections_hold_and_reads_nothing_of_the_machine(bench: Bench, shelf: Shelf) -> None:
    key = bench.platform.create_key("editor", collections=("docs",)).key or ""
    other = bench.platform.create_key("stranger", collections=("secret",)).key or ""
    reader = bench.platform.create_key("reader", collections=("docs",), permissions=("read",)).key or ""
    editor = client(bench, key)
    folder = {"name": "pages", "kind": "folder", "collection": "docs", "options": {"path": "/etc"}}
    assert editor.post(AT, json=folder).status_code == 403
    assert editor.post(AT, json=body(shelf) | {"secrets": {"token": "env:HOME"}}).status_code == 403
    assert editor.post(AT, json=body(shelf) | {"collection": "secret"}).status_code == 403
    assert editor.post(AT, json=body(shelf)).status_code == 201
    assert editor.patch(f"{AT}/shelf", json={"secrets": {"token": "env:HOME"}}).status_code == 403
    assert client(bench, reader).get(f"{AT}/shelf").status_code == 200
    assert client(bench, reader).post(f"{AT}/shelf/sync").status_code == 403
    stranger = client(bench, other)
    assert stranger.get(f"{AT}/shelf").status_code == 404 and stranger.get(AT).json()["data"] == []
    assert stranger.post(f"{AT}/shelf/sync").status_code in (403, 404) and stranger.delete(f"{AT}/shelf").status_code in (403, 404)


def event(http: TestClient, hook: str, token: str, **told: object):
    sent = json.dumps(told).encode()
    return http.post(hook, content=sent, headers={"x-shelf-signature": signature(token, sent)})


def test_a_genuine_event_fetches_what_it_names_and_nothing_else(bench: Bench, http: TestClient, shelf: Shelf) -> None:
    hook = http.post(AT, json=body(shelf)).json()["hook"]
    bench.sync()
    bench.platform.create_key("somebody")
    shelf.forget_calls()
    with shelf.edit():
        shelf.put("apples", "The apples are red since this morning.")
    answered = event(http, hook, "s3cret", keys=["apples"], challenge="c-1")
    assert (answered.status_code, answered.json()) == (200, {"challenge": "c-1"})
    (run,) = bench.platform.runs(limit=1).data
    while not bench.platform.run(run.run_id).finished:
        bench.work()
    assert bench.finds("red since this morning")[0] == "apples"
    assert bench.sync().unchanged == 2 and shelf.calls("fetch") == ["fetch apples"]


def test_an_event_that_is_not_genuine_is_refused_and_touches_nothing(bench: Bench, http: TestClient, shelf: Shelf) -> None:
    hook = http.post(AT, json=body(shelf)).json()["hook"]
    bench.sync()
    assert event(http, hook, "forged", keys=["apples"]).status_code == 403
    assert http.post("/hooks/0123456789abcdef0123456789abcdef", json={}).status_code == 404
    assert len(bench.platform.runs().data) == 1


def test_an_event_of_something_unknown_begins_a_listing(bench: Bench, http: TestClient, shelf: Shelf) -> None:
    hook = http.post(AT, json=body(shelf)).json()["hook"]
    bench.sync()
    with shelf.edit():
        shelf.put("plums")
    for _ in range(3):
        assert event(http, hook, "s3cret", keys=["plums"]).status_code == 200
    assert len(bench.platform.runs().data) == 2, "it is begun once"
    assert bench.sync().indexed == 1


def test_an_event_of_a_deletion_deletes_what_is_really_gone(bench: Bench, http: TestClient, shelf: Shelf) -> None:
    hook = http.post(AT, json=body(shelf)).json()["hook"]
    bench.sync()
    with shelf.edit():
        del shelf.items["apples"]
    event(http, hook, "s3cret", keys=["apples", "pears"])
    (run,) = bench.platform.runs(limit=1).data
    while not bench.platform.run(run.run_id).finished:
        bench.work()
    bench.work()
    assert bench.titles() == {"pears": "done"} and bench.audit() == 1


@pytest.fixture(params=["here", "there"])
def verbs(request: pytest.FixtureRequest, bench: Bench, http: TestClient):
    if request.param == "here":
        yield Local(bench.runtime.settings, bench.platform).sources
        return

    def send(method: str, path: str, **given):
        response = http.request(method, f"/api/v1{path}", **given)
        if response.status_code >= 400:
            raise problems.read(response.status_code, response.content, None)
        return response.json()

    yield SourcesThere(send)


def test_the_verbs_are_the_same_on_this_machine_and_behind_http(verbs, bench: Bench, shelf: Shelf) -> None:
    assert {"folder", "shelf"} <= {kind.name for kind in verbs.kinds()}
    told = SourceChange({"path": str(shelf.path), "token": "s3cret"}, cron="0 2 * * *")
    assert verbs.create("shelf", "shelf", "docs", told).status == "idle"
    assert verbs.validate("shelf")[0].ok
    run = verbs.sync("shelf", full=False)
    assert bench.sync().run_id == run.run_id
    assert verbs.status("shelf").documents == {"done": 2}
    assert verbs.update("shelf", SourceChange(timezone="Asia/Shanghai", forget_deleted=True)).timezone == "Asia/Shanghai"
    assert verbs.pause("shelf").status == "paused" and verbs.resume("shelf").status == "idle"
    assert verbs.absent("shelf", limit=10, after="").data == () and verbs.prune("shelf") == 0
    assert [view.name for view in verbs.list(limit=10, after="").data] == ["shelf"]
    with pytest.raises(BadRequest):
        verbs.update("shelf", SourceChange({"nothing": "x"}))
    found = verbs.delete("shelf", keep_documents=True)
    assert (found.documents, found.kept, found.outstanding) == (0, 2, ())
    with pytest.raises(NotFound):
        verbs.show("shelf")


# ---------------------------------------------------------------- by the command line


@pytest.fixture
def said(bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr("api.system.open_system", lambda flags=None: Local(bench.runtime.settings, bench.platform))

    def call(*words: str) -> tuple[int, str, str]:
        code = run(["sources", *words])
        found = capsys.readouterr()
        return code, found.out, found.err

    return call


def test_the_command_line_reads_the_options_of_any_kind(said, shelf: Shelf) -> None:
    code, out, _ = said("create", "shelf", "--kind", "shelf", "-c", "docs", "--path", str(shelf.path), "--token=s3cret", "--json")
    assert code == 0 and json.loads(out)["options"] == {"path": str(shelf.path)} and "s3cret" not in out
    assert said("create", "other", "--kind", "shelf", "-c", "docs", "--path")[0] == 2
    assert said("create", "other", "--kind", "shelf", "-c", "docs", "path", "x")[0] == 2
    code, _, err = said("create", "other", "--kind", "shelf", "-c", "docs", "--paths", "x")
    assert code == 2 and "no option 'paths'" in err


def test_every_verb_has_its_say_in_words_and_in_json(said, bench: Bench, shelf: Shelf) -> None:
    said("create", "shelf", "--kind", "shelf", "-c", "docs", "--path", str(shelf.path), "--token", "s3cret", "--cron", "0 2 * * *")
    bench.sync()
    for words in (["kinds"], ["list"], ["show", "shelf"], ["status", "shelf"], ["validate", "shelf"], ["pause", "shelf"], ["resume", "shelf"],
                  ["prune", "shelf"], ["update", "shelf", "--jitter", "60"], ["delete", "shelf", "--dry-run"]):  # fmt: skip
        code, out, _ = said(*words)
        assert code == 0 and out, words
        code, out, _ = said(*words, "--json")
        assert code == 0 and json.loads(out) is not None, words
    code, out, _ = said("delete", "shelf", "--yes", "--json")
    assert code == 0
    nothing = {"kept": 0, "outstanding": [], "dry_run": False}
    assert json.loads(out) == {"deleted": True, "id": "shelf", "documents": 2, "chunks": 2, **nothing}


def test_wrong_credentials_make_validate_fail_with_the_cure(said, shelf: Shelf) -> None:
    said("create", "shelf", "--kind", "shelf", "-c", "docs", "--path", str(shelf.path), "--token", "wrong")
    code, out, _ = said("validate", "shelf")
    assert code == 1 and "the token was refused" in out


def test_a_sync_that_nobody_waits_for_says_how_to_follow_it(said, shelf: Shelf) -> None:
    said("create", "shelf", "--kind", "shelf", "-c", "docs", "--path", str(shelf.path), "--token", "s3cret")
    code, out, err = said("sync", "shelf", "--no-wait")
    assert code == 0 and "runs show run_1" in out and "dujiang up" in err
