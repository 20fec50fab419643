"""Listings that are interrupted, refused, paused and cancelled, and sources that are made, changed and deleted, on both ledgers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from pipeline.errors import BadRequest, Conflict, NotFound, Unsupported
from tests.simulators.shelf import Shelf, filled
from tests.sourced import Bench, plugged
from workers import deleting, erasing, fetching, withdrawal
from workers.ledger import absence, outstanding, removal, scans, sources
from workers.ledger.intake import Submission
from workers.ledger.scans import Found
from workers.ledger.schema import documents

MANY = [f"page-{number:03}" for number in range(60)]


@pytest.fixture(params=["sqlite", "postgresql"])
def bench(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    url = "" if request.param == "sqlite" else request.getfixturevalue("postgres_database")
    with plugged(monkeypatch):
        made = Bench(tmp_path / "home", url)
        yield made
        made.close()


def shelf_of(bench: Bench, tmp_path: Path, *keys: str, **options: str) -> Shelf:
    shelf = filled(tmp_path / "shelf.json", *keys)
    bench.sources.create("shelf", "shelf", "docs", options={"path": str(shelf.path), **options})
    return shelf


def test_an_interrupted_listing_goes_on_from_its_mark(bench: Bench, tmp_path: Path) -> None:
    shelf = shelf_of(bench, tmp_path, *MANY[:20])
    with shelf.edit():
        shelf.marks, shelf.raises = 5, {"12": "unavailable"}
    run = bench.sources.sync("shelf")
    assert bench.listing()
    assert bench.sources.show("shelf").status in ("waiting", "syncing") and not bench.platform.run(run.run_id).finished
    assert bench.sync().run_id == run.run_id, "a run that is under way is given back"
    view = bench.sync() if not bench.platform.run(run.run_id).finished else bench.platform.run(run.run_id)
    assert (view.discovered, view.indexed, view.status) == (20, 20, "done")
    assert shelf.calls("scan")[:2] == ["scan {}", 'scan {"at": 10}']


def test_a_listing_that_is_interrupted_again_and_again_is_given_up(bench: Bench, tmp_path: Path) -> None:
    shelf = shelf_of(bench, tmp_path, *MANY[:20])
    with shelf.edit():
        shelf.raises = {str(number): "unavailable" for number in range(6)}
    run = bench.sync()
    while not run.finished:
        run = bench.sync()
    assert run.status == "failed" and "503" in run.warnings[-1]
    assert len(shelf.calls("scan")) == 6
    assert bench.sync().status == "done", "the next run begins anew"


def test_a_bug_of_a_connector_fails_the_run_and_nothing_else(bench: Bench, tmp_path: Path) -> None:
    shelf = shelf_of(bench, tmp_path, "apples", "pears")
    with shelf.edit():
        shelf.raises = {"1": "bug"}
    run = bench.sources.sync("shelf")
    with pytest.raises(ZeroDivisionError):
        bench.listing()
    view = bench.platform.run(run.run_id)
    assert view.status == "failed" or not view.finished
    assert "ZeroDivisionError" in view.warnings[0]
    assert bench.sync().status in ("done", "failed")
    assert bench.sync().status == "done"


def test_refused_credentials_stop_the_source_after_one_call_and_touch_nothing(bench: Bench, tmp_path: Path) -> None:
    shelf = shelf_of(bench, tmp_path, "apples", token="old")
    bench.sync()
    with shelf.edit():
        shelf.token = "new"
    run = bench.sync()
    assert run.status == "failed" and shelf.calls("refused") == ["refused"]
    assert bench.sources.show("shelf").status == "stopped" and bench.titles() == {"apples": "done"}
    with pytest.raises(Conflict, match="the token was refused"):
        bench.sources.sync("shelf")
    bench.sources.update("shelf", options={"token": "new"})
    assert bench.sync().status == "done"


def test_credentials_that_are_refused_between_two_downloads_make_the_documents_wait(bench: Bench, tmp_path: Path) -> None:
    shelf = shelf_of(bench, tmp_path, *MANY[:20], token="old")
    run = bench.sources.sync("shelf")
    assert bench.listing()
    with shelf.edit():
        shelf.token = "new"
    from workers import feeder as feeding
    from workers.stage import run_stage

    issues: list = []
    feeder = feeding.Feeder(bench.runtime.db, feeding.windows(bench.runtime.profile, processes=1, threads=1), issues.extend)
    feeder.tick()
    for issue in issues:
        run_stage(issue.batch_id, issue.token, bench.runtime)
    assert len(shelf.calls("refused")) <= 2
    view = bench.platform.run(run.run_id)
    assert (view.status, view.failed) == ("paused", 0) and bench.sources.show("shelf").status == "stopped"
    bench.sources.update("shelf", options={"token": "new"})
    assert bench.platform.run(run.run_id).status == "running"


def test_an_answer_to_credentials_that_were_changed_meanwhile_stops_nothing(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = shelf_of(bench, tmp_path, *MANY[:5], token="old")
    bench.sources.sync("shelf")
    assert bench.listing()
    with shelf.edit():
        shelf.token = "new"
    stop = sources.stop

    def late(*given: Any) -> bool:
        bench.sources.update("shelf", options={"token": "new"})
        return stop(*given)

    with monkeypatch.context() as patch:
        patch.setattr(sources, "stop", late)
        bench.work()
    assert bench.sources.show("shelf").status != "stopped"


def test_another_row_makes_the_old_one_out_of_scope(bench: Bench, tmp_path: Path) -> None:
    shelf = shelf_of(bench, tmp_path, "apples", row="main")
    with shelf.edit():
        shelf.put("pears", scope="cellar")
    bench.sync()
    bench.sources.update("shelf", options={"row": "cellar"})
    run = bench.sync()
    assert (run.indexed, run.deleted) == (1, 1) and bench.titles() == {"pears": "done"}


def test_a_source_is_claimed_by_one_alone_until_its_lease_ends(bench: Bench, tmp_path: Path) -> None:
    shelf_of(bench, tmp_path, "apples")
    bench.sources.sync("shelf")
    db = bench.runtime.db
    first = sources.claim(db, "a:1:1", lease_s=60.0)
    assert first is not None and sources.claim(db, "b:1:1", lease_s=60.0) is None
    assert sources.freed(db, "a:") == 1
    second = sources.claim(db, "b:1:1", lease_s=60.0)
    assert second is not None
    assert not sources.beat(db, first, lease_s=60.0) and sources.beat(db, second, lease_s=60.0)


def test_who_lost_the_claim_writes_nothing_any_more(bench: Bench, tmp_path: Path) -> None:
    shelf_of(bench, tmp_path, "apples")
    run = bench.sources.sync("shelf")
    db = bench.runtime.db
    late = sources.claim(db, "a:1:1", lease_s=60.0)
    assert late is not None and sources.freed(db, "a:") == 1
    now = sources.claim(db, "b:1:1", lease_s=60.0)
    assert now is not None
    found = [Found(Submission("d-1", "shelf:apples", "apples"), "r1", "main")]
    assert not scans.take(db, late, found, {}, sources.progress(late.source), lease_s=60.0)
    assert not scans.close(db, late, sources.progress(late.source), finished=True)
    assert bench.platform.run(run.run_id).discovered == 0
    assert scans.take(db, now, found, {}, sources.progress(now.source), lease_s=60.0)
    assert bench.platform.run(run.run_id).discovered == 1


def test_a_paused_source_hands_its_listing_back_and_goes_on_when_resumed(bench: Bench, tmp_path: Path) -> None:
    shelf_of(bench, tmp_path, "apples")
    run = bench.sources.sync("shelf")
    bench.sources.pause("shelf")
    assert not bench.listing() and bench.platform.run(run.run_id).status == "paused"
    with pytest.raises(Conflict, match="paused"):
        bench.sources.sync("shelf")
    bench.sources.resume("shelf")
    assert bench.sync().indexed == 1


def test_a_cancelled_run_is_not_listed_any_more(bench: Bench, tmp_path: Path) -> None:
    shelf = shelf_of(bench, tmp_path, "apples")
    run = bench.sources.sync("shelf")
    assert bench.platform.cancel(run.run_id).status == "cancelled"
    assert not bench.listing() and shelf.calls() == []
    assert bench.sync().indexed == 1


def test_a_pause_is_seen_between_two_downloads_and_is_no_failure_however_long(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "FRESH_S", 0.0)
    shelf = shelf_of(bench, tmp_path, *MANY[:10])
    fetch = fetching.Fetcher.fetch

    def pausing(*given: Any) -> Any:
        made = fetch(*given)
        bench.sources.pause("shelf")
        return made

    with monkeypatch.context() as patch:
        patch.setattr(fetching.Fetcher, "fetch", pausing)
        bench.sources.sync("shelf")
        bench.work()
        bench.work()
    assert len(shelf.calls("fetch")) == 1 and bench.sources.show("shelf").status == "paused"
    with bench.runtime.db.write() as connection:
        waited = documents.c.waiting_since - 100 * 3600.0
        assert connection.execute(update(documents).where(documents.c.waiting_since.is_not(None)).values(waiting_since=waited)).rowcount == 9
    bench.sources.resume("shelf")
    with bench.runtime.db.read() as connection:
        assert connection.execute(select(documents.c.id).where(documents.c.waiting_since.is_not(None))).first() is None
    run = bench.sync()
    assert (run.indexed, run.failed) == (10, 0) and len(shelf.calls("fetch")) == 10


def test_two_sources_never_share_a_document(bench: Bench, tmp_path: Path) -> None:
    shelf = shelf_of(bench, tmp_path, "apples")
    bench.sources.create("other", "shelf", "docs", options={"path": str(shelf.path)})
    bench.sync("shelf")
    bench.sync("other")
    assert len(bench.platform.documents("docs").data) == 2
    bench.platform.deleting.source("other")
    assert [view.document for view in bench.platform.documents("docs").data] == ["shelf:apples"]


def test_deleting_a_source_takes_its_documents_unless_they_shall_stay(bench: Bench, tmp_path: Path) -> None:
    shelf_of(bench, tmp_path, "apples", "pears")
    bench.sync()
    kept = bench.platform.deleting.source("shelf", keep_documents=True)
    assert (kept.documents, kept.kept) == (0, 2) and bench.audit() == 2
    shelf = filled(tmp_path / "again.json", "apples")
    bench.sources.create("again", "shelf", "docs", options={"path": str(shelf.path)})
    bench.sync("again")
    assert bench.platform.deleting.source("again", dry_run=True).documents == 1 and bench.audit() == 3
    assert bench.platform.deleting.source("again").documents == 1
    assert bench.audit() == 2
    with pytest.raises(NotFound):
        bench.sources.show("again")


def test_a_source_whose_collection_is_gone_is_deleted_like_any_other(bench: Bench, tmp_path: Path) -> None:
    shelf_of(bench, tmp_path, "apples")
    bench.sync()
    bench.platform.delete_collection("docs")
    view = bench.platform.deleting.source("shelf")
    assert (view.documents, view.outstanding) == (0, ())
    with pytest.raises(NotFound):
        bench.sources.show("shelf")


def test_a_source_that_is_deleted_while_it_is_listed_leaves_nothing_behind(bench: Bench, tmp_path: Path) -> None:
    shelf_of(bench, tmp_path, "apples", "pears")
    run = bench.sources.sync("shelf")
    assert bench.listing()
    bench.platform.deleting.source("shelf")
    ended = bench.platform.run(run.run_id)
    assert ended.finished and ended.discovered == ended.cancelled == 2
    assert bench.audit() == 0 and bench.platform.documents("docs").data == ()
    assert not bench.listing() and bench.sources.list().data == ()


def test_a_deletion_of_a_source_that_was_killed_is_finished_by_whoever_comes_next(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = shelf_of(bench, tmp_path, "apples", "pears", "plums")
    bench.sync()

    def dies(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for module, name in ((withdrawal, "out_of"), (absence, "removed"), (removal, "forget_source")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, dies)
            with pytest.raises(KeyboardInterrupt):
                bench.platform.deleting.source("shelf")
        assert bench.sources.list().data == () and erasing.SAID[outstanding.SOURCE] in erasing.left(bench.runtime)
        with pytest.raises(NotFound):
            bench.sources.sync("shelf")
        with pytest.raises(Conflict):
            bench.sources.create("shelf", "shelf", "docs", options={"path": str(shelf.path)})
        deleting.finish(bench.runtime)
        assert erasing.erase(bench.runtime) == () and bench.audit() == 0
        assert bench.sources.create("shelf", "shelf", "docs", options={"path": str(shelf.path)}).documents == 0
        assert bench.sync().indexed == 3


def test_a_source_that_is_told_too_little_or_too_much_is_refused_by_name(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="needs path"):
        bench.sources.create("shelf", "shelf", "docs", options={})
    with pytest.raises(BadRequest, match="no option 'colour'"):
        bench.sources.create("shelf", "shelf", "docs", options={"path": "/x", "colour": "red"})
    with pytest.raises(Unsupported, match="no kind of source 'attic'"):
        bench.sources.create("shelf", "attic", "docs", options={})
    with pytest.raises(Unsupported, match="cannot be loaded"):
        bench.sources.create("shelf", "broken", "docs", options={})
    with pytest.raises(BadRequest, match="no name"):
        bench.sources.create("a/b", "shelf", "docs", options={"path": "/x"})
    shelf_of(bench, tmp_path)
    with pytest.raises(Conflict):
        shelf_of(bench, tmp_path)


def test_a_secret_is_sealed_and_never_shown(bench: Bench, tmp_path: Path) -> None:
    shelf_of(bench, tmp_path, "apples", token="very-secret")
    row = sources.find(bench.runtime.db, "default", "shelf")
    assert "very-secret" not in row.secrets and "very-secret" not in repr(row)
    view = bench.sources.show("shelf")
    assert view.secrets == {"token": "***"} and "token" not in view.options
    bench.sources.update("shelf", options={"token": "env:SHELF_TOKEN"})
    assert bench.sources.show("shelf").secrets == {"token": "env:SHELF_TOKEN"}
    assert [check.ok for check in bench.sources.validate("shelf")] == [False], "the variable is not set"


def test_the_fuse_lets_few_go_and_holds_many() -> None:
    assert not absence.too_many(20, 30) and absence.too_many(21, 30)
    assert not absence.too_many(100, 1000) and absence.too_many(101, 1000)
