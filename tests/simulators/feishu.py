"""Feishu's Open API over a tenant that tests build and change: drive, wiki, documents, sheets, bitables, media, exports, events, and its refusals.

A test populates the tenant, starts the server and changes things while a connector reads::

    from tests.simulators.feishu import Feishu
    from tests.simulators.feishu_blocks import heading, text, run, bullet, table, image

    with Feishu() as feishu:                                    # virtual clock; Feishu(Clock(real=True)) for a demonstration
        folder = feishu.library.folder("Duty")                  # in the root folder, whose token is feishu.library.root.token
        doc = feishu.library.docx("Shifts", [heading(1, "Shifts"), text("Night begins at ", run("20:00", bold=True))], folder)
        space = feishu.library.space("Handbook")
        home = feishu.library.wiki(space, "Home", [text("...")])     # a document and its node; node(space, thing, parent) for one that exists
        feishu.library.edit(doc, [text("new")]); feishu.library.rename(doc, "..."); feishu.library.move(doc, folder)
        feishu.trouble(r"folder_token=fldcn", limited(reset_s=3), times=4)     # faults: feishu_gate.refused, limited, html, truncated, reset
        feishu.meter.enforced = True; feishu.meter.peak("docx.blocks"); feishu.meter.over()
        feishu.tokens.revoke(); feishu.tokens.life_s = 60; feishu.missing.add("wiki:wiki:readonly"); feishu.pager.repeat_from = 2
        feishu.exports.course = (1, 2, TOKENLESS); feishu.exports.ends[doc.token] = 107         # states of the polls, and how the job ends
        feishu.events.push(url, feishu.events.about(doc, "drive.file.edit_v1"))                 # or .about(...).headers and .body alone

The connector is given `feishu.url`, APP_ID and APP_SECRET. Nothing is refused for its rate unless `meter.enforced`; rates are always recorded.

python -m tests.simulators.feishu --port 0                    a small library; address, app id and secret printed
python -m tests.simulators.feishu --pages 5000 --limits       a large one, under the vendor's limits
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from tests.simulators.feishu_docs import Docs
from tests.simulators.feishu_drive import Drive
from tests.simulators.feishu_events import Events
from tests.simulators.feishu_gate import APP_ID, APP_SECRET, Meter, Tokens, Trouble, refused
from tests.simulators.feishu_jobs import Exports, Jobs
from tests.simulators.feishu_model import Library
from tests.simulators.feishu_paging import Pager
from tests.simulators.feishu_tables import Tables
from tests.simulators.served import Answer, Call, Clock, Simulator

__all__ = ["APP_ID", "APP_SECRET", "Feishu", "library"]

Handler = Callable[[Call, re.Match[str]], Answer]


@dataclass(frozen=True, slots=True)
class Route:
    """One call of the API: its name in the limits, how it is recognized, who answers, and the scope that it takes."""

    name: str
    method: str
    path: re.Pattern[str]
    handler: Handler
    scope: str = ""


class Feishu(Simulator):
    """One app in one tenant."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.library = Library(self.clock)
        self.tokens, self.meter, self.pager = Tokens(self.clock), Meter(self.clock), Pager()
        self.troubles: list[Trouble] = []
        self.missing: set[str] = set()
        """Scopes that the app was not granted."""
        self.editor = False
        """Whether the app may edit, which reading an older revision takes."""
        self.keeper = True
        """Whether the app may subscribe to events, which takes the right to manage."""
        self.subscribed: set[str] = set()
        self.exports, self.events = Exports(), Events(self.clock)
        self._jobs = Jobs(self)
        self.routes: list[Route] = [self._route("token", "POST", "/auth/v3/tenant_access_token/internal", self._token)]
        for part in (Drive(self), Docs(self), Tables(self), self._jobs):
            self.routes += [self._route(*row) for row in part.routes()]

    def trouble(self, pattern: str, answer: Answer, times: int = 1, skip: int = 0) -> Trouble:
        """Spoil requests whose line, "METHOD /path?query", the pattern is found in."""
        made = Trouble(pattern, answer, times, skip)
        with self.lock:
            self.troubles.append(made)
        return made

    def answer(self, call: Call) -> Answer:
        line = f"{call.method} {call.path}?{'&'.join(f'{key}={value}' for key, value in call.query.items())}"
        found = [(route, match) for route in self.routes if route.method == call.method and (match := route.path.fullmatch(call.path))]
        if found:
            self.meter.note(found[0][0].name)
        for trouble in self.troubles:
            if trouble.strikes(line):
                return trouble.answer
        if not found:
            return self._jobs.linked(call) or Answer(404, b"404 page not found", {"content-type": "text/plain"})
        route, match = found[0]
        if route.name != "token":
            denied = self.tokens.check(call.headers.get("authorization", "")) or self.meter.admit(route.name) or self._scope(route)
            if denied is not None:
                return denied
        return route.handler(call, match)

    def _scope(self, route: Route) -> Answer | None:
        if route.scope not in self.missing:
            return None
        return refused(99991672, f"Access denied. One of the following scopes is required: [{route.scope}].", scopes=[route.scope])

    def _token(self, call: Call, _found: re.Match[str]) -> Answer:
        try:
            given: Any = orjson.loads(call.body)
        except orjson.JSONDecodeError:
            given = None
        return self.tokens.issue(given) if isinstance(given, dict) else refused(10003, "invalid param")

    @staticmethod
    def _route(name: str, method: str, path: str, handler: Handler, scope: str = "") -> Route:
        pattern = re.sub(r":(\w+)", r"(?P<\1>[^/]+)", path)
        return Route(name, method, re.compile(f"/open-apis{pattern}"), handler, scope)


def library(simulator: Feishu) -> Feishu:
    """The small library of the demonstration."""
    from tests.simulators.feishu_library import fill

    fill(simulator)
    return simulator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--pages", type=int, default=0, help="a generated wiki of that many pages in place of the small one")
    parser.add_argument("--limits", action="store_true", help="refuse what is beyond the vendor's limits")
    told = parser.parse_args()
    simulator = Feishu(Clock(real=True))
    simulator.meter.enforced = told.limits
    if told.pages:
        from tests.simulators.feishu_large import grow

        grow(simulator.library, told.pages)
    else:
        library(simulator)
    simulator.start(told.port)
    print(f"{simulator.url} {APP_ID} {APP_SECRET}", flush=True)
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        simulator.stop()


if __name__ == "__main__":
    main()
