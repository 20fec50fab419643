"""What sites do to crawlers, through a whole system with real workers: rules, redirects, traps, doubles, sitemaps, busy hosts.

The number in a test's name is that of the scenario; those of charsets, conditions, bodies, bounds, absence and scripts stand in `test_web`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.crawled import linked
from tests.simulators.served import Answer, Call, Fault
from tests.simulators.web import Leaf, Web, page
from tests.system import System
from tests.web_sync import crawl, sync


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with System(tmp_path_factory.mktemp("sites") / "home", private_hosts="127.0.0.0/8,localhost") as running:
        yield running


def paths(system: System, name: str) -> set[str]:
    """Of all documents that can be found, which the store must agree with."""
    views = [view for view in system.platform.documents(name, limit=1000).data if view.status == "done"]
    assert system.audit(name).documents == len(views)
    return {"/" + view.url.split("/", 3)[3] for view in views}


def test_1_robots_wildcards_and_a_byte_order_mark_and_the_crawl_delay_are_kept(system: System, web: Web, name: str) -> None:
    linked(web, "/a", "/private/b", "/private/open", "/c.print")
    web.site().robots = "\ufeffUser-agent: *\nDisallow: /private/\nDisallow: /*.print$\nAllow: /private/open\nCrawl-delay: 1.5\n"
    assert crawl(system, web, name).status == "done"
    assert paths(system, name) == {"/", "/a", "/private/open"}
    assert not web.asked("^/private/b|print")
    at = [call.at for call in web.calls if not call.path.endswith("robots.txt")]
    assert all(later - earlier > 1.4 for earlier, later in pairwise(at)), at


def test_1_while_nobody_knows_the_rules_nothing_is_asked_and_nothing_is_taken_for_gone(system: System, web: Web, name: str) -> None:
    linked(web, "/a")
    crawl(system, web, name)
    web.calls.clear()
    web.faults.append(Fault("robots.txt", Answer(500), times=99))
    run = sync(system, name)
    assert not web.paths() and run.deleted == 0 and "robots.txt" in " ".join(run.warnings)
    assert paths(system, name) == {"/", "/a"}


def test_2_redirects_end_and_none_leads_out_or_inside(system: System, web: Web, name: str) -> None:
    linked(web, "/a", "/loop", "/out", "/mail", "/metadata", "/mapped", "/number")
    site = web.site()
    site.redirect("/loop", "/pool")
    site.redirect("/pool", "/loop")
    for path, target in {
        "/out": "http://elsewhere.test/",
        "/mail": "mailto:duty@baisha.test",
        "/metadata": "http://169.254.169.254/latest/meta-data/",
        "/mapped": "http://[::ffff:169.254.169.254]/",
        "/number": "http://2852039166/",
    }.items():
        site.redirect(path, target)
    run = crawl(system, web, name)
    assert run.status == "done" and paths(system, name) == {"/", "/a"}
    assert len(web.calls) < 25


def test_5_traps_end_and_large_pages_are_borne(system: System, web: Web, name: str) -> None:
    def trap(call: Call) -> Answer:
        if call.path.startswith("/calendar"):
            year, month = (int(part) for part in call.path.split("/")[2:4])
            links = [f"/calendar/{year + month // 12}/{month % 12 + 1:02}/", f"/a;jsessionid={call.at}"]
        else:
            links = [f"{call.path}x/y/", f"/same?utm_source={call.at}"]
        return Answer(200, page(call.path, f"Words of {call.path} and of no other page."[:60], links=links), {"content-type": "text/html"})

    site = web.site()
    site.write("/", "Start", "Traps.", links=["/calendar/2026/01/", "/x/y/", "/links", "/long", "/a"])
    site.write("/a", "A", "An ordinary page among the traps.")
    site.write("/links", "Links", "All of them.", links=[f"/links?to={number}" for number in range(10_000)])
    site.put("/long", page("Long", "A word after another. " * 230_000))
    site.otherwise = trap
    run = crawl(system, web, name, max_depth="100", max_pages="400")
    held = paths(system, name)
    assert {"/", "/a", "/links", "/long"} <= held and len(held) < 300
    told = " ".join(run.warnings)
    for why in ("calendars without end", "paths that repeat themselves", "too many links on one page"):
        assert why in told, told


def test_7_one_page_under_many_addresses_is_one_document(system: System, web: Web, name: str) -> None:
    site = web.site()
    site.write("/", "Start", "Where it begins.", links=["/one", "/two", "/abroad", "/b", "/b/"])
    site.write("/one", "One", "First form.", head='<link rel="canonical" href="/two">')
    site.write("/two", "Two", "Second form.", head='<link rel="canonical" href="/three">')
    site.write("/three", "Three", "Third and last form.")
    site.write("/abroad", "Abroad", "Its canonical is elsewhere.", head='<link rel="canonical" href="http://elsewhere.test/abroad">')
    site.write("/b/", "B", "Behind a slash.")
    site.redirect("/b", "/b/", 301)
    crawl(system, web, name)
    assert paths(system, name) == {"/", "/three", "/abroad", "/b/"}
    site.leaves["/moved"] = site.leaves["/three"]
    site.redirect("/three", "/moved", 301)
    for path in ("/one", "/two"):
        site.write(path, path, "Now an ordinary page, it has words of its own: " + path)
    site.write("/", "Start", "Where it begins.", links=["/one", "/two", "/moved", "/abroad", "/b/"])
    sync(system, name)
    assert paths(system, name) == {"/", "/one", "/two", "/moved", "/abroad", "/b/"}


def test_10_equal_pages_are_one_document_and_nearly_equal_ones_are_reported(system: System, web: Web, name: str) -> None:
    words = " ".join(random.Random(4).choices("gauge river valve level water gate reading radar rain basin pump alarm".split(), k=600))
    site = web.site()
    site.write("/", "Start", "Doubles.", links=["/text", "/copy", "/print"])
    for path, text in {"/text": words, "/copy": words, "/print": f"{words} printed"}.items():
        site.put(path, page("Text", text))
    told = " ".join(crawl(system, web, name).warnings)
    assert paths(system, name) == {"/", "/text", "/print"}
    assert "another address shows the same: 1" in told and "nearly the same as another page: 1" in told


def test_11_packed_sitemaps_give_the_sites_own_addresses_and_their_dates_are_not_believed(system: System, web: Web, name: str) -> None:
    site = web.site()
    site.robots = f"Sitemap: {web.address(path='/index.xml')}\n"
    site.write("/docs/", "Docs", "The start.")
    for number in range(4):
        site.write(f"/docs/p{number}", f"P{number}", f"Only the sitemap knows page number {number}.")
    foreign = [web.address(path=f"/elsewhere/{number}") for number in range(50_000)] + ["http://other.test/docs/x", web.address(path="/docs-old/y")]
    site.sitemap("/index.xml", [web.address(path=f"/{one}") for one in ("one.xml.gz", "two.xml", "index.xml")], index=True)
    site.sitemap("/one.xml.gz", [web.address(path="/docs/p0"), web.address(path="/docs/p1"), *foreign], packed=True, lastmod="2199-01-01")
    site.sitemap("/two.xml", [web.address(path="/docs/p2"), web.address(path="/docs/p3")])
    crawl(system, web, name, entry_url=web.address(path="/docs/"))
    assert paths(system, name) == {"/docs/", "/docs/p0", "/docs/p1", "/docs/p2", "/docs/p3"}
    assert len(web.paths()) < 12
    site.leaves["/docs/p0"] = Leaf(page("P0", "A change that no date in the sitemap tells."))
    assert sync(system, name).indexed == 1


def test_12_a_host_that_asks_for_patience_does_not_slow_another(system: System, web: Web, name: str) -> None:
    linked(web, *(f"/slow/{number}" for number in range(6)))
    linked(web, *(f"/fast/{number}" for number in range(6)), host="localhost")
    web.faults.append(Fault("^/slow/", Answer(503, headers={"retry-after": "4"})))
    began = time.time()
    run = crawl(system, web, name, entry_url=f"{web.address()} {web.address('localhost')}", sitemap="none")
    assert (run.status, run.indexed) == ("done", 14), run.warnings
    assert max(call.at for call in web.asked("^/fast/")) - began < 3.5
    refused, *later = sorted(call.at for call in web.asked("^/slow/"))
    assert len(later) >= 6 and all(at - refused > 3.9 for at in later)


def test_14_an_edit_that_leaves_the_length_alone_is_found(system: System, web: Web, name: str) -> None:
    linked(web, "/a")
    crawl(system, web, name)
    web.site().leaves["/a"] = Leaf(page("Page /a", "What stands on the page /b stands nowhere else."))
    assert sync(system, name).indexed == 1
    view = next(view for view in system.platform.documents(name, limit=10).data if view.url.endswith("/a"))
    assert "the page /b stands" in system.platform.document_text(name, view.document_id)
