"""Pages of a simulated site: which are documents, which are the same, which have changed and which are gone."""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterator

import pytest

from pipeline.contracts.sources import Presence
from pipeline.errors import Gone, TooLarge, Unsupported
from pipeline.load.web.addresses import canonical, site_of
from tests.crawled import Crawled, emptied, linked
from tests.simulators.served import Answer, Call
from tests.simulators.web import Leaf, Web, page


@pytest.fixture(scope="module")
def serving() -> Iterator[Web]:
    with Web() as simulator:
        yield simulator


@pytest.fixture
def web(serving: Web) -> Web:
    return emptied(serving)


# ---------------------------------------------------------------- 4: changes


def test_4_an_unchanged_site_is_asked_with_conditions_and_lists_the_same_marks(web: Web) -> None:
    linked(web, "/a", "/b")
    crawled = Crawled(web)
    before = crawled.scan()
    web.calls.clear()
    after = crawled.scan()
    assert {key: event.item for key, event in after.listed.items()} == {key: event.item for key, event in before.listed.items()}
    assert all(event.raw is None for event in after.listed.values())
    assert [call.status for call in web.calls if call.headers.get("if-none-match")] == [304, 304, 304]


def test_4_an_etag_that_changes_every_time_is_no_change(web: Web) -> None:
    count = iter(range(100))

    def fickle(call: Call) -> Answer:
        return Leaf(page("Fickle", "The same text every time."), etag=f'"{next(count)}"').answer(call)

    linked(web, "/a")
    web.site().leaves["/a"] = fickle
    crawled = Crawled(web)
    marks = [crawled.scan().listed["a"].item.revision for _ in range(2)]
    assert marks[0] == marks[1] != ""


def test_14_an_edit_that_leaves_the_length_alone_is_seen(web: Web) -> None:
    linked(web, "/a")
    crawled = Crawled(web)
    before = crawled.scan().listed["a"].item.revision
    web.site().leaves["/a"] = Leaf(page("Page /a", "What stands on the page /b stands nowhere else."))
    after = crawled.scan().listed["a"]
    assert after.item.revision != before and after.raw is not None


# ---------------------------------------------------------------- 5: traps


def test_5_calendars_session_ids_and_paths_that_repeat_themselves_end(web: Web) -> None:
    def calendar(call: Call) -> Answer:
        if len(call.path.split("/")) != 5:
            return Answer(404)
        year, month = (int(part) for part in call.path.split("/")[2:4])
        after = f"/calendar/{year + month // 12}/{month % 12 + 1:02}/"
        body = page(f"{year}-{month}", f"Duties of {year}-{month}, which differ from all others.", links=[after, f"/session/{call.at};jsessionid=77"])
        return Answer(200, body, {"content-type": "text/html"})

    def deeper(call: Call) -> Answer:
        links = [f"{call.path}x/y/", f"/list?page={call.query.get('page', '0')}1", f"/same?utm_source={call.at}&sid={len(web.calls)}"]
        return Answer(200, page(call.path, f"Words of {call.path} {call.raw_query}.", links=links), {"content-type": "text/html"})

    linked(web)
    site = web.site()
    site.write("/", "Start", "Traps.", links=["/calendar/2026/01/", "/x/y/", "/list?page=1"])
    site.otherwise = lambda call: calendar(call) if call.path.startswith("/calendar") else deeper(call)
    scanned = Crawled(web, max_depth="200").scan()
    assert scanned.done and len(scanned.paths) < 500
    assert sum(path.startswith("/calendar") for path in scanned.paths) <= 60
    assert sum(path.split("?")[0] == "/same" for path in scanned.paths) == 1
    for why in ("calendars without end", "paths that repeat themselves"):
        assert why in scanned.notes


def test_5_a_page_with_ten_thousand_links_and_a_page_of_five_megabytes_are_borne(web: Web) -> None:
    site = web.site()
    site.write("/", "Start", "Two large pages.", links=["/links", "/long"])
    site.write("/links", "Links", "All of them.", links=[f"/n{number}" for number in range(10_000)])
    site.put("/long", page("Long", "A word after another. " * 230_000))
    scanned = Crawled(web, max_pages="30", max_depth="1").scan()
    assert scanned.paths == {"/", "/links", "/long"}
    assert "too many links on one page: 5000" in scanned.notes


# ---------------------------------------------------------------- 6: bodies


def test_6_a_small_answer_that_swells_is_refused_and_its_neighbours_are_read(web: Web) -> None:
    linked(web, "/a", "/bomb")
    bomb = gzip.compress(b"\0" * 60_000_000)
    web.site().put("/bomb", bomb, headers={"content-encoding": "gzip"})
    crawled = Crawled(web)
    scanned = crawled.scan()
    assert scanned.paths == {"/", "/a", "/bomb"} and scanned.listed["bomb"].raw is None
    assert scanned.listed["bomb"].item.revision.startswith("too_large")
    with pytest.raises(TooLarge):
        crawled.fetch("/bomb")


def test_6_what_a_body_is_counts_more_than_its_name_or_its_header(web: Web) -> None:
    linked(web, "/no-type", "/report.html", "/page.pdf", "/photo")
    site = web.site()
    site.put("/no-type", page("No type", "A page without a word about what it is."), "")
    site.put("/report.html", b"%PDF-1.7 not much of a report", "text/html")
    site.put("/page.pdf", page("Page", "A page that calls itself a PDF.", links=["/behind"]), "text/html")
    site.write("/behind", "Behind", "Reached over a page that calls itself a PDF.")
    site.put("/photo", b"\xff\xd8\xff\xe0", "image/jpeg")
    crawled = Crawled(web)
    scanned = crawled.scan()
    assert scanned.paths == {"/", "/no-type", "/report.html", "/page.pdf", "/behind"}
    assert scanned.listed["page.pdf"].item.title == "Page"
    assert "no document: 1" in scanned.notes
    assert crawled.fetch("/report.html").data.startswith(b"%PDF")


def test_6_files_are_looked_at_by_their_head_and_known_again_by_it(web: Web) -> None:
    linked(web, "/report.pdf")
    web.site().put("/report.pdf", b"%PDF-1.7 " + b"x" * 5000, "application/pdf")
    crawled = Crawled(web)
    first = crawled.scan().listed["report.pdf"].item
    assert first.revision and first.title == "report.pdf" and first.media_type == "application/pdf"
    assert {call.method for call in web.asked("report.pdf")} == {"HEAD"}
    assert crawled.scan().listed["report.pdf"].item == first
    raw = crawled.fetch("/report.pdf")
    assert raw.crawled is not None and raw.crawled.metadata["etag"]


# ---------------------------------------------------------------- 7: one page, many addresses


def test_7_canonical_chains_lead_to_one_document_and_foreign_ones_are_ignored(web: Web) -> None:
    site = web.site()
    site.write("/", "Start", "Where it begins.", links=["/one", "/two", "/abroad", "/homing"])
    site.write("/one", "One", "First form.", head='<link rel="canonical" href="/two">')
    site.write("/two", "Two", "Second form.", head='<link rel="canonical" href="/three">')
    site.write("/three", "Three", "Third and last form.")
    site.write("/abroad", "Abroad", "Its canonical is elsewhere.", head='<link rel="canonical" href="http://elsewhere.test/abroad">')
    site.write("/homing", "Homing", "Every page calls the start its own.", head='<link rel="canonical" href="/">')
    assert Crawled(web).scan().paths == {"/", "/three", "/abroad", "/homing"}


def test_7_a_page_whose_canonical_is_nowhere_or_goes_in_a_circle_stays_a_document(web: Web) -> None:
    site = web.site()
    site.write("/", "Start", "Where it begins.", links=["/lonely", "/left", "/right"])
    site.write("/lonely", "Lonely", "Its canonical was deleted.", head='<link rel="canonical" href="/deleted">')
    site.write("/left", "Left", "Left of two.", head='<link rel="canonical" href="/right">')
    site.write("/right", "Right", "Right of two.", head='<link rel="canonical" href="/left">')
    crawled = Crawled(web)
    scanned = crawled.scan()
    assert {"/", "/lonely"} < scanned.paths and len(scanned.paths & {"/left", "/right"}) == 1
    assert crawled.fetch("/lonely").data


def test_7_www_and_the_slash_at_the_end_make_no_second_document(web: Web) -> None:
    site = site_of(["https://www.wiki.test/docs/"], (), ())
    assert site.twin(canonical("http://wiki.test/docs/a?utm_source=mail#top")) == "https://www.wiki.test/docs/a"
    assert not site.holds("https://www.wiki.test/docs-old/a") and site.holds("https://www.wiki.test/docs")
    linked(web, "/a", "/a/", "/b", "/b/")
    web.site().redirect("/b", "/b/", 301)
    web.site().leaves["/a/"] = web.site().leaves["/a"]
    assert Crawled(web).scan().paths in ({"/", "/a", "/b/"}, {"/", "/a/", "/b/"})


def test_7_a_page_that_moves_is_one_document_before_and_after(web: Web) -> None:
    linked(web, "/old")
    crawled = Crawled(web)
    crawled.scan()
    web.site().leaves["/new"] = web.site().leaves["/old"]
    web.site().redirect("/old", "/new", 301)
    scanned = crawled.scan()
    assert scanned.paths == {"/", "/new"} and scanned.gone == {"/old"}


def test_7_a_page_behind_a_login_for_a_while_is_not_said_to_be_gone(web: Web) -> None:
    linked(web, "/a", "/login")
    crawled = Crawled(web)
    crawled.scan()
    web.site().redirect("/a", "/login", 302)
    scanned = crawled.scan()
    assert scanned.paths == {"/", "/login"} and not scanned.gone


# ---------------------------------------------------------------- 8: bounds


def test_8_a_crawl_that_reaches_its_bound_is_incomplete_and_takes_nothing_for_gone(web: Web) -> None:
    linked(web, *(f"/p{number}" for number in range(20)))
    crawled = Crawled(web, max_pages="10")
    scanned = crawled.scan()
    assert len(scanned.paths) == 10 and not scanned.done and scanned.failed[0].code == "max_pages"
    crawled.change(max_pages="100")
    assert len(crawled.scan().paths) == 21
    crawled.change(max_pages="5")
    scanned = crawled.scan()
    assert len(scanned.paths) == 5 and scanned.failed and not scanned.gone
    crawled.change(max_pages="21")
    assert crawled.scan().done[0].count == 21


# ---------------------------------------------------------------- 9: gone


def test_9_soft_404_pages_are_no_documents_and_410_is_evidence(web: Web) -> None:
    linked(web, "/a", "/broken", "/gone")
    site = web.site()
    site.soft = True
    del site.leaves["/broken"]
    crawled = Crawled(web)
    scanned = crawled.scan()
    assert scanned.paths == {"/", "/a", "/gone"} and "although the site answers 200: 1" in scanned.notes
    site.leaves["/gone"] = Leaf(b"", status=410, etag="")
    scanned = crawled.scan()
    assert scanned.gone == {"/gone"} and scanned.paths == {"/", "/a"}


def test_9_a_page_that_answers_404_is_unknown_until_it_is_missed_again(web: Web) -> None:
    linked(web, "/a")
    crawled = Crawled(web)
    key = crawled.scan().listed["a"].item.key
    del web.site().leaves["/a"]
    connector = crawled.connector()
    events = list(connector.scan({}))
    assert not any(getattr(event, "key", "") == key for event in events)
    assert connector.probe([key]) == {key: Presence.UNKNOWN}
    with pytest.raises(Gone):
        crawled.fetch("/a")


def test_9_a_page_that_no_page_links_to_any_more_is_alive_while_it_answers(web: Web) -> None:
    linked(web, "/a")
    crawled = Crawled(web)
    crawled.scan()
    web.site().write("/", "Start", "No links.")
    assert "/a" in crawled.scan().paths


def test_9_a_page_that_fails_for_a_while_stays_listed_as_it_was(web: Web) -> None:
    linked(web, "/a")
    crawled = Crawled(web)
    before = crawled.scan().listed["a"].item
    web.site().leaves["/a"] = Leaf(b"", status=500, etag="")
    scanned = crawled.scan()
    assert scanned.listed["a"].item.revision == before.revision and scanned.done


def test_9_many_pages_that_fail_do_not_fail_their_host(web: Web) -> None:
    linked(web, *(f"/p{number}" for number in range(20)))
    for number in range(15):
        web.site().leaves[f"/p{number}"] = Leaf(b"", status=500, etag="")
    scanned = Crawled(web).scan()
    assert scanned.done[0].count == 21 and all(scanned.listed[f"p{number}"].item.revision == "" for number in range(15))


def test_9_one_refused_page_is_hidden_and_a_wall_before_the_whole_site_hides_nothing(web: Web) -> None:
    paths = [f"/p{number}" for number in range(40)]
    linked(web, *paths)
    crawled = Crawled(web)
    crawled.scan()
    web.site().leaves["/p3"] = Leaf(b"", status=403, etag="")
    assert crawled.scan().lost == {"/p3"}
    for path in paths:
        web.site().leaves[path] = Leaf(b"", status=403, etag="")
    scanned = crawled.scan()
    assert not scanned.lost and scanned.failed[0].code == "refused" and not scanned.done


# ---------------------------------------------------------------- 10: doubles


def test_10_equal_pages_are_listed_once_and_nearly_equal_ones_reported(web: Web) -> None:
    words = " ".join(random.Random(4).choices("gauge river valve level water gate reading radar rain basin pump alarm".split(), k=600))
    site = web.site()
    site.write("/", "Start", "Doubles.", links=["/text", "/copy", "/print"])
    site.put("/text", page("Text", words))
    site.put("/copy", page("Text", words))
    site.put("/print", page("Text", f"{words} printed"))
    scanned = Crawled(web).scan()
    assert scanned.paths == {"/", "/text", "/print"}
    assert "another address shows the same: 1" in scanned.notes and "/copy = " in scanned.notes
    assert "nearly the same as another page: 1" in scanned.notes and "/print ~ " in scanned.notes


def test_10_when_the_one_of_two_doubles_goes_the_other_is_the_document(web: Web) -> None:
    linked(web, "/a")
    web.site().leaves["/b"] = web.site().leaves["/a"]
    web.site().write("/", "Start", "Doubles.", links=["/a", "/b"])
    crawled = Crawled(web)
    assert crawled.scan().paths == {"/", "/a"}
    del web.site().leaves["/a"]
    assert crawled.scan().paths == {"/", "/b"}


# ---------------------------------------------------------------- 13: scripts


def test_13_a_page_drawn_by_scripts_is_flagged_and_never_indexed_as_empty(web: Web) -> None:
    linked(web, "/app")
    shell = b"<!doctype html><html><head><title>App</title><script src='/main.js'></script></head><body><div id='root'></div></body></html>"
    web.site().put("/app", shell)
    crawled = Crawled(web)
    scanned = crawled.scan()
    assert scanned.listed["app"].raw is None and "drawn by scripts, so that they need a browser: 1" in scanned.notes
    with pytest.raises(Unsupported) as raised:
        crawled.fetch("/app")
    assert raised.value.code == "needs_browser"
