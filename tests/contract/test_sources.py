"""Listing, fetching, hiding and pruning, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulators.shelf import Shelf, filled
from tests.sourced import Bench, plugged

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


def test_what_a_source_holds_is_found_under_its_title_and_address(bench: Bench, tmp_path: Path) -> None:
    shelf_of(bench, tmp_path, "apples", "pears")
    run = bench.sync()
    assert (run.status, run.discovered, run.indexed) == ("done", 2, 2)
    assert bench.finds("the page called apples")[0] == "apples"
    view = next(view for view in bench.platform.documents("docs").data if view.title == "apples")
    assert view.url == "https://shelf.test/apples" and view.document == "shelf:apples"
    facts = {name: view.metadata[name] for name in ("author", "source", "content_length", "crawl_timestamp")}
    assert facts["author"] == "somebody" and facts["source"] == "shelf" and str(facts["crawl_timestamp"]).startswith("2026-01-02")


def test_a_second_sync_of_the_same_costs_no_fetch(bench: Bench, tmp_path: Path) -> None:
    shelf = shelf_of(bench, tmp_path, "apples", "pears")
    bench.sync()
    shelf.forget_calls()
    run = bench.sync()
    assert (run.discovered, run.unchanged) == (2, 2)
    assert shelf.calls("fetch") == []


def test_a_full_sync_fetches_everything_and_sees_that_nothing_changed(bench: Bench, tmp_path: Path) -> None:
    shelf = shelf_of(bench, tmp_path, "apples", "pears")
    bench.sync()
    shelf.forget_calls()
    run = bench.sync(full=True)
    assert (run.unchanged, len(shelf.calls("fetch"))) == (2, 2)


def test_an_item_without_a_change_mark_is_fetched_and_compared(bench: Bench, tmp_path: Path) -> None:
    shelf = shelf_of(bench, tmp_path)
    with shelf.edit():
        shelf.put("apples", revision="")
    bench.sync()
    assert bench.sync().unchanged == 1
    with shelf.edit():
        shelf.put("apples", "Something else stands here now.", revision="")
    assert bench.sync().indexed == 1


def test_a_changed_page_is_fetched_alone(bench: Bench, tmp_path: Path) -> None:
    shelf = shelf_of(bench, tmp_path, "apples", "pears")
    bench.sync()
    shelf.forget_calls()
    with shelf.edit():
        shelf.put("pears", "The pears are blue this year.")
    run = bench.sync()
    assert (run.indexed, run.unchanged, shelf.calls("fetch")) == (1, 1, ["fetch pears"])
    assert bench.finds("blue pears")[0] == "pears"


def test_a_page_that_was_renamed_and_moved_is_told_anew_without_a_download(bench: Bench, tmp_path: Path) -> None:
    shelf = shelf_of(bench, tmp_path, "apples")
    bench.sync()
    shelf.forget_calls()
    before = shelf.items["apples"]["text"]
    with shelf.edit():
        shelf.put("apples", before, url="https://shelf.test/fruit/apples", path="fruit")
        shelf.items["apples"]["title"] = "All about apples"
    run = bench.sync()
    assert run.indexed == 1 and shelf.calls("fetch") == []
    assert bench.finds("the page called apples") == ["All about apples"]
    (view,) = bench.platform.documents("docs").data
    assert view.url == "https://shelf.test/fruit/apples" and view.metadata["path"] == "fruit"
    assert bench.audit() == 1


def test_same_bytes_by_a_conditional_request_still_take_a_new_title(bench: Bench, tmp_path: Path) -> None:
    shelf = shelf_of(bench, tmp_path, "apples")
    bench.sync()
    with shelf.edit():
        shelf.items["apples"] |= {"title": "All about apples", "revision": "touched"}
        shelf.fetches["apples"] = "unchanged"
    assert bench.sync().indexed == 1
    assert bench.finds("the page called apples") == ["All about apples"]
    shelf.forget_calls()
    assert bench.sync().unchanged == 1 and shelf.calls("fetch") == []


def test_what_the_source_says_is_deleted_is_deleted(bench: Bench, tmp_path: Path) -> None:
    shelf = shelf_of(bench, tmp_path, "apples", "pears")
    bench.sync()
    with shelf.edit():
        del shelf.items["apples"]
        shelf.gone, shelf.delta = ["apples"], True
    run = bench.sync()
    assert run.deleted == 1 and bench.titles() == {"pears": "done"}
    assert "apples" not in bench.finds("the page called apples") and bench.audit() == 1


def test_a_deleted_page_that_comes_back_is_indexed_again(bench: Bench, tmp_path: Path) -> None:
    shelf = shelf_of(bench, tmp_path, "apples", "pears")
    bench.sync()
    with shelf.edit():
        shelf.gone = ["apples"]
    bench.sync()
    with shelf.edit():
        shelf.gone = []
    assert bench.sync().indexed == 1
    assert bench.titles() == {"apples": "done", "pears": "done"}


def test_absence_alone_deletes_after_two_complete_listings(bench: Bench, tmp_path: Path) -> None:
    shelf = shelf_of(bench, tmp_path, "apples", "pears")
    bench.sync()
    with shelf.edit():
        del shelf.items["apples"]
    assert bench.sync().deleted == 0
    assert bench.sync().deleted == 1
    assert bench.titles() == {"pears": "done"}


def test_a_source_that_can_be_asked_is_believed_at_once(bench: Bench, tmp_path: Path) -> None:
    shelf = shelf_of(bench, tmp_path, "apples", "pears", "plums", "quinces")
    bench.sync()
    with shelf.edit():
        for key in ("apples", "pears", "plums"):
            del shelf.items[key]
        shelf.probes = {"apples": "gone", "pears": "alive", "plums": "forbidden"}
    run = bench.sync()
    assert run.deleted == 1
    assert bench.titles() == {"pears": "done", "plums": "hidden", "quinces": "done"}
    assert bench.sync().deleted == 0, "what is alive is kept, however long no listing holds it"


def test_a_failed_scope_never_prunes_and_is_told(bench: Bench, tmp_path: Path) -> None:
    shelf = shelf_of(bench, tmp_path, "apples")
    with shelf.edit():
        shelf.put("pears", scope="cellar")
    bench.sync()
    with shelf.edit():
        shelf.failed = {"cellar": "rate_limited"}
    for _ in range(3):
        run = bench.sync()
        assert (run.status, run.deleted) == ("done", 0)
        assert "cellar could not be listed (rate_limited)" in run.warnings[0]
    assert bench.titles() == {"apples": "done", "pears": "done"}
    assert "cellar" in bench.sources.show("shelf").last_error


def test_a_listing_of_changes_never_prunes_and_goes_on_from_where_it_was(bench: Bench, tmp_path: Path) -> None:
    shelf = shelf_of(bench, tmp_path, "apples", "pears")
    with shelf.edit():
        shelf.delta = True
    bench.sync()
    for _ in range(2):
        with shelf.edit():
            shelf.items.pop("apples", None)
        assert bench.sync().deleted == 0
    assert shelf.calls("scan")[1] == 'scan {"since": 2}'
    bench.sync(full=True)
    assert shelf.calls("scan")[-1] == "scan {}"


def test_a_scope_that_gives_less_than_it_promised_is_not_believed(bench: Bench, tmp_path: Path) -> None:
    shelf = shelf_of(bench, tmp_path, "apples", "pears")
    bench.sync()
    with shelf.edit():
        del shelf.items["apples"]
        shelf.promised = 1
    for _ in range(3):
        run = bench.sync()
        assert run.deleted == 0 and "promised" in run.warnings[0]


def test_a_mass_disappearance_waits_for_a_person(bench: Bench, tmp_path: Path) -> None:
    shelf = shelf_of(bench, tmp_path, *MANY)
    bench.sync()
    with shelf.edit():
        for key in MANY[:30]:
            del shelf.items[key]
    for _ in range(3):
        run = bench.sync()
        assert run.deleted == 0
    assert "30 documents are no longer at the source" in run.warnings[0]
    assert bench.sources.show("shelf").held == 30 and bench.sources.show("shelf").status == "held"
    waiting = bench.sources.absent("shelf", limit=10)
    assert len(waiting.data) == 10 and waiting.has_more and waiting.data[0].evidence == "missing"
    assert bench.sources.prune("shelf") == 30
    assert bench.sources.show("shelf").status == "idle" and bench.audit() == 30


def test_a_mass_disappearance_that_was_a_mistake_deletes_nothing(bench: Bench, tmp_path: Path) -> None:
    shelf = shelf_of(bench, tmp_path, *MANY)
    bench.sync()
    held = dict(shelf.items)
    with shelf.edit():
        shelf.items = {}
    bench.sync()
    bench.sync()
    assert bench.sources.show("shelf").held == 60
    with shelf.edit():
        shelf.items = held
    run = bench.sync()
    assert (run.unchanged, run.deleted, bench.sources.show("shelf").held) == (60, 0, 0)


def test_pages_that_turn_out_to_be_gone_are_counted_by_the_fuse_one_by_one(bench: Bench, tmp_path: Path) -> None:
    shelf = shelf_of(bench, tmp_path, *MANY)
    bench.sync()
    with shelf.edit():
        for key in MANY[:30]:
            shelf.items[key]["revision"] = "new"
            shelf.fetches[key] = "gone"
    bench.sync()
    assert bench.sources.show("shelf").held == 30 and bench.audit() == 60


def test_a_page_that_is_gone_when_it_is_fetched_leaves_the_index(bench: Bench, tmp_path: Path) -> None:
    shelf = shelf_of(bench, tmp_path, "apples", "pears")
    bench.sync()
    with shelf.edit():
        shelf.items["apples"]["revision"] = "new"
        shelf.fetches["apples"] = "gone"
    run = bench.sync()
    assert (run.skipped, run.deleted) == (1, 1) and bench.titles() == {"pears": "done"}


def test_lost_access_hides_at_once_and_comes_back_without_a_download(bench: Bench, tmp_path: Path) -> None:
    shelf = shelf_of(bench, tmp_path, "apples", "pears")
    bench.sync()
    page = shelf.items["apples"]
    with shelf.edit():
        del shelf.items["apples"]
        shelf.lost = ["apples"]
    for _ in range(3):
        run = bench.sync()
        assert run.deleted == 0
        assert bench.titles() == {"apples": "hidden", "pears": "done"} and bench.sources.show("shelf").hidden == 1
        assert "apples" not in bench.finds("the page called apples") and bench.audit() == 1
    shelf.forget_calls()
    with shelf.edit():
        shelf.items["apples"], shelf.lost = page, []
    run = bench.sync()
    assert (run.indexed, shelf.calls("fetch")) == (1, [])
    assert bench.finds("the page called apples")[0] == "apples" and bench.audit() == 2


def test_a_page_that_may_not_be_fetched_any_more_is_hidden_and_asked_for_again(bench: Bench, tmp_path: Path) -> None:
    shelf = shelf_of(bench, tmp_path, "apples", "pears")
    bench.sync()
    with shelf.edit():
        shelf.items["apples"]["revision"] = "new"
        shelf.fetches["apples"] = "forbidden"
    run = bench.sync()
    assert run.failed == 1 and run.failures[0].code == "forbidden"
    assert "apples" not in bench.finds("the page called apples") and bench.audit() == 1
    with shelf.edit():
        shelf.fetches = {}
    assert bench.sync().indexed == 1
    assert bench.finds("the page called apples")[0] == "apples" and bench.audit() == 2


def test_neither_a_new_title_nor_access_restored_costs_a_model_call(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = shelf_of(bench, tmp_path, "apples", "pears")
    bench.sync()
    asked: list[str] = []
    make = bench.runtime.embedder

    class Counting:
        def __init__(self, inner) -> None:
            self.profile, self._inner = inner.profile, inner

        def encode(self, texts):
            asked.extend(texts)
            return self._inner.encode(texts)

    monkeypatch.setattr(bench.runtime, "embedder", lambda row: Counting(make(row)))
    page = shelf.items["pears"]
    with shelf.edit():
        shelf.items["apples"]["title"] = "All about apples"
        del shelf.items["pears"]
        shelf.lost = ["pears"]
    assert bench.sync().indexed == 1
    with shelf.edit():
        shelf.items["pears"], shelf.lost = page, []
    assert bench.sync().indexed == 1
    assert asked == [] and bench.audit() == 2
    with shelf.edit():
        shelf.put("apples", "Now something else.")
    bench.sync()
    assert asked


def test_a_collection_that_was_deleted_is_made_again_by_the_next_sync(bench: Bench, tmp_path: Path) -> None:
    shelf_of(bench, tmp_path, "apples")
    bench.sync()
    waiting = bench.sources.sync("shelf")
    bench.platform.delete_collection("docs")
    assert not bench.listing()
    assert bench.platform.run(waiting.run_id).finished
    assert bench.sync().indexed == 1 and bench.audit() == 1


def test_what_a_person_deleted_here_stays_deleted_until_a_person_says_otherwise(bench: Bench, tmp_path: Path) -> None:
    shelf = shelf_of(bench, tmp_path, "apples", "pears")
    bench.sync()
    (apples,) = [view.document_id for view in bench.platform.documents("docs").data if view.title == "apples"]
    bench.platform.delete_document("docs", apples)
    with shelf.edit():
        shelf.put("apples", "An apple that has changed.")
    for full in (False, True):
        run = bench.sync(full=full)
        assert run.skipped == 1 and bench.titles() == {"pears": "done"}
    assert bench.sources.show("shelf").deleted_here == 1
    bench.sources.update("shelf", options={}, forget_deleted=True)
    assert bench.sync().indexed == 1 and bench.sources.show("shelf").deleted_here == 0


def test_a_page_that_no_parser_reads_fails_once_and_is_not_fetched_again(bench: Bench, tmp_path: Path) -> None:
    shelf = shelf_of(bench, tmp_path, "apples")
    with shelf.edit():
        shelf.fetches["apples"] = "unsupported"
    assert bench.sync().failed == 1
    shelf.forget_calls()
    run = bench.sync()
    assert (run.failed, shelf.calls("fetch")) == (1, []) and run.failures[0].code == "unsupported"
    with shelf.edit():
        shelf.fetches = {}
    assert bench.sync(full=True).indexed == 1


def test_what_is_still_to_be_had_is_fetched_again_though_a_listing_of_changes_does_not_name_it(bench: Bench, tmp_path: Path) -> None:
    shelf = shelf_of(bench, tmp_path, "apples", "pears", "plums")
    with shelf.edit():
        shelf.delta, shelf.pending, shelf.fetches = True, ["apples"], {"pears": "unavailable"}
    assert bench.sync().failed == 1
    with shelf.edit():
        shelf.quiet, shelf.pending, shelf.fetches = True, [], {}
    shelf.forget_calls()
    run = bench.sync()
    assert (run.discovered, run.indexed, run.unchanged) == (2, 1, 1) and sorted(shelf.calls("fetch")) == ["fetch apples", "fetch pears"]
    shelf.forget_calls()
    assert bench.sync().discovered == 0 and shelf.calls("fetch") == [] and bench.audit() == 3


def test_a_page_whose_picture_is_still_missing_is_fetched_again_next_time(bench: Bench, tmp_path: Path) -> None:
    shelf = shelf_of(bench, tmp_path, "apples")
    with shelf.edit():
        shelf.pending = ["apples"]
    assert bench.sync().indexed == 1
    (view,) = bench.platform.documents("docs").data
    assert view.metadata["assets"] == ["image plan.png pending"]
    bench.sync()
    with shelf.edit():
        shelf.pending = []
    shelf.forget_calls()
    bench.sync()
    assert shelf.calls("fetch") == ["fetch apples"]
    shelf.forget_calls()
    bench.sync()
    assert shelf.calls("fetch") == []
