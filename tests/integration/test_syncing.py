"""Sources through a whole system: real server, real workers, processes that are killed while they list."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulators.shelf import PLUGINS, Shelf, filled
from tests.sourced import plugged
from tests.system import ROOT, System, fill, markdown, until
from workers.ledger import sources
from workers.views import RunView

PAGES = [f"page-{number:03}" for number in range(80)]


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[System]:
    path = os.pathsep.join((str(PLUGINS), str(ROOT)))
    with plugged(monkeypatch), System(tmp_path / "home", environment={"PYTHONPATH": path}) as running:
        yield running


def shelved(system: System, tmp_path: Path, *keys: str) -> Shelf:
    shelf = filled(tmp_path / "shelf.json", *keys)
    system.platform.sources.create("shelf", "shelf", "docs", options={"path": str(shelf.path)})
    return shelf


def sync(system: System, name: str = "shelf") -> RunView:
    return system.finish(system.platform.sources.sync(name))


def test_a_folder_is_followed_through_new_changed_and_deleted_files(system: System, tmp_path: Path) -> None:
    folder = fill(tmp_path / "pages", 12, documents=2)
    system.platform.sources.create("pages", "folder", "docs", options={"path": str(folder)})
    assert sync(system, "pages").indexed == 14
    (folder / "station-0003.md").write_text(markdown(3, edition=2), encoding="utf-8")
    (folder / "station-0004.md").unlink()
    (folder / "new.md").write_text(markdown(77), encoding="utf-8")
    run = sync(system, "pages")
    assert (run.discovered, run.indexed, run.unchanged) == (14, 2, 12)
    assert sync(system, "pages").deleted == 1
    assert system.audit().documents == 14


def test_a_folder_whose_parts_may_not_be_looked_into_loses_nothing(system: System, tmp_path: Path) -> None:
    folder = fill(tmp_path / "pages", 4)
    system.platform.sources.create("pages", "folder", "docs", options={"path": str(folder)})
    sync(system, "pages")
    folder.rename(tmp_path / "elsewhere")
    for _ in range(3):
        run = sync(system, "pages")
        assert run.deleted == 0 and "is not a folder" in run.warnings[0]
    assert system.audit().documents == 4


def test_a_listing_survives_whoever_lists_being_killed_at_any_point(system: System, tmp_path: Path) -> None:
    shelf = shelved(system, tmp_path, *PAGES)
    points = sorted(random.Random(7).sample(range(len(PAGES)), 3))
    with shelf.edit():
        shelf.marks, shelf.raises = 10, {str(point): "kill" for point in points}
    run = sync(system)
    assert (run.status, run.discovered, run.indexed) == ("done", len(PAGES), len(PAGES))
    assert len(shelf.calls("break")) == 3
    for begun in shelf.calls("scan")[1:]:
        assert begun != "scan {}" or points[0] < 10, "it is taken up from the last mark"
    listed, extra = shelf.calls("list"), 3 * 10
    assert len(PAGES) <= len(listed) <= len(PAGES) + extra
    assert system.audit().documents == len(PAGES)


def test_a_worker_that_hangs_over_a_listing_loses_it_to_another(system: System, tmp_path: Path) -> None:
    shelf = shelved(system, tmp_path, *PAGES[:5])
    gate = tmp_path / "gate"
    gate.touch()
    with shelf.edit():
        shelf.wait = str(gate)
    run = system.platform.sources.sync("shelf")
    until(lambda: len(shelf.calls("list")) == 5, 20.0, "the listing is under way")
    os.kill(system.child("network"), signal.SIGSTOP)
    sources.freed(system.platform.db, "network")
    gate.unlink()
    os.kill(system.child("network"), signal.SIGCONT)
    view = system.finish(run)
    assert (view.discovered, view.indexed) == (5, 5) and system.audit().documents == 5


def test_what_is_no_longer_to_be_read_is_out_of_every_search_before_the_run_ends(system: System, tmp_path: Path) -> None:
    shelf = shelved(system, tmp_path, "apples", "pears")
    sync(system)
    gate = tmp_path / "gate"
    gate.touch()
    page = shelf.items["apples"]
    with shelf.edit():
        del shelf.items["apples"]
        shelf.lost, shelf.wait = ["apples"], str(gate)
    run = system.platform.sources.sync("shelf")
    gate.unlink()
    system.finish(run)
    assert system.audit().documents == 1
    with shelf.edit():
        shelf.items["apples"], shelf.lost = page, []
    assert sync(system).indexed == 1 and system.audit().documents == 2


def test_a_pause_in_mid_listing_is_seen_and_nothing_is_lost_by_it(system: System, tmp_path: Path) -> None:
    shelf = shelved(system, tmp_path, *PAGES[:5])
    gate = tmp_path / "gate"
    gate.touch()
    with shelf.edit():
        shelf.wait = str(gate)
    run = system.platform.sources.sync("shelf")
    until(lambda: len(shelf.calls("list")) == 5, 20.0, "the listing is under way")
    assert system.platform.sources.pause("shelf").status == "paused"
    gate.unlink()
    system.platform.sources.resume("shelf")
    view = system.finish(run)
    assert (view.discovered, view.indexed) == (5, 5)


def test_a_schedule_is_begun_by_the_system_itself(system: System, tmp_path: Path) -> None:
    shelved(system, tmp_path, "apples")
    system.platform.sources.update("shelf", options={}, cron="* * * * *")
    row = sources.find(system.platform.db, "default", "shelf")
    sources.change(system.platform.db, row.id, {"next_at": 1.0})
    until(lambda: system.platform.sources.show("shelf").documents == 1, 30.0, "the source was synced")
    assert len(system.platform.runs().data) == 1


def test_a_secret_is_in_no_log_and_no_row(system: System, tmp_path: Path) -> None:
    shelf = filled(tmp_path / "shelf.json", "apples")
    with shelf.edit():
        shelf.token = "t0p-secret"
    system.platform.sources.create("shelf", "shelf", "docs", options={"path": str(shelf.path), "token": "t0p-secret"})
    assert sync(system).indexed == 1
    with shelf.edit():
        shelf.token = "another"
    system.finish(system.platform.sources.sync("shelf"))
    for path in (tmp_path / "home").rglob("*"):
        if path.is_file() and path.suffix not in {".lock"}:
            assert b"t0p-secret" not in path.read_bytes(), path
