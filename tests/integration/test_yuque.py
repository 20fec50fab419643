"""Yuque through a whole system: the vendor's every trick, and what people find afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count

import pytest

from pipeline.contracts import Question
from tests.passing import pass_time
from tests.simulators.served import Answer, Clock, Fault
from tests.simulators.yuque import Yuque
from tests.simulators.yuque_library import record
from tests.system import System, until
from workers.views import DocumentView, RunView

DAY_S = 86_400.0
NUMBERS = count(1)


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with System(tmp_path_factory.mktemp("yuque") / "home", max_attempts=1) as running:
        yield running


class Place:
    """A Yuque with its source and its collection, called alike. Its token is its own, so that its limits are."""

    def __init__(self, system: System, *, team: bool = False) -> None:
        self.system, self.name = system, f"place-{next(NUMBERS)}"
        # What is written before the first sync was written days ago, as most is.
        self.yuque = Yuque(Clock(time.time() - 3 * DAY_S), team=team)
        self.yuque.token = f"token-of-{self.name}"
        self.sources = system.platform.sources

    def create(self, **options: str) -> None:
        self.yuque.clock.advance(3 * DAY_S)
        given = {"base_url": self.yuque.url, "token": self.yuque.token, "requests_per_hour": "3600000", **options}
        self.sources.create(self.name, "yuque", self.name, options=given)

    def begin(self, *, full: bool = False) -> RunView:
        self.yuque.clock.advance(2)
        self.yuque.calls.clear()
        return self.sources.sync(self.name, full=full)

    def sync(self, *, full: bool = False) -> RunView:
        return self.system.finish(self.begin(full=full))

    def pages(self, number: int, book: int = 1) -> None:
        self.yuque.book(book, "Handbook")
        for index in range(1, number + 1):
            self.yuque.write(book, index, f"Page {index}", f"# Page {index}\n\nThe keyword of this page is kw{index}.")

    def held(self) -> int:
        """Documents that are in the store. Fails the test when ledger and store disagree."""
        return self.system.audit(self.name).documents

    def views(self) -> dict[str, DocumentView]:
        return {view.title: view for view in self.system.platform.documents(self.name, limit=1000).data}

    def text(self, title: str) -> str:
        return self.system.platform.document_text(self.name, self.views()[title].document_id)

    def finds(self, text: str) -> str:
        """Title of the best hit."""
        hits = self.system.platform.search(Question(text, collections=(self.name,), k=3)).hits
        return hits[0].title if hits else ""

    def waits(self) -> bool:
        """Whether nobody lists and no document is under way: everything waits for a moment that is yet to come."""
        moving = (
            "SELECT 1 FROM documents d JOIN sources s ON s.id = d.source_id WHERE s.name = ?"
            " AND (d.status IN ('ready', 'queued') OR d.status = 'retry' AND d.next_at <= ?)"
        )
        listing = (
            "SELECT 1 FROM sources s JOIN runs r ON r.source_id = s.id AND r.scan = 'open'"
            " WHERE s.name = ? AND (s.claimed_by <> '' OR coalesce(s.claimed_until, 0) <= ?)"
        )
        return not any(self.system.rows(query, self.name, time.time()) for query in (moving, listing))

    def over(self, run: RunView, step_s: float) -> tuple[RunView, int]:
        """A run once it is finished, and how often time had to pass for it: `step_s` seconds whenever everything waits."""
        for passed in range(20):
            until(lambda: self.waits() or self.system.platform.run(run.run_id).finished, 30.0, "it waits, or is finished")
            found = self.system.platform.run(run.run_id)
            if found.finished:
                return found, passed
            pass_time(self.system, step_s, self.yuque.clock)
        raise AssertionError(f"still not finished: {found.stages}")


@pytest.fixture
def place(system: System) -> Iterator[Place]:
    made = Place(system)
    with made.yuque:
        yield made


@pytest.fixture
def other() -> Iterator[Yuque]:
    with Yuque(login="stranger") as simulator:
        yield simulator


def test_three_pages_are_followed_and_what_is_no_longer_published_goes(place: Place) -> None:
    place.pages(250)
    place.yuque.books[1].docs[7].status = "0"
    place.yuque.books[1].docs[8].status = 0
    place.yuque.books[1].docs[9].status = "1"
    place.create()
    assert place.sync().indexed == 248 and place.held() == 248
    place.yuque.books[1].docs[9].status = "0"
    place.yuque.books[1].docs[9].changed = place.yuque.clock.now()
    run = place.sync()
    assert (run.deleted, run.failed, place.held()) == (1, 0, 247)
    assert place.yuque.asked(r"/docs/\d+$") == []


def test_a_document_deleted_between_two_pages_takes_no_other_with_it(place: Place) -> None:
    place.pages(105)
    place.create()
    # user, teams, books, contents, then the first page of documents: all that follow move up by one
    place.yuque.after[5] = lambda: place.yuque.delete(1, 3)
    place.sync()
    assert place.yuque.books[1].docs[3].deleted
    place.sync()
    assert place.held() == 104 and "Page 3" not in place.views()


def test_a_429_postpones_and_costs_no_attempt(place: Place) -> None:
    place.pages(5)
    place.create()
    place.yuque.faults.append(Fault(r"/docs/2$", Answer.json({"status": 429}, 429, {"retry-after": "1"}), times=2))
    place.yuque.faults.append(Fault(r"/docs/3$", Answer.json({"status": 429}, 429)))
    done, passed = place.over(place.begin(), 120.0)
    assert (done.indexed, done.failed, passed) == (5, 0, 1)
    assert place.system.rows("SELECT max(attempts) FROM documents d JOIN sources s ON s.id = d.source_id WHERE s.name = ?", place.name) == [(0,)]


def test_a_small_quota_is_enough_after_days_and_the_listing_is_not_repeated(place: Place) -> None:
    place.pages(60)
    place.create(requests_per_day="25")
    place.yuque.quota_day = 25
    run, nights = place.over(place.begin(), DAY_S)
    assert (run.indexed, run.failed, nights, place.held()) == (60, 0, 2, 60)
    assert len(place.yuque.asked(r"/repos/1/docs$")) == 1
    assert not [call for call in place.yuque.calls if call.status == 429]


def test_edits_deletions_and_what_comes_back_are_followed_by_their_times(place: Place) -> None:
    place.pages(20)
    place.create()
    place.sync()
    place.yuque.write(1, 5, "Page 5", "# Page 5\n\nEdited: the sluice is green.")
    place.yuque.delete(1, 6)
    run = place.sync()
    assert (run.indexed, run.deleted, place.held()) == (1, 1, 19)
    assert place.finds("green sluice") == "Page 5"
    assert len(place.yuque.asked(r"/docs/\d+$")) == 1
    place.yuque.books[1].docs[6].deleted = 0.0
    place.yuque.books[1].docs[6].changed = place.yuque.clock.now()
    assert place.sync().indexed == 1 and place.held() == 20
    assert place.finds("kw6") == "Page 6"


def test_a_document_in_another_book_under_another_slug_is_the_same_document(place: Place) -> None:
    place.pages(3)
    place.yuque.book(2, "Archive")
    place.create()
    place.sync()
    before = place.views()["Page 2"]
    pass_time(place.system, 2 * DAY_S, place.yuque.clock)
    moved = place.yuque.books[2].docs[2] = place.yuque.books[1].docs.pop(2)
    moved.slug = "renamed"
    run = place.sync()
    after = place.views()["Page 2"]
    assert after.document_id == before.document_id and after.url.endswith("/book-2/renamed") and after.metadata["book"] == "Archive"
    assert place.yuque.asked(r"/docs/\d+$") == [] and (run.deleted, place.held()) == (0, 3)


def test_sheets_data_tables_and_boards_are_found_by_what_stands_in_them(place: Place) -> None:
    place.yuque.book(1, "Book")
    sheet = {"version": "1", "data": [{"name": "Levels", "rowCount": 2, "colCount": 2, "table": [["station", "level"], ["Stonebridge", "7.84"]]}]}
    place.yuque.write(1, 1, "Sheet", kind="Sheet", detail={"format": "lakesheet", "body_sheet": sheet})
    rows = [record([index, f"gauge-{index}"]) for index in range(450)]
    place.yuque.write(
        1, 2, "Register", kind="Table", detail={"format": "lake", "body_table": {"columns": [{"name": "No"}, {"name": "What"}], "records": rows}}
    )
    place.yuque.write(1, 3, "Network", kind="Board", detail={"format": "lakeboard", "body": ""})
    place.create()
    run = place.sync()
    assert (run.indexed, run.failed) == (3, 0)
    assert "Stonebridge | 7.84" in place.text("Sheet")
    assert "449 | gauge-449" in place.text("Register") and place.finds("gauge-449") == "Register"
    assert place.text("Network") == "Network"


def test_what_yuque_does_to_markdown_is_undone(place: Place) -> None:
    place.yuque.book(1, "Book")
    written = '<a name="x1"></a>\n## Gates\n\nopen<br />slowly\n\n![](https://i.example/m.svg#card=math&code=Q%3DvA)\n\n```\n<br />\n```\n'
    place.yuque.write(1, 1, "Quirks", written)
    page = "<table><tr><th>Gate</th><th>Rule</th></tr><tr><td>North</td><td><ul><li>slow</li><li>signed</li></ul></td></tr></table>"
    place.yuque.write(1, 2, "Cells", detail={"format": "lake", "body": "| Gate | Rule |\n|---|---|\n| North | slow<br />signed |", "body_html": page})
    place.create()
    assert place.sync().indexed == 2
    assert place.text("Quirks").strip() == "## Gates\n\nopen\nslowly\n\n$Q=vA$\n\n```\n<br />\n```"
    assert "North | slow" in place.text("Cells") and "<br" not in place.text("Cells")


def test_pictures_are_named_and_the_token_goes_to_nobody_else(place: Place, other: Yuque) -> None:
    place.yuque.book(1, "Book")
    place.yuque.write(1, 1, "Pictures", f"Look: ![gauge]({other.url}/x.png) and [plan.pdf]({other.url}/attachments/plan.pdf)")
    place.yuque.write(1, 2, "Elsewhere", "Text.")
    place.create()
    place.yuque.faults.append(Fault(r"/docs/2$", Answer(302, b"", {"location": f"{other.url}/api/v2/repos/docs/2"})))
    run = place.sync()
    assert (run.indexed, run.failed) == (1, 1) and other.calls == []
    assert place.views()["Pictures"].metadata["assets"] == ["image gauge external", "file plan.pdf external"]


def test_a_user_without_teams_and_a_token_of_a_team_both_give_their_books(system: System, place: Place) -> None:
    place.pages(2)
    place.create()
    assert place.sync().indexed == 2 and [call.status for call in place.yuque.asked("/groups$")] == [404]
    crew = Place(system, team=True)
    with crew.yuque:
        crew.pages(2)
        crew.create()
        assert crew.sync().indexed == 2 and crew.yuque.asked("/groups/shui/repos$")


def test_the_table_of_contents_gives_places_and_nothing_is_taken_in_for_standing_there(place: Place) -> None:
    place.pages(2)
    place.yuque.books[1].contents = [
        {"type": "TITLE", "title": "Part", "level": 0},
        {"type": "DOC", "title": "Page 2", "doc_id": 2, "level": 1},
        {"type": "DOC", "title": "Secret", "doc_id": 99, "level": 1},
    ]
    place.create()
    assert place.sync().discovered == 2
    views = place.views()
    assert views["Page 2"].metadata["path"] == "Handbook/Part/Page 2" and views["Page 2"].metadata["order"] == 1
    assert views["Page 1"].metadata["path"] == "Handbook/Page 1" and "order" not in views["Page 1"].metadata


def test_what_could_not_be_downloaded_is_tried_again_by_the_next_sync_though_nothing_changed(place: Place) -> None:
    place.pages(4)
    place.create()
    broken = Fault(r"/docs/2$", Answer(200, b""), times=10**6)
    place.yuque.faults.append(broken)
    run, _ = place.over(place.begin(), 600.0)
    assert (run.indexed, run.failed) == (3, 1)
    broken.times = 0
    assert place.sync().indexed == 1 and place.held() == 4


def test_an_answer_without_content_is_asked_for_again(place: Place) -> None:
    place.pages(3)
    place.create()
    place.yuque.faults += [Fault(r"/docs/2$", Answer(200, b"")), Fault(r"/repos/1/docs$", Answer(200, b'{"data": nul'))]
    run = place.sync()
    assert (run.indexed, run.failed, run.warnings) == (3, 0, ())


def test_a_closed_book_keeps_what_it_had_and_a_refused_token_stops_everything_at_once(place: Place) -> None:
    place.pages(3)
    place.yuque.book(2, "Open")
    place.yuque.write(2, 20, "Here", "Something is here.")
    place.create()
    place.sync()
    place.yuque.books[1].forbidden = True
    for _ in range(2):
        run = place.sync(full=True)
        assert run.deleted == 0 and "forbidden" in run.warnings[0]
    place.yuque.books[1].forbidden = False
    good, place.yuque.token = place.yuque.token, "another"
    place.begin()
    until(lambda: place.sources.show(place.name).status == "stopped", 30.0, "the source is stopped")
    assert len(place.yuque.calls) <= 2 and place.held() == 4
    place.yuque.token = good
    place.sources.update(place.name, options={"token": good})
    until(lambda: place.sources.show(place.name).status == "idle", 30.0, "it goes on with a good token")
    assert place.held() == 4 and place.finds("kw2") == "Page 2"
