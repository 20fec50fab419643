"""A backup that is restored, and what was deleted since: it goes again, and what came later stays."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.cli import run as run_cli
from api.local import Local
from pipeline.contracts import Question
from pipeline.settings import Settings
from tests.deleted import MARKER, holding
from tests.simulators.shelf import filled
from tests.sourced import Bench, plugged
from tests.system import settings_for
from workers.dispatch import Platform, open_platform
from workers.inline import run_inline
from workers.views import Incoming, TombstoneView

ONLY = ("deleted", "kept", "stays")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_for(tmp_path / "home")


def ingest(platform: Platform, texts: dict[str, str], collection: str = "handbook", tenant: str = "default") -> None:
    items = [Incoming(key=f"{name}.md", title=name, data=f"# {name}\n\nThe {text} of {name}.\n".encode()) for name, text in texts.items()]
    run = platform.ingest(collection, items, tenant=tenant)
    assert run.finished or run_inline(platform.runtime, run.run_id).finished


def identity(platform: Platform, name: str) -> str:
    return next(view.document_id for view in platform.documents("handbook").data if view.title == name)


def titles(platform: Platform, text: str, collection: str = "handbook") -> set[str]:
    return {hit.title for hit in platform.search(Question(text, (collection,), k=20)).hits if text in hit.text}


def saved(settings: Settings, to: Path, *parts: str) -> None:
    """As a person backs up."""
    for part in parts:
        source, target = Path(settings.home) / part, to / part
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)


def restored(settings: Settings, backup: Path) -> None:
    for part in backup.iterdir():
        target = Path(settings.home) / part.name
        for left in Path(settings.home).glob(f"{part.name}-*"):
            left.unlink()
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        shutil.copytree(part, target) if part.is_dir() else shutil.copy(part, target)


def lived(settings: Settings, backup: Path, *parts: str) -> list[TombstoneView]:
    """A while of work with a backup in its middle; gives the log of deletions at its end."""
    with open_platform(settings) as platform:
        ingest(platform, dict.fromkeys((*ONLY, "before"), MARKER))
        ingest(platform, {"one": MARKER}, "gone")
        ingest(platform, {"two": MARKER}, "theirs", "acme")
        platform.deleting.documents("handbook", [identity(platform, "before")])
    backup.mkdir()
    saved(settings, backup, *parts)
    with open_platform(settings) as platform:
        platform.deleting.documents("handbook", [identity(platform, "deleted")])
        ingest(platform, {"later": "new page"})
        platform.deleting.documents("handbook", [identity(platform, "later")])
        platform.deleting.collection("gone")
        platform.deleting.tenant("acme")
        return platform.tombstones.listed()


@pytest.mark.parametrize("parts", [("ledger.db", "artifacts", "store"), ("ledger.db", "artifacts")], ids=["with the store", "without"])
def test_what_was_deleted_after_a_backup_goes_again(settings: Settings, tmp_path: Path, parts: tuple[str, ...]) -> None:
    log = lived(settings, tmp_path / "backup", *parts)
    restored(settings, tmp_path / "backup")
    with open_platform(settings) as platform:
        assert {view.title for view in platform.documents("handbook").data} >= {"deleted", "kept"}
        told = platform.tombstones.replay(log, dry_run=True)
        assert (told.tenants, told.collections, told.documents) == (1, ("gone",), 3) and platform.collection("gone")
        done = platform.tombstones.replay(log)
        assert replace(done, dry_run=True) == told and done.outstanding == ()
        platform.repair()
        assert platform.audit().ok
        there = {view.title for view in platform.documents("handbook").data if view.status == "done"}
        assert there == {"kept", "stays"}
        assert [view.name for view in platform.collections().data] == ["handbook"] and platform.collections(tenant="acme").data == ()
        assert platform.tombstones.replay(log).documents == 0, "it is safe to repeat"
        ingest(platform, {"deleted": "third edition", "later": "third edition"})
        assert titles(platform, "third edition") == {"deleted", "later"}, "versions go on above those that the store knows"
        platform.deleting.documents("handbook", [identity(platform, name) for name in ("kept", "stays")])
        assert platform.audit().ok
    assert holding(Path(settings.home), MARKER) == []


def test_what_was_taken_in_again_before_the_backup_stays(settings: Settings, tmp_path: Path) -> None:
    with open_platform(settings) as platform:
        ingest(platform, {"one": MARKER})
        platform.deleting.documents("handbook", [identity(platform, "one")])
        log = platform.tombstones.listed()
        ingest(platform, {"one": MARKER})
        platform.delete_collection("handbook")
        log += platform.tombstones.listed()
        ingest(platform, {"one": MARKER})
        done = platform.tombstones.replay(log)
        assert (done.documents, done.collections) == (0, ()) and titles(platform, MARKER) == {"one"}


def test_a_source_that_was_deleted_is_not_listed_by_the_restored_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with plugged(monkeypatch):
        bench = Bench(tmp_path / "home")
        settings = bench.runtime.settings
        shelf = filled(tmp_path / "shelf.json", "apples", "pears")
        bench.sources.create("shelf", "shelf", "docs", options={"path": str(shelf.path)}, cron="0 2 * * *")
        bench.sync()
        bench.close()
        backup = tmp_path / "backup"
        backup.mkdir()
        saved(settings, backup, "ledger.db", "artifacts", "store")
        with open_platform(settings) as platform:
            platform.deleting.source("shelf")
            log = platform.tombstones.listed()
        restored(settings, backup)
        with open_platform(settings) as platform:
            done = platform.tombstones.replay(log)
            assert (done.sources, done.documents) == (("shelf",), 2)
            assert platform.sources.list().data == () and platform.documents("docs").data == ()
            made = platform.sources.create("shelf", "shelf", "docs", options={"path": str(shelf.path)})
            assert platform.tombstones.replay(log).sources == () and platform.sources.show("shelf").created_at == made.created_at


@pytest.fixture
def said(settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., tuple[int, str]]]:
    with open_platform(settings) as platform:
        ingest(platform, {"one": MARKER, "two": MARKER})
        platform.deleting.documents("handbook", [identity(platform, "one")])
        monkeypatch.setattr("api.system.open_system", lambda flags=None: Local(settings, platform))

        def call(*words: str) -> tuple[int, str]:
            code = run_cli(["deletions", *words])
            return code, capsys.readouterr().out

        yield call


def test_the_log_is_exported_and_replayed_by_the_command_line(said: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    assert said("list") == (0, "nothing holds anything of what was deleted\n")
    assert json.loads(said("list", "--json")[1]) == {"data": []}
    code, out = said("export")
    (entry,) = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and entry["kind"] == "document" and MARKER not in out
    assert json.loads(said("export", "--json")[1]) == {"data": [entry]}
    file = tmp_path / "deletions.jsonl"
    file.write_text(out)
    assert said("replay", str(file))[0] == 2, "it asks, and nobody is there to answer"
    assert json.loads(said("replay", str(file), "--yes", "--json")[1])["documents"] == 0
    file.write_text("{")
    assert said("replay", str(file), "--yes")[0] != 0


def test_the_log_is_read_and_replayed_over_http(settings: Settings) -> None:
    with open_platform(settings) as platform:
        http = TestClient(create_app(platform, settings), base_url="http://127.0.0.1:8400", client=("127.0.0.1", 50000))
        ingest(platform, {"one": MARKER, "two": MARKER, "three": MARKER})
        platform.deleting.documents("handbook", [identity(platform, "one"), identity(platform, "two")])
        first = http.get("/api/v1/deletions/log", params={"limit": 1}).json()
        rest = http.get("/api/v1/deletions/log", params={"limit": 1000, "after": first["last_id"]}).json()
        entries = first["data"] + rest["data"]
        assert first["has_more"] and not rest["has_more"] and len({entry["id"] for entry in entries}) == 2
        kept = identity(platform, "three")
        entries.append({**entries[0], "id": kept, "number": 1})
        told = http.post("/api/v1/deletions/replay", json={"entries": entries, "dry_run": True})
        assert (told.status_code, told.json()["documents"]) == (200, 1)
        assert http.post("/api/v1/deletions/replay", json={"entries": entries}).json()["documents"] == 1
        assert http.post("/api/v1/deletions/replay", json={"entries": [{"kind": "magic", "id": "x", "at": 1}]}).status_code == 422
        assert platform.collection("handbook").documents == 0
