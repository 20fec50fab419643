"""Crawls over a simulated site and clock: what is asked, of whom and when, and what never is."""

from __future__ import annotations

import gzip
from collections.abc import Generator, Iterator
from dataclasses import replace
from email.utils import formatdate
from itertools import pairwise

import pytest

from pipeline.contracts.sources import Listed, Mark
from pipeline.errors import Forbidden, RateLimited, Unchanged
from pipeline.load.web import sitemap
from pipeline.load.web.guard import Guard, resolve
from tests.crawled import Crawled, emptied, linked
from tests.simulators.served import Answer, Fault
from tests.simulators.web import Leaf, Web, page


@pytest.fixture(scope="module")
def serving() -> Iterator[Web]:
    with Web() as simulator:
        yield simulator


@pytest.fixture
def web(serving: Web) -> Web:
    return emptied(serving)


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
    assert isinstance(scan, Generator)
    marks: list[Mark] = []
    while len(marks) < 2:
        event = next(scan)
        marks += [event] if isinstance(event, Mark) else []
    next(scan)
    scan.close()
    web.calls.clear()
    scanned = crawled.scan(marks[-1].checkpoint)
    assert not web.asked("sitemap") and len(scanned.paths) <= 60 - 20 and scanned.failed[0].code == "max_pages"
    assert len(crawled.around.notes) > 4000


# ---------------------------------------------------------------- 12: hosts that are busy


def test_12_a_host_that_asks_for_patience_does_not_slow_another(web: Web) -> None:
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


# ---------------------------------------------------------------- taken up again, and other scopes


def test_a_crawl_that_is_killed_at_any_point_goes_on_and_asks_little_twice(web: Web) -> None:
    linked(web, *(f"/p{number}" for number in range(70)))
    crawled = Crawled(web)
    found: set[str] = set()
    mark: dict[str, object] = {}
    for stop in (5, 33, 50, 71):
        scan = crawled.connector().scan(mark)
        assert isinstance(scan, Generator)
        for number, event in enumerate(scan):
            if isinstance(event, Mark):
                mark = dict(event.checkpoint)
            elif isinstance(event, Listed):
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
    with pytest.raises(Unchanged):
        crawled.connector().fetch(replace(item, metadata=raw.crawled.metadata))
    web.site().leaves["/a"] = Leaf(b"", status=403, etag="")
    with pytest.raises(Forbidden):
        crawled.connector().fetch(item)
