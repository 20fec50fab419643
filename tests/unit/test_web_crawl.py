"""Crawls over a simulated site and clock: what is asked, what is listed, and what never happens."""

from __future__ import annotations

import gzip
import random
from collections.abc import Iterator
from itertools import pairwise

import pytest

from pipeline.contracts.sources import Mark, Presence
from pipeline.errors import Forbidden, Gone, RateLimited, TooLarge, Unchanged, Unsupported
from pipeline.load.web import sitemap
from tests.crawled import Crawled
from tests.simulators.served import Answer, Call, Fault
from tests.simulators.web import Leaf, Web, page


@pytest.fixture(scope="module")
def serving() -> Iterator[Web]:
    with Web() as simulator:
        yield simulator


@pytest.fixture
def web(serving: Web) -> Web:
    """The one server, empty."""
    with serving.lock:
        for held in (serving.sites, serving.names, serving.calls, serving.faults, serving.after):
            held.clear()
        serving.__dict__.pop("resolver", None)
    return serving


def linked(web: Web, *paths: str, host: str = "127.0.0.1") -> None:
    """A start page and pages that it links to."""
    site = web.site(host)
    site.write("/", "Start", f"The start of a small site, {host}.", links=paths)
    for path in paths:
        site.write(path, f"Page {path}", f"What stands on the page {path} stands nowhere else.")


# ---------------------------------------------------------------- 1: robots


ROBOTS = """\ufeffUser-agent: *
Disallow: /private/
Disallow: /*.print$
Allow: /private/open
Crawl-delay: 1.5
"""


def test_1_robots_wildcards_and_a_byte_order_mark_and_the_crawl_delay_are_kept(web: Web) -> None:
    linked(web, "/a", "/private/b", "/private/open", "/c.print", "/c.printer")
    web.site().robots = ROBOTS
    crawled = Crawled(web)
    scanned = crawled.scan()
    assert scanned.paths == {"/", "/a", "/private/open", "/c.printer"}
    assert "closed to us by robots.txt: 2" in scanned.notes
    pages = [call.at for call in web.calls if not call.path.endswith("robots.txt")]
    assert all(later - earlier >= 1.5 / 0.95 - 0.2 for earlier, later in pairwise(pages))


@pytest.mark.parametrize("status", [500, 503])
def test_1_a_host_whose_rules_are_not_known_is_not_asked_and_nothing_is_taken_for_gone(web: Web, status: int) -> None:
    linked(web, "/a")
    crawled = Crawled(web)
    crawled.scan()
    web.calls.clear()
    web.faults.append(Fault("robots.txt", Answer(status), times=9))
    scanned = crawled.scan()
    assert not web.paths() and not scanned.done and not scanned.gone
    assert scanned.failed[0].code == "robots_unavailable"


def test_1_a_huge_robots_txt_is_read_to_its_bound_and_one_that_is_missing_allows_everything(web: Web) -> None:
    linked(web, "/a", "/closed/b")
    web.site().robots = "User-agent: *\nDisallow: /closed/\n" + "# padding\n" * 200_000 + "Disallow: /a\n"
    assert Crawled(web).scan().paths == {"/", "/a"}
    web.site().robots = None
    assert Crawled(web).scan().paths == {"/", "/a", "/closed/b"}


# ---------------------------------------------------------------- 2: redirects and addresses of the inside


def test_2_redirects_in_a_circle_end_and_ones_that_lead_out_are_not_followed(web: Web) -> None:
    linked(web, "/a", "/loop", "/self", "/out", "/mail", "/metadata")
    site = web.site()
    site.redirect("/loop", "/pool")
    site.redirect("/pool", "/loop")
    site.redirect("/self", "/self")
    site.redirect("/out", "http://elsewhere.test/")
    site.redirect("/mail", "mailto:duty@baisha.test")
    site.redirect("/metadata", "http://169.254.169.254/latest/meta-data/")
    scanned = Crawled(web).scan()
    assert scanned.paths == {"/", "/a", "/self"}, "one that redirects to itself is listed, so that its download says so"
    assert len(web.calls) < 20 and scanned.done


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.1", "2130706433", "0x7f000001", "0", "localhost", "[::1]", "[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "169.254.169.254"],
)
def test_2_no_spelling_of_an_address_of_the_inside_is_asked(web: Web, host: str) -> None:
    from pipeline.load.web.guard import resolve

    linked(web, "/a")
    crawled = Crawled(web, web.address(host), private=())
    if host not in web.sites:
        crawled.web.resolver = resolve  # type: ignore[method-assign]
    elif host == "127.0.0.1":
        web.resolver = resolve  # type: ignore[method-assign]
    scanned = crawled.scan()
    assert scanned.failed[0].code == "private_address" and "DUJIANG_PRIVATE_HOSTS" in scanned.failed[0].hint
    assert not web.calls and not scanned.listed


def test_2_a_name_that_resolves_to_the_inside_the_second_time_gains_nothing(web: Web) -> None:
    linked(web, "/a", host="rebound.test")
    web.names["rebound.test"] = [["203.0.114.9"], ["127.0.0.1"]]
    guard_only = Crawled(web, web.address("rebound.test"), private=())
    from pipeline.load.web.guard import Guard

    guard = Guard((), resolve=web.resolver)
    assert guard.addresses("rebound.test", 80) == ["203.0.114.9"], "what is judged is what is connected to"
    scanned = guard_only.scan()
    assert scanned.failed[0].code == "private_address" and not web.calls


def test_2_a_private_host_is_asked_where_it_is_allowed_by_name(web: Web) -> None:
    linked(web, "/a", host="wiki.inside.test")
    assert Crawled(web, web.address("wiki.inside.test"), private=()).scan().failed
    assert Crawled(web, web.address("wiki.inside.test"), private=("*.inside.test",)).scan().paths == {"/", "/a"}


def test_2_credentials_go_to_the_entry_and_to_no_other_host(web: Web) -> None:
    linked(web, "/a", host="wiki.test")
    linked(web, "/b", host="other.test")
    web.site("wiki.test").redirect("/a", web.address("other.test", "/b"))
    crawled = Crawled(
        web, web.address("wiki.test"), secrets={"authorization": "Bearer s3cret", "cookie": "id=s3cret"}, scope="other.test" + web.url[16:]
    )
    crawled.scan()
    hosts = {call.headers["host"].split(":")[0]: call.headers.get("authorization", "") for call in web.calls}
    assert hosts == {"wiki.test": "Bearer s3cret", "other.test": ""}
    assert all("cookie" not in call.headers for call in web.calls if call.headers["host"].startswith("other"))


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
    from pipeline.load.web.addresses import canonical, site_of

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


# ---------------------------------------------------------------- 11: sitemaps


def test_11_an_index_of_packed_sitemaps_gives_its_addresses_and_only_those_of_the_site(web: Web) -> None:
    site, rows = web.site(), 3000
    site.robots = f"Sitemap: {web.address(path='/index.xml')}\n"
    site.write("/docs/", "Docs", "The start.")
    for number in range(4):
        site.write(f"/docs/p{number}", f"P{number}", f"Only the sitemap knows page number {number}.")
    many = [web.address(path=f"/elsewhere/{number}") for number in range(rows)] + ["http://other.test/docs/x", web.address(path="/docs-old/y")]
    site.sitemap("/index.xml", [web.address(path="/one.xml.gz"), web.address(path="/two.xml"), web.address(path="/index.xml")], index=True)
    site.sitemap("/one.xml.gz", [*many, *(web.address(path=f"/docs/p{number}") for number in range(2))], packed=True, lastmod="2199-01-01")
    site.sitemap("/two.xml", [f"/docs/p{number}" for number in range(2, 4)])
    crawled = Crawled(web, web.address(path="/docs/"))
    assert crawled.scan().paths == {"/docs/", "/docs/p0", "/docs/p1", "/docs/p2", "/docs/p3"}
    assert len(web.paths()) < 10
    site.leaves["/docs/p0"] = Leaf(page("P0", "A change that no date in the sitemap tells."))
    assert crawled.scan().listed["docs/p0"].raw is not None


def test_11_a_sitemap_is_read_to_fifty_thousand_addresses_in_whatever_form_it_comes() -> None:
    rows = "".join(f"<sm:url>\n<sm:loc> <![CDATA[http://wiki.test/n?a=1&b={number}]]> </sm:loc></sm:url>" for number in range(60_000))
    found, index = sitemap.read(gzip.compress(f"<?xml version='1.0'?><sm:urlset>{rows}</sm:urlset>".encode()))
    assert len(found) == 50_000 and found[7] == "http://wiki.test/n?a=1&b=7" and not index
    assert sitemap.read(b"\xef\xbb\xbfhttp://wiki.test/a\nno address\nhttps://wiki.test/b\n") == (
        ["http://wiki.test/a", "https://wiki.test/b"],
        False,
    )
    assert sitemap.read(b"\x1f\x8b broken") == ([], False)


def test_11_a_large_sitemap_survives_a_kill_without_being_read_again(web: Web) -> None:
    site = web.site()
    site.write("/", "Start", "The start.")
    site.sitemap("/sitemap.xml", [web.address(path=f"/n{number}") for number in range(4000)])
    site.otherwise = lambda call: Answer(200 if call.path[1] == "n" else 404, page(call.path, f"Text of {call.path}."), {"content-type": "text/html"})
    crawled = Crawled(web, max_pages="60")
    scan = crawled.connector().scan({})
    marks = 0
    for event in scan:
        marks += isinstance(event, Mark)
        if marks == 2:
            mark = event
            break
    next(scan)
    scan.close()
    web.calls.clear()
    scanned = crawled.scan(mark.checkpoint)
    assert not web.asked("sitemap") and len(scanned.paths) <= 60 - 20 and scanned.failed[0].code == "max_pages"
    assert len(crawled.around.notes) > 4000


# ---------------------------------------------------------------- 12: hosts that are busy


def test_12_a_host_that_asks_for_patience_does_not_slow_another(web: Web) -> None:
    from email.utils import formatdate

    for host in ("slow.test", "fast.test"):
        linked(web, *(f"/{host}/{number}" for number in range(10)), host=host)
    later = formatdate(web.clock.now() + 90, usegmt=True)
    now = formatdate(web.clock.now(), usegmt=True)
    web.faults.append(Fault("^/slow.test/", Answer(503, headers={"retry-after": later, "date": now})))
    crawled = Crawled(web, f"{web.address('slow.test')} {web.address('fast.test')}", sitemap="none")
    began = web.clock.now()
    scanned = crawled.scan()
    assert [event.count for event in scanned.done] == [11, 11]
    fast = [call.at for call in web.asked("^/fast.test/")]
    slow = [call.at for call in web.asked("^/slow.test/")]
    assert max(fast) - began < 90 and all(at - began >= 89 for at in slow[1:])


def test_12_a_pause_of_hours_hands_the_crawl_back_with_all_that_was_found(web: Web) -> None:
    linked(web, *(f"/p{number}" for number in range(5)))
    crawled = Crawled(web)
    web.faults.append(Fault("^/p2", Answer(429, headers={"retry-after": "7200"})))
    events, mark = [], {}
    with pytest.raises(RateLimited) as raised:
        for event in crawled.connector().scan({}):
            events.append(event)
            mark = event.checkpoint if isinstance(event, Mark) else mark
    assert raised.value.after is not None and raised.value.after > 7000
    web.clock.advance(7300)
    asked = len(web.asked("^/p1$"))
    scanned = crawled.scan(mark)
    assert scanned.done[0].count == 6 and len(web.asked("^/p1$")) == asked


def test_12_a_host_that_does_not_answer_fails_its_own_scope_only(web: Web) -> None:
    for host in ("down.test", "up.test"):
        linked(web, *(f"/{host}/{number}" for number in range(12)), host=host)
    web.faults.append(Fault("^/down.test/", Answer(502), times=99))
    crawled = Crawled(web, f"{web.address('down.test')} {web.address('up.test')}", sitemap="none")
    scanned = crawled.scan()
    assert [event.scope for event in scanned.done] == [web.address("up.test")]
    assert [event.scope for event in scanned.failed] == [web.address("down.test")]
    assert len(web.asked("^/down.test/")) <= 8


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


# ---------------------------------------------------------------- taken up again, and other scopes


def test_a_crawl_that_is_killed_at_any_point_goes_on_and_asks_little_twice(web: Web) -> None:
    linked(web, *(f"/p{number}" for number in range(70)))
    crawled = Crawled(web)
    found: set[str] = set()
    mark: dict[str, object] = {}
    for stop in (5, 33, 50, 71):
        scan = crawled.connector().scan(mark)
        for number, event in enumerate(scan):
            if isinstance(event, Mark):
                mark = dict(event.checkpoint)
            elif getattr(event, "item", None) is not None:
                found.add(event.item.key)
            if number == stop:
                break
        scan.close()
    crawled.scan(mark)
    pages = web.asked(r"^/p\d+$")
    assert len({call.path for call in pages}) == 70 and len(pages) <= 70 + 4 * 21


def test_other_options_forget_what_was_learnt_and_leave_what_lies_outside(web: Web) -> None:
    linked(web, "/docs/a", "/docs/b", "/news/c")
    crawled = Crawled(web)
    crawled.scan()
    crawled.change(exclude="/news")
    web.calls.clear()
    scanned = crawled.scan()
    assert scanned.paths == {"/", "/docs/a", "/docs/b"} and not web.asked("news")
    assert all(event.raw is not None for event in scanned.listed.values()), "nothing is taken for unchanged under other options"


def test_validate_says_what_is_wrong_with_an_entry(web: Web) -> None:
    linked(web, "/a")
    assert all(check.ok for check in Crawled(web).connector().validate())
    web.site().redirect("/moved", "http://other.test/")
    (check,) = Crawled(web, web.address(path="/moved")).connector().validate()
    assert not check.ok and "http://other.test/" in check.detail and "--entry-url" in check.hint
    (check,) = Crawled(web, web.address("nowhere.test")).connector().validate()
    assert not check.ok and "nowhere.test" in check.detail


def test_a_download_with_a_validator_costs_no_body(web: Web) -> None:
    linked(web, "/a")
    crawled = Crawled(web)
    item = crawled.scan().listed["a"].item
    raw = crawled.connector().fetch(item)
    assert raw.crawled is not None
    from dataclasses import replace

    with pytest.raises(Unchanged):
        crawled.connector().fetch(replace(item, metadata=raw.crawled.metadata))
    web.site().leaves["/a"] = Leaf(b"", status=403, etag="")
    with pytest.raises(Forbidden):
        crawled.connector().fetch(item)
