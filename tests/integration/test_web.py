"""Web sites through a whole system: real workers, a simulated site, and what is asked of it."""

from __future__ import annotations

import gzip
import os
import signal
from collections.abc import Iterator

import pytest

from pipeline.contracts import Question
from tests.simulators.web import Leaf, Site, Web
from tests.simulators.web_site import fill
from tests.system import System
from tests.web_sync import crawl, sync


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """One system for all: each test has a source, a collection and a folder of the site of its own."""
    with System(tmp_path_factory.mktemp("web") / "home", private_hosts="127.0.0.0/8") as running:
        yield running


def titles(system: System, name: str) -> set[str]:
    return {view.title for view in system.platform.documents(name, limit=1000).data if view.status == "done"}


def tasks(system: System, name: str) -> int:
    """Highest version of any document: each new one is a task of every stage."""
    return int(system.rows("SELECT sum(version) FROM documents WHERE collection_id IN (SELECT id FROM collections WHERE name = ?)", name)[0][0])


def some(site: Site, count: int = 6) -> None:
    site.write("/", "Start", "Where the six stations are described.", links=[f"/p{number}" for number in range(1, count)])
    for number in range(1, count):
        site.write(f"/p{number}", f"Station {number}", f"Station {number} has a staff gauge of {number + 2} metres and a radio.")


def test_the_bundled_site_is_read_page_by_page_and_answers_questions(system: System, web: Web, name: str) -> None:
    fill(web.site())
    run = crawl(system, web, name, entry_url=web.address(path="/handbook/"))
    assert (run.status, run.failed) == ("done", 0), run.warnings
    assert titles(system, name) == {"Handbook for visitors", "Boats", "How to read a level", "Towers", "参观须知", "石桥站", "Lost and found"}
    assert "closed to us by robots.txt" in " ".join(run.warnings)
    asked = web.paths()
    assert not any("drafts" in path or "shop" in path for path in asked)
    assert len(asked) <= 7 + 4, "each page once, a double, a redirect, the entry, and an address that cannot exist"
    hits = system.platform.search(Question("石桥站建在什么桥上", collections=(name,), k=3)).hits
    assert hits[0].title == "石桥站"


def test_a_site_that_has_not_changed_is_asked_with_conditions_and_nothing_is_parsed(system: System, web: Web, name: str) -> None:
    some(web.site())
    assert crawl(system, web, name).indexed == 6
    web.calls.clear()
    before = tasks(system, name)
    run = sync(system, name)
    assert (run.discovered, run.unchanged, run.indexed) == (6, 6, 0)
    pages = [call for call in web.calls if call.headers.get("if-none-match")]
    assert len(pages) == 6 and {call.status for call in pages} == {304}
    assert tasks(system, name) == before


def test_an_etag_that_changes_every_time_costs_neither_a_parse_nor_an_embedding(system: System, web: Web, name: str) -> None:
    some(web.site())
    crawl(system, web, name)
    for leaf in web.site().leaves.values():
        leaf.etag = f'"{id(leaf)}-again"'  # type: ignore[union-attr]
    before = tasks(system, name)
    run = sync(system, name)
    assert (run.unchanged, run.indexed) == (6, 0) and tasks(system, name) == before


def test_pages_go_with_410_at_once_and_with_404_the_second_time_and_never_for_want_of_room(system: System, web: Web, name: str) -> None:
    site = web.site()
    some(site, 8)
    assert crawl(system, web, name).indexed == 8
    site.leaves["/p1"] = Leaf(b"", status=410, etag="")
    del site.leaves["/p2"]
    site.soft = True
    run = sync(system, name)
    assert run.deleted == 1 and titles(system, name) == {"Start", *(f"Station {number}" for number in range(2, 8))}
    system.platform.sources.update(name, options={"max_pages": "3"})
    run = sync(system, name)
    assert run.deleted == 0 and "more than 3 pages" in " ".join(run.warnings)
    system.platform.sources.update(name, options={"max_pages": "100"})
    assert sync(system, name).deleted == 1
    assert titles(system, name) == {"Start", *(f"Station {number}" for number in range(3, 8))}
    assert system.audit(name).documents == 6


CHARSETS = {
    "/gb": ("gb18030", "text/html", "gb2312", "白沙河水位站的值班员每天早晚各读一次水尺，并把读数写进值班簿。"),
    "/lying-header": ("gb18030", "text/html; charset=utf-8", "", "雷达水位计安装在石桥的第三孔下面，离水面最低一米半。"),
    "/lying-meta": ("utf-8", "text/html", "gbk", "电池每十四个月更换一次，换下的电池交回值班室。"),
    "/big5": ("big5", "text/html", "", "觀測塔高九公尺，同時最多只能有四個人上去，請先登記姓名。"),
    "/sjis": ("cp932", "text/html; charset=shift_jis", "", "観測所の水位は十分ごとに送られ、当直室で記録されています。"),
    "/latin": ("utf-8", "text/html; charset=iso-8859-1", "", "Die Wasserstände werden täglich geprüft: größer heißt gefährlicher."),
}


def test_pages_in_any_charset_are_read_and_what_cannot_be_read_says_why(system: System, web: Web, name: str) -> None:
    site = web.site()
    odd = ["/bomb", "/app", "/report.html"]
    site.write("/", "Start", "In many tongues.", links=[*CHARSETS, *odd])
    for path, (charset, header, meta, text) in CHARSETS.items():
        declared = f'<meta charset="{meta}">' if meta else ""
        site.put(path, f"<!doctype html><html><head>{declared}<title>{path}</title></head><body><p>{text}</p></body></html>".encode(charset), header)
    site.put("/bomb", gzip.compress(b"\0" * 25_000_000), headers={"content-encoding": "gzip"})
    site.put("/app", b"<!doctype html><html><head><script src='/m.js'></script></head><body><div id='root'></div></body></html>")
    site.put("/report.html", b"%PDF-1.4 torn", "text/html")
    system.platform.sources.create(name, "web", name, options={"entry_url": web.address(path="/"), "delay_s": "0"})
    run = sync(system, name)
    codes = {failure.document.rpartition("/")[2]: failure.code for failure in run.failures}
    assert set(codes) == {"bomb", "app", "report.html"}
    assert (codes["app"], codes["bomb"]) == ("needs_browser", "too_large")
    for view in system.platform.documents(name, limit=100).data:
        path = "/" + view.document.rpartition("/")[2]
        if path in CHARSETS:
            assert CHARSETS[path][3] in system.platform.document_text(name, view.document_id), path
    before = len(web.asked("bomb|app"))
    again = sync(system, name)
    assert again.failed == 3 and len(web.asked("bomb|app")) <= before + 2, "what failed for good is looked at, but not downloaded again"


def test_a_crawl_whose_worker_is_killed_goes_on_and_ends_as_if_nothing_had_happened(system: System, web: Web, name: str) -> None:
    some(web.site(), 60)
    web.after[37] = lambda: os.kill(system.child("network"), signal.SIGKILL)
    run = crawl(system, web, name)
    assert (run.status, run.discovered, run.indexed) == ("done", 60, 60)
    asked = web.asked(r"^/p\d+$")
    assert len({call.path for call in asked}) == 59 and len(asked) <= 59 + 21
    assert system.audit(name).documents == 60 and not web.after


def test_addresses_of_the_inside_are_not_asked_unless_whoever_runs_the_system_allows_it(system: System, web: Web, name: str) -> None:
    run = crawl(system, web, name, entry_url="http://169.254.169.254/latest/")
    assert run.discovered == 0 and "DUJIANG_PRIVATE_HOSTS" in " ".join(run.warnings)


def test_sources_that_share_a_host_keep_its_pace_together(system: System, web: Web, name: str) -> None:
    for part in ("/one", "/two"):
        web.site().write(f"{part}/", part, f"Start of {part}.", links=[f"{part}/{number}" for number in range(6)])
        for number in range(6):
            web.site().write(f"{part}/{number}", f"{part} {number}", f"Text {number} of {part} and of no other.")
        given = {"entry_url": web.address(path=f"{part}/"), "delay_s": "0.15", "sitemap": "none"}
        system.platform.sources.create(name + part[1:], "web", name, options=given)
    for run in [system.platform.sources.sync(name + part) for part in ("one", "two")]:
        assert system.finish(run).indexed == 7
    asked = [call.at for call in web.calls if not call.path.endswith("robots.txt")]
    assert len(asked) >= 16 and max(asked) - min(asked) >= 0.12 * (len(asked) - 2)
