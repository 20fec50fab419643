from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from pipeline.contracts import RawDocument, SourceItem
from pipeline.contracts.sources import Evidence, Json, Listed, Mark, Presence, ScanEvent, ScopeDone, ScopeFailed, SourceSpec, Tombstone
from pipeline.errors import Forbidden, Gone, Malformed, QuotaExhausted, RateLimited, Unauthorised, Unavailable
from pipeline.load import connectors
from pipeline.load.yuque.connector import Yuque as Connector
from pipeline.parse import parse
from pipeline.parse.yuque import plain
from tests.simulators.served import Answer, Around, Fault
from tests.simulators.yuque import TOKEN, Yuque, library
from tests.simulators.yuque_library import record


@pytest.fixture
def yuque() -> Iterator[Yuque]:
    with Yuque() as simulator:
        yield simulator


@pytest.fixture
def around(yuque: Yuque) -> Around:
    return Around(yuque.clock)


def connector(yuque: Yuque, around: Around, **options: str) -> Connector:
    spec = SourceSpec("s", "yuque", {"base_url": yuque.url, **options}, {"token": TOKEN})
    made = connectors.create(spec, around)
    assert isinstance(made, Connector)
    return made


def scan(made: Connector, checkpoint: Json | None = None) -> list[ScanEvent]:
    return list(made.scan(checkpoint or {}))


def items(events: list[ScanEvent]) -> dict[str, SourceItem]:
    return {event.item.key: event.item for event in events if isinstance(event, Listed)}


def marks(events: list[ScanEvent]) -> list[Json]:
    return [event.checkpoint for event in events if isinstance(event, Mark)]


def gone(events: list[ScanEvent]) -> dict[str, Evidence]:
    return {event.key: event.evidence for event in events if isinstance(event, Tombstone)}


def full(yuque: Yuque, number: int = 250) -> None:
    yuque.book(1, "Big")
    for index in range(1, number + 1):
        yuque.write(1, index, f"Page {index}", f"Text of page {index}.")


def text_of(made: Connector, item: SourceItem) -> str:
    return parse(made.fetch(item)).text


# ------------------------------------------------------------ listing


def test_all_pages_of_a_book_are_listed_and_drafts_are_said_to_be_unpublished(yuque: Yuque, around: Around) -> None:
    full(yuque)
    yuque.books[1].docs[7].status = "0"
    yuque.books[1].docs[8].status = 0
    yuque.books[1].docs[9].status = "1"
    events = scan(connector(yuque, around))
    assert len(items(events)) == 248
    assert gone(events) == {"yuque:7": Evidence.UNPUBLISHED, "yuque:8": Evidence.UNPUBLISHED}
    assert [event for event in events if isinstance(event, (ScopeDone, ScopeFailed))] == [ScopeDone("shui/book-1", 250)]


def test_a_document_deleted_between_two_pages_costs_no_other_document(yuque: Yuque, around: Around) -> None:
    full(yuque)
    # user, teams, books, contents, then the first page of documents: what follows moves up by one
    yuque.after[5] = lambda: yuque.delete(1, 3)
    events = scan(connector(yuque, around))
    assert "yuque:3" in items(events)
    assert set(items(events)) >= {f"yuque:{n}" for n in range(1, 251) if n != 3}
    assert not any(isinstance(event, ScopeFailed) for event in events)


def test_documents_that_go_while_a_book_is_listed_cost_no_other_however_many_they_are(yuque: Yuque, around: Around) -> None:
    full(yuque)

    def emptied(*numbers: int) -> None:
        for number in numbers:
            yuque.delete(1, number)

    yuque.after[5] = lambda: emptied(*range(1, 100))
    yuque.after[7] = lambda: emptied(100, 101, 102)
    assert set(items(scan(connector(yuque, around)))) >= {f"yuque:{n}" for n in range(103, 251)}


def test_the_table_of_contents_gives_place_and_order_and_membership_comes_from_the_listing(yuque: Yuque, around: Around) -> None:
    yuque.book(1, "Handbook")
    yuque.write(1, 1, "Alpha")
    yuque.write(1, 2, "Outside")
    yuque.books[1].contents = [
        {"type": "TITLE", "title": "Part", "level": 0},
        {"type": "DOC", "title": "Alpha", "doc_id": 1, "level": 1},
        {"type": "DOC", "title": "Secret", "doc_id": 99, "level": 1},
    ]
    found = items(scan(connector(yuque, around)))
    assert set(found) == {"yuque:1", "yuque:2"}
    assert found["yuque:1"].path == "Handbook/Part/Alpha" and found["yuque:1"].metadata["order"] == 1
    assert found["yuque:2"].path == "Handbook/Outside" and "order" not in found["yuque:2"].metadata


def test_teams_of_a_user_are_listed_and_a_user_without_teams_is_no_failure(yuque: Yuque, around: Around) -> None:
    yuque.book(1, "Mine")
    yuque.write(1, 1, "Own")
    assert set(items(scan(connector(yuque, around)))) == {"yuque:1"}
    yuque.book(2, "Theirs", team="crew")
    yuque.write(2, 2, "Shared")
    assert set(items(scan(connector(yuque, around)))) == {"yuque:1", "yuque:2"}


def test_a_token_of_a_team_lists_the_teams_books(around: Around) -> None:
    with Yuque(around.clock, login="crew", team=True) as team:
        team.book(5, "Team book")
        team.write(5, 50, "Plan")
        assert set(items(scan(connector(team, around)))) == {"yuque:50"}


def test_a_slug_and_a_book_may_change_and_the_document_stays_the_same(yuque: Yuque, around: Around) -> None:
    yuque.book(1, "One")
    yuque.book(2, "Two")
    yuque.write(1, 7, "Moves", slug="old")
    before = items(scan(connector(yuque, around)))
    yuque.books[2].docs[7] = yuque.books[1].docs.pop(7)
    yuque.books[2].docs[7].slug = "new"
    after = items(scan(connector(yuque, around)))
    assert set(before) == set(after) == {"yuque:7"}
    assert before["yuque:7"].url.endswith("/book-1/old") and after["yuque:7"].url.endswith("/book-2/new")


# ------------------------------------------------------------ changes


def test_edits_deletions_and_restored_documents_come_in_one_listing_of_changes(yuque: Yuque, around: Around) -> None:
    full(yuque, 20)
    around.clock.advance(3600)
    first = scan(connector(yuque, around))
    around.clock.advance(3 * 3600)
    yuque.write(1, 5, "Page 5", "Edited.")
    yuque.delete(1, 6)
    yuque.calls.clear()
    second = scan(connector(yuque, around), marks(first)[-1])
    assert set(items(second)) == {"yuque:5"}
    assert gone(second) == {"yuque:6": Evidence.TRASHED}
    assert [event.delta for event in second if isinstance(event, ScopeDone)] == [True]
    around.clock.advance(3600)
    yuque.books[1].docs[6].deleted = 0.0
    yuque.books[1].docs[6].changed = around.now()
    # the listings overlap, since clocks differ: what changed just before the last one comes again
    assert set(items(scan(connector(yuque, around), marks(second)[-1]))) == {"yuque:5", "yuque:6"}


def test_where_deletions_cannot_be_filtered_by_time_all_of_them_are_listed(yuque: Yuque, around: Around) -> None:
    full(yuque, 3)
    yuque.deleted_filter = False
    first = scan(connector(yuque, around))
    around.clock.advance(7200)
    yuque.delete(1, 2)
    assert gone(scan(connector(yuque, around), marks(first)[-1])) == {"yuque:2": Evidence.TRASHED}


def test_a_day_later_everything_is_listed_again(yuque: Yuque, around: Around) -> None:
    full(yuque, 5)
    first = scan(connector(yuque, around))
    around.clock.advance(25 * 3600)
    second = scan(connector(yuque, around), marks(first)[-1])
    assert len(items(second)) == 5 and [event.delta for event in second if isinstance(event, ScopeDone)] == [False]


# ------------------------------------------------------------ limits


def test_a_429_with_a_short_time_is_sat_out_and_one_with_a_long_time_ends_the_scan_at_its_mark(yuque: Yuque, around: Around) -> None:
    full(yuque)
    yuque.faults.append(Fault(r"/docs$", Answer.json({"status": 429}, 429, {"retry-after": "3"}), skip=1))
    assert len(items(scan(connector(yuque, around)))) == 250
    yuque.faults.append(Fault(r"/docs$", Answer.json({"status": 429}, 429, {"retry-after": "120"}), skip=2))
    events: list[ScanEvent] = []
    with pytest.raises(RateLimited) as caught:
        for event in connector(yuque, around).scan({}):
            events.append(event)
    assert caught.value.after == 120
    yuque.calls.clear()
    around.clock.advance(121)
    rest = scan(connector(yuque, around), marks(events)[-1])
    assert {*items(events), *items(rest)} == {f"yuque:{n}" for n in range(1, 251)}
    assert [call.query["offset"] for call in yuque.asked("/docs$")] == ["99", "198"]


def test_a_quota_of_fifty_calls_a_day_converges_over_days_and_lists_no_book_twice(yuque: Yuque, around: Around) -> None:
    full(yuque, 120)
    yuque.quota_day = 50
    read: set[str] = set()
    listed: dict[str, SourceItem] = {}
    checkpoint: Json = {}
    days = 0
    finished = False
    while len(read) < 120:
        days += 1
        made = connector(yuque, around, requests_per_day="50")
        try:
            if not finished:
                for event in made.scan(checkpoint):
                    if isinstance(event, Mark):
                        checkpoint = event.checkpoint
                    elif isinstance(event, Listed):
                        listed[event.item.key] = event.item
                finished = True
            for key in sorted(set(listed) - read):
                made.fetch(listed[key])
                read.add(key)
        except QuotaExhausted as error:
            assert error.until is not None
            around.clock.advance(max(1.0, error.until.timestamp() - around.now()))
        assert days < 8
    assert not any(call.status == 429 for call in yuque.calls)
    assert len(yuque.asked("/repos/1/docs$")) == 2


def test_a_429_that_names_no_time_is_taken_for_the_days_quota_when_it_goes_on(yuque: Yuque, around: Around) -> None:
    full(yuque, 3)
    yuque.quota_day = 1
    made = connector(yuque, around)
    item = SourceItem("yuque:1")
    made.fetch(item)
    for _ in range(2):
        with pytest.raises(RateLimited):
            made.fetch(item)
        around.clock.advance(61)
    with pytest.raises(QuotaExhausted) as caught:
        made.fetch(item)
    assert caught.value.until is not None and 0 < caught.value.until.timestamp() - around.now() <= 86_431


# ------------------------------------------------------------ refusals and damage


def test_a_token_refused_in_mid_scan_stops_the_source_and_a_refused_book_fails_alone(yuque: Yuque, around: Around) -> None:
    full(yuque, 3)
    yuque.book(2, "Closed").forbidden = True
    yuque.book(3, "Open")
    yuque.write(3, 30, "Here")
    events = scan(connector(yuque, around))
    assert set(items(events)) == {"yuque:1", "yuque:2", "yuque:3", "yuque:30"}
    failed = [event for event in events if isinstance(event, ScopeFailed)]
    assert [(event.scope, event.code) for event in failed] == [("shui/book-2", "forbidden")]
    yuque.token = "another"
    with pytest.raises(Unauthorised) as caught:
        scan(connector(yuque, around))
    assert TOKEN not in str(caught.value) and "--token" in caught.value.hint


@pytest.mark.parametrize("body", [b"", b"<html>busy</html>", b"[]", b'{"data": nul'])
def test_a_200_without_an_answer_is_asked_again(yuque: Yuque, around: Around, body: bytes) -> None:
    full(yuque, 3)
    yuque.faults.append(Fault(r"/docs/2$", Answer(200, body)))
    assert text_of(connector(yuque, around), SourceItem("yuque:2")) == "Text of page 2."
    yuque.faults.append(Fault(r"/docs/2$", Answer(200, body), times=99))
    with pytest.raises(Unavailable):
        connector(yuque, around).fetch(SourceItem("yuque:2"))


def test_what_was_deleted_or_closed_since_the_listing_is_said_so(yuque: Yuque, around: Around) -> None:
    full(yuque, 4)
    made = connector(yuque, around)
    yuque.delete(1, 1)
    yuque.books[1].docs[2].forbidden = True
    yuque.books[1].docs[3].status = 0
    with pytest.raises(Gone):
        made.fetch(SourceItem("yuque:1"))
    with pytest.raises(Forbidden):
        made.fetch(SourceItem("yuque:2"))
    with pytest.raises(Gone):
        made.fetch(SourceItem("yuque:3"))
    expected = {"yuque:1": Presence.GONE, "yuque:2": Presence.FORBIDDEN, "yuque:3": Presence.GONE, "yuque:4": Presence.ALIVE}
    assert made.probe(list(expected)) == expected


def test_the_same_content_gives_the_same_bytes_whoever_read_it_meanwhile(yuque: Yuque, around: Around) -> None:
    full(yuque, 1)
    made = connector(yuque, around)
    assert made.fetch(SourceItem("yuque:1")).sha256 == made.fetch(SourceItem("yuque:1")).sha256
    before = made.fetch(SourceItem("yuque:1")).sha256
    yuque.write(1, 1, "Page 1", "Text of page I.")
    assert made.fetch(SourceItem("yuque:1")).sha256 != before


def test_images_and_attachments_are_named_and_never_fetched_with_the_token(yuque: Yuque, around: Around) -> None:
    yuque.book(1, "Book")
    yuque.write(1, 1, "Pictures", "![gauge](https://cdn.example/x.png?x=1#w=3) and [plan.pdf](https://www.yuque.com/attachments/plan.pdf)")
    raw = connector(yuque, around).fetch(SourceItem("yuque:1"))
    assert [(asset.name, asset.kind, asset.state) for asset in raw.assets] == [("gauge", "image", "external"), ("plan.pdf", "file", "external")]
    assert all(call.headers["host"] == yuque.url.removeprefix("http://") for call in yuque.calls)


def test_validate_says_whose_the_token_is_and_names_a_book_that_is_not_there(yuque: Yuque, around: Around) -> None:
    library(yuque)
    checks = connector(yuque, around, books="shui/handbook,shui/missing").validate()
    assert [(check.name, check.ok) for check in checks] == [("token", True), ("books", True), ("books", False)]
    assert "shui/missing" in checks[2].detail
    yuque.token = "another"
    assert [check.ok for check in connector(yuque, around).validate()] == [False]


# ------------------------------------------------------------ formats


def parsed(detail: dict[str, Any]) -> str:
    data = orjson.dumps({"id": 1, "title": "T", **detail})
    return parse(RawDocument(SourceItem("yuque:1"), data, "", "application/vnd.yuque.document+json")).text


def lakesheet(data: object) -> str:
    return orjson.dumps({"format": "lakesheet", "sheet": zlib.compress(orjson.dumps(data)).decode("latin-1")}).decode()


def test_markdown_loses_anchors_and_image_parameters_and_keeps_formulas_and_code() -> None:
    written = (
        '<a name="x1"></a>\n## Levels\n\none<br />two\n\n![](https://i.example/m.svg#card=math&code=E%3Dmc%5E2)\n\n`a <br /> b`\n\n```\n<br />\n```'
    )
    assert plain(written) == "\n## Levels\n\none\ntwo\n\n$E=mc^2$\n\n`a <br /> b`\n\n```\n<br />\n```"
    assert plain("![p](https://i.example/p.png?x=watermark#w=1)") == "![p](https://i.example/p.png)"


def test_a_table_whose_cells_hold_line_breaks_is_read_from_the_html() -> None:
    page = "<table><tr><th>Gate</th><th>Rule</th></tr><tr><td>North</td><td><ul><li>slow</li><li>signed</li></ul></td></tr></table>"
    text = parsed({"format": "lake", "body": "| Gate | Rule |\n|---|---|\n| North | slow<br />signed |", "body_html": page})
    assert "North | slow" in text and "signed" in text and "<br" not in text


def test_a_sheet_is_read_from_its_computed_values() -> None:
    sheet = {
        "version": "1",
        "data": [{"name": "S1", "rowCount": 2, "colCount": 2, "table": [["a", "b"], ["1", "2"]]}, {"name": "Empty", "table": []}],
    }
    assert parsed({"type": "Sheet", "format": "lakesheet", "body_sheet": orjson.dumps(sheet).decode()}) == "S1\n\na | b\n1 | 2"


def test_an_older_sheet_is_unpacked_with_its_object_cells() -> None:
    cells = {
        "0": {"0": {"v": "name"}, "1": {"v": "done"}, "2": {"v": "link"}, "3": {"v": "sum"}, "4": {"v": "state"}},
        "1": {
            "0": {"v": {"class": "image", "name": "gauge.png", "src": "x"}},
            "1": {"v": {"class": "checkbox", "value": True}},
            "2": {"v": {"class": "link", "text": "manual", "url": "https://x.example"}},
            "3": {"v": {"class": "formula", "formula": "=1+1", "value": 2}},
            "4": {"v": {"class": "select", "value": ["open", "late"]}},
        },
    }
    text = parsed({"type": "Sheet", "format": "lakesheet", "body": lakesheet([{"name": "S", "data": cells}])})
    assert text == "S\n\nname | done | link | sum | state\ngauge.png | ✓ | manual (https://x.example) | 2 | open, late"


def test_a_data_table_is_read_to_its_last_page(yuque: Yuque, around: Around) -> None:
    yuque.book(1, "Book")
    table = {"columns": [{"name": "No"}, {"name": "Who"}], "records": [record([index, [{"name": "Li"}, {"name": "Wu"}]]) for index in range(450)]}
    yuque.write(1, 4, "Register", kind="Table", detail={"format": "lake", "body_table": table})
    lines = text_of(connector(yuque, around), SourceItem("yuque:4")).splitlines()
    assert lines[2] == "No | Who" and lines[-1] == "449 | Li, Wu" and len(lines) == 453


def test_a_board_leaves_its_title_and_says_that_this_is_all() -> None:
    document = parse(
        RawDocument(SourceItem("yuque:1"), orjson.dumps({"id": 1, "type": "Board", "title": "Network"}), "", "application/vnd.yuque.document+json")
    )
    assert document.text == "Network" and "only the title" in document.warnings[0]


def test_every_document_of_the_small_library_has_a_text(yuque: Yuque, around: Around) -> None:
    library(yuque)
    made = connector(yuque, around)
    texts = {item.title: text_of(made, item) for item in items(scan(made)).values()}
    assert len(texts) == 8 and "石桥 | 6.20 | 7.00" in texts["警戒水位"] and "雷达水位计 | 完好 | 2026-03-01" in texts["仪器台账"]


def test_a_document_that_is_nested_without_end_is_refused_by_name(yuque: Yuque, around: Around) -> None:
    full(yuque, 1)
    deep = "[" * 400 + "]" * 400
    content = orjson.dumps({"data": {"id": 1, "type": "Doc", "format": "markdown", "body": "x", "body_sheet": orjson.Fragment(deep)}})
    yuque.faults.append(Fault(r"/docs/1$", Answer(200, content, {"content-type": "application/json"})))
    with pytest.raises(Malformed) as raised:
        connector(yuque, around).fetch(SourceItem("yuque:1"))
    assert raised.value.code == "too_deep" and "yuque:1" in raised.value.detail
