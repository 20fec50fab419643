"""Sources through a whole system: real server, real workers, processes that are killed while they list."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.parts import beat, worker
from tests.simulators.shelf import PLUGINS, Shelf, filled
from tests.sourced import plugged
from tests.system import ROOT, System, children, fill, markdown, settings_for, until
from workers.dispatch import open_platform
from workers.ledger import sources
from workers.views import RunView

PAGES = [f"page-{number:03}" for number in range(80)]


PLUGGED = {"PYTHONPATH": os.pathsep.join((str(PLUGINS), str(ROOT)))}


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """One system for all: each test has a source and a collection of its own, called as its folder is."""
    with pytest.MonkeyPatch.context() as patch, plugged(patch), System(tmp_path_factory.mktemp("syncing") / "home", environment=PLUGGED) as running:
        yield running


def shelved(system: System, tmp_path: Path, name: str, *keys: str) -> Shelf:
    shelf = filled(tmp_path / "shelf.json", *keys)
    system.platform.sources.create(name, "shelf", name, options={"path": str(shelf.path)})
    return shelf


def sync(system: System, name: str) -> RunView:
    return system.finish(system.platform.sources.sync(name))


def test_a_folder_is_followed_through_new_changed_and_deleted_files(system: System, tmp_path: Path, name: str) -> None:
    folder = fill(tmp_path / "pages", 12, documents=2)
    system.platform.sources.create(name, "folder", name, options={"path": str(folder)})
    assert sync(system, name).indexed == 14
    (folder / "station-0003.md").write_text(markdown(3, edition=2), encoding="utf-8")
    (folder / "station-0004.md").unlink()
    (folder / "new.md").write_text(markdown(77), encoding="utf-8")
    run = sync(system, name)
    assert (run.discovered, run.indexed, run.unchanged) == (14, 2, 12)
    assert sync(system, name).deleted == 1
    assert system.audit(name).documents == 14


def test_a_folder_whose_parts_may_not_be_looked_into_loses_nothing(system: System, tmp_path: Path, name: str) -> None:
    folder = fill(tmp_path / "pages", 4)
    system.platform.sources.create(name, "folder", name, options={"path": str(folder)})
    sync(system, name)
    folder.rename(tmp_path / "elsewhere")
    for _ in range(3):
        run = sync(system, name)
        assert run.deleted == 0 and "is not a folder" in run.warnings[0]
    assert system.audit(name).documents == 4


def test_a_listing_survives_whoever_lists_being_killed_at_any_point(system: System, tmp_path: Path, name: str) -> None:
    shelf = shelved(system, tmp_path, name, *PAGES)
    points = sorted(random.Random(7).sample(range(len(PAGES)), 3))
    with shelf.edit():
        shelf.marks, shelf.raises = 10, {str(point): "kill" for point in points}
    run = sync(system, name)
    assert (run.status, run.discovered, run.indexed) == ("done", len(PAGES), len(PAGES))
    assert len(shelf.calls("break")) == 3
    for begun in shelf.calls("scan")[1:]:
        assert begun != "scan {}" or points[0] < 10, "it is taken up from the last mark"
    listed, extra = shelf.calls("list"), 3 * 10
    assert len(PAGES) <= len(listed) <= len(PAGES) + extra
    assert system.audit(name).documents == len(PAGES)


def test_a_worker_that_hangs_over_a_listing_loses_it_to_another(system: System, tmp_path: Path, name: str) -> None:
    shelf = shelved(system, tmp_path, name, *PAGES[:5])
    gate = tmp_path / "gate"
    gate.touch()
    with shelf.edit():
        shelf.wait = str(gate)
    run = system.platform.sources.sync(name)
    until(lambda: len(shelf.calls("list")) == 5, 20.0, "the listing is under way")
    os.kill(system.child("network"), signal.SIGSTOP)
    sources.freed(system.platform.db, "network")
    gate.unlink()
    os.kill(system.child("network"), signal.SIGCONT)
    view = system.finish(run)
    assert (view.discovered, view.indexed) == (5, 5) and system.audit(name).documents == 5


def test_what_is_no_longer_to_be_read_is_out_of_every_search_before_the_run_ends(system: System, tmp_path: Path, name: str) -> None:
    shelf = shelved(system, tmp_path, name, "apples", "pears")
    sync(system, name)
    gate = tmp_path / "gate"
    gate.touch()
    page = shelf.items["apples"]
    with shelf.edit():
        del shelf.items["apples"]
        shelf.lost, shelf.wait = ["apples"], str(gate)
    run = system.platform.sources.sync(name)
    gate.unlink()
    system.finish(run)
    assert system.audit(name).documents == 1
    with shelf.edit():
        shelf.items["apples"], shelf.lost = page, []
    assert sync(system, name).indexed == 1 and system.audit(name).documents == 2


def test_a_pause_in_mid_listing_is_seen_and_nothing_is_lost_by_it(system: System, tmp_path: Path, name: str) -> None:
    shelf = shelved(system, tmp_path, name, *PAGES[:5])
    gate = tmp_path / "gate"
    gate.touch()
    with shelf.edit():
        shelf.wait = str(gate)
    run = system.platform.sources.sync(name)
    until(lambda: len(shelf.calls("list")) == 5, 20.0, "the listing is under way")
    assert system.platform.sources.pause(name).status == "paused"
    gate.unlink()
    system.platform.sources.resume(name)
    view = system.finish(run)
    assert (view.discovered, view.indexed) == (5, 5)


def test_a_schedule_is_begun_by_the_system_itself(system: System, tmp_path: Path, name: str) -> None:
    shelved(system, tmp_path, name, "apples")
    system.platform.sources.update(name, options={}, cron="* * * * *")
    row = sources.find(system.platform.db, "default", name)
    sources.change(system.platform.db, row.id, {"next_at": 1.0})
    until(lambda: system.platform.sources.show(name).documents == 1, 30.0, "the source was synced")
    assert len(system.platform.runs(collection=name).data) == 1
    system.platform.sources.update(name, options={}, cron="")


def test_a_secret_is_in_no_log_and_no_row(system: System, tmp_path: Path, name: str) -> None:
    shelf = filled(tmp_path / "shelf.json", "apples")
    with shelf.edit():
        shelf.token = "t0p-secret"
    system.platform.sources.create(name, "shelf", name, options={"path": str(shelf.path), "token": "t0p-secret"})
    assert sync(system, name).indexed == 1
    with shelf.edit():
        shelf.token = "another"
    system.finish(system.platform.sources.sync(name))
    for path in system.home.rglob("*"):
        if path.is_file() and path.suffix not in {".lock"}:
            assert b"t0p-secret" not in path.read_bytes(), path


def test_two_beats_begin_one_run_and_a_forking_worker_lists_in_a_process_of_its_own(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_for(tmp_path / "home", redis_url=redis_url)
    shelf = filled(tmp_path / "shelf.json", "apples")
    with plugged(monkeypatch), open_platform(settings) as platform:
        platform.sources.create("shelf", "shelf", "docs", options={"path": str(shelf.path)}, cron="0 2 * * *")
        sources.change(platform.db, sources.find(platform.db, "default", "shelf").id, {"next_at": 1.0})
        with (
            beat(settings, "beat-1"),
            beat(settings, "beat-2"),
            worker(settings, "all", "", pool="prefork", environment=PLUGGED) as everything,
        ):
            until(lambda: platform.sources.show("shelf").documents == 1 and platform.sources.show("shelf").status == "idle", 60.0, "it was synced")
            assert len(platform.runs().data) == 1 and shelf.calls("scan") == ["scan {}"]
            (scanner,) = [pid for pid in children(everything.pid) if b"workers.scanner" in Path(f"/proc/{pid}/cmdline").read_bytes()]
            os.kill(scanner, signal.SIGKILL)
            run = platform.sources.sync("shelf")
            until(lambda: platform.run(run.run_id).finished, 30.0, "another process lists")
