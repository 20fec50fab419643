"""Pages drawn by scripts: what is said without a browser, and with one what it may and may not reach."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from pipeline.errors import Unsupported
from tests.crawled import Crawled
from tests.simulators.web import Web

SCRIPT = """
const list = document.createElement('p');
fetch('/levels.json').then(answer => answer.json()).then(levels => {
  list.textContent = 'The warning level at Stone Bridge is ' + levels.stone + ' metres, and boats stay ashore above it. ';
  return fetch('http://169.254.169.254/latest/').then(() => 'reached', () => 'refused');
}).then(inside => { list.textContent += 'Inside: ' + inside + '.'; document.getElementById('root').appendChild(list); });
"""
CAN_DRAW = find_spec("playwright") is not None and any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))


@pytest.fixture
def web() -> Iterator[Web]:
    with Web() as simulator:
        site = simulator.site()
        site.put(
            "/", b"<!doctype html><html><head><title>App</title></head><body><div id='root'></div><script src='/main.js'></script></body></html>"
        )
        site.put("/main.js", SCRIPT.encode(), "text/javascript")
        site.put("/levels.json", b'{"stone": 2.4}', "application/json")
        yield simulator


def test_without_the_extra_a_drawn_page_says_what_to_install(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "playwright.sync_api", None)
    with pytest.raises(Unsupported) as raised:
        Crawled(web, render="auto").fetch("/")
    assert raised.value.code == "needs_browser" and "dujiang[browser]" in raised.value.hint


@pytest.mark.skipif(not CAN_DRAW, reason="no Playwright and no Chromium here")
def test_a_drawn_page_is_read_as_a_reader_sees_it_and_reaches_nothing_inside(web: Web) -> None:
    crawled = Crawled(web, render="auto")
    (listed,) = crawled.scan().listed.values()
    assert listed.item.revision == "", "it is drawn anew in each sync"
    text = crawled.fetch("/").data.decode()
    assert "The warning level at Stone Bridge is 2.4 metres" in text and "Inside: refused." in text
