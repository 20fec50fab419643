"""Pages drawn by scripts, through a Chromium that has no network of its own: whatever it asks for is fetched under the guard.

Needs the extra ``dujiang[browser]`` and a Chromium: that of the system, or the one that Playwright installs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Protocol, cast

from pipeline.errors import PipelineError, Unavailable, Unsupported
from pipeline.load.web.fetch import Reply

DRAW_S = 30.0
MOST_REQUESTS = 200
"""Beyond it what a page asks for is refused."""
WANTED = frozenset({"document", "script", "xhr", "fetch"})
"""Images, fonts and styles say nothing."""
NO_NETWORK = "--host-resolver-rules=MAP * ~NOTFOUND"

Answer = Callable[[str], Reply]


class Request(Protocol):
    url: str
    method: str
    resource_type: str


class Route(Protocol):
    request: Request

    def abort(self) -> None: ...

    def fulfill(self, *, status: int, headers: dict[str, str], body: bytes) -> None: ...


class Sheet(Protocol):
    """A page of the browser."""

    def route(self, url: str, handler: Callable[[Route], None]) -> None: ...

    def goto(self, url: str, *, wait_until: str, timeout: float) -> object: ...

    def content(self) -> str: ...


class Browser(Protocol):
    def new_page(self, *, service_workers: str) -> Sheet: ...

    def close(self) -> None: ...


class Chromium(Protocol):
    def launch(self, *, args: list[str], executable_path: str | None, chromium_sandbox: bool) -> Browser: ...


class Playwright(Protocol):
    chromium: Chromium


class Api(Protocol):
    """What is used of ``playwright.sync_api``, which need not be installed."""

    Error: type[Exception]

    def sync_playwright(self) -> AbstractContextManager[Playwright]: ...


def draw(url: str, answer: Answer) -> bytes:
    """The page as a reader sees it, as HTML in UTF-8. `answer` fetches one address, redirects followed.

    Raises Unsupported (code ``needs_browser``) where nothing can draw here, Unavailable when it took too long.
    """
    try:
        api = cast("Api", import_module("playwright.sync_api"))
    except ImportError:
        hint = "Install it: pip install 'dujiang[browser]'."
        raise Unsupported(f"{url} is drawn by scripts, and the extra browser is not installed", code="needs_browser", hint=hint) from None
    left = MOST_REQUESTS

    def serve(route: Route) -> None:
        nonlocal left
        request = route.request
        left -= 1
        if request.method != "GET" or request.resource_type not in WANTED or left < 0:
            route.abort()
            return
        try:
            reply = answer(request.url)
        except PipelineError:
            route.abort()
            return
        route.fulfill(status=reply.status, headers={"content-type": reply.headers.get("content-type", "")}, body=reply.body)

    with api.sync_playwright() as tool:
        try:
            browser = tool.chromium.launch(args=[NO_NETWORK], executable_path=_chromium(), chromium_sandbox=os.geteuid() != 0)
        except api.Error:
            hint = "Install chromium from your distribution, or run `playwright install chromium`."
            raise Unsupported(f"{url} is drawn by scripts, and no Chromium starts here", code="needs_browser", hint=hint) from None
        try:
            page = browser.new_page(service_workers="block")
            page.route("**/*", serve)
            page.goto(url, wait_until="networkidle", timeout=DRAW_S * 1000)
            return page.content().encode("utf-8", "replace")
        except api.Error:
            raise Unavailable(f"{url} was not drawn within {DRAW_S:.0f} s", code="draw_timeout") from None
        finally:
            browser.close()


def _chromium() -> str | None:
    """The system's own, where there is one; None: Playwright's."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
