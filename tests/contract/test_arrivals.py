"""Bytes that come with a listing, and what a connector keeps beside its mark, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulators.served import Clock
from tests.simulators.web import Leaf, Web, page
from tests.sourced import Bench
from workers.ledger import notes, sources
from workers.ledger.engine import Database


@pytest.fixture(params=["sqlite", "postgresql"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "home", "" if request.param == "sqlite" else request.getfixturevalue("postgres_database"))
    made.runtime.settings = replace(made.runtime.settings, private_hosts="127.0.0.1")
    yield made
    made.close()


@pytest.fixture
def web() -> Iterator[Web]:
    with Web(Clock(real=True)) as simulator:
        site = simulator.site()
        site.write("/", "Start", "Both pages stand below.", links=["/a", "/b"])
        site.write("/a", "Apples", "The page called apples tells of weather stations.")
        site.write("/b", "Pears", "The page called pears tells of rain gauges.")
        yield simulator


def test_notes_are_kept_changed_dropped_and_each_source_has_its_own(db: Database) -> None:
    many = {f"{number:08x}": f"value {number}" for number in range(1200)}
    notes.write(db, "one", dict(many))
    notes.write(db, "two", {"00000001": "another"})
    notes.write(db, "one", {"00000001": None, "00000002": "changed", "new": "kept"})
    found = dict(notes.read(db, "one"))
    assert len(found) == 1200 and found["00000002"] == "changed" and found["new"] == "kept" and "00000001" not in found
    assert dict(notes.read(db, "two")) == {"00000001": "another"}


def test_a_page_is_asked_for_once_and_what_its_answer_said_is_kept_beside_it(bench: Bench, web: Web) -> None:
    bench.sources.create("site", "web", "docs", options={"entry_url": web.address(), "delay_s": "0"})
    run = bench.sync("site")
    assert (run.status, run.indexed, run.failed) == ("done", 3, 0), run.failures
    assert sorted(web.asked("^/[ab]$"), key=lambda call: call.path)[0].status == 200 and len(web.asked("^/[ab]$")) == 2
    assert bench.finds("rain gauges")[0] == "Pears"
    view = next(view for view in bench.platform.documents("docs").data if view.title == "Pears")
    assert view.url.endswith("/b") and view.metadata["etag"] and view.metadata["crawl_timestamp"]


def test_what_came_along_and_is_known_already_is_neither_kept_nor_begun_again(bench: Bench, web: Web) -> None:
    bench.sources.create("site", "web", "docs", options={"entry_url": web.address(), "delay_s": "0"})
    bench.sync("site")
    for leaf in web.site().leaves.values():
        leaf.etag = ""  # type: ignore[union-attr]
    packs = sum(1 for _ in bench.runtime.artifacts.shelf.packs())
    run = bench.sync("site")
    assert (run.unchanged, run.indexed) == (3, 0)
    assert sum(1 for _ in bench.runtime.artifacts.shelf.packs()) == packs
    web.site().leaves["/a"] = Leaf(page("Apples", "The page called apples tells of snow now."))
    assert bench.sync("site").indexed == 1 and bench.finds("snow")[0] == "Apples"
    assert bench.audit() == 3


def test_a_full_sync_asks_for_every_page_anew(bench: Bench, web: Web) -> None:
    bench.sources.create("site", "web", "docs", options={"entry_url": web.address(), "delay_s": "0"})
    bench.sync("site")
    run = bench.sync("site", full=True)
    assert (run.status, run.unchanged, run.failed) == ("done", 3, 0)


def test_what_is_known_of_pages_goes_with_their_source(bench: Bench, web: Web) -> None:
    bench.sources.create("site", "web", "docs", options={"entry_url": web.address(), "delay_s": "0"})
    bench.sync("site")
    row = sources.find(bench.runtime.db, "default", "site")
    assert len(list(notes.read(bench.runtime.db, row.id))) == 4
    bench.platform.deleting.source("site")
    assert not list(notes.read(bench.runtime.db, row.id))
