"""What stands before every route of Feishu: tokens, scopes, rates, and the many shapes in which a refusal comes."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.simulators.served import Answer, Clock

APP_ID, APP_SECRET = "cli_waterworks", "waterworks-secret"
RENEWAL_S = 30 * 60
"""A token with less life left is replaced when asked for, and stays valid."""
DAY_S = 86_400.0

Limits = Sequence[tuple[int, float]]
LIMITS: Mapping[str, Limits] = {
    "token": (),
    "drive.list": ((20, 1.0),),
    "drive.metas": ((50, 1.0), (1000, 60.0)),
    "drive.subscribe": ((20, 1.0),),
    "wiki.spaces": ((100, 60.0),),
    "wiki.nodes": ((100, 60.0),),
    "wiki.node": ((100, 60.0),),
    "docx.get": ((5, 1.0),),
    "docx.blocks": ((5, 1.0),),
    "docx.block": ((5, 1.0),),
    "docx.raw": ((5, 1.0),),
    "docs.content": ((5, 1.0),),
    "media": ((5, 1.0), (10_000, DAY_S)),
    "media.links": ((5, 1.0),),
    "file": ((5, 1.0), (10_000, DAY_S)),
    "export.create": ((100, 60.0),),
    "export.poll": ((100, 60.0),),
    "export.file": ((100, 60.0),),
    "sheets.pages": ((100, 60.0),),
    "sheets.values": ((100, 60.0),),
    "bitable.tables": ((20, 1.0),),
    "bitable.fields": ((20, 1.0),),
    "bitable.records": ((20, 1.0),),
    "board": ((10, 1.0),),
    "contact": ((50, 1.0), (1000, 60.0)),
}
"""Route → (calls, seconds) of one app in one tenant."""


def fine(data: Mapping[str, object]) -> Answer:
    """The envelope of a success."""
    return Answer.json({"code": 0, "msg": "success", "data": data})


def refused(code: int, message: str, status: int = 400, *, scopes: Sequence[str] = (), headers: Mapping[str, str] | None = None) -> Answer:
    """An error as the gateway words it."""
    error: dict[str, object] = {
        "log_id": "2026120100000000000000000000SIM",
        "troubleshooter": "排查建议查看: https://open.feishu.cn/search?log_id=SIM",
    }
    if scopes:
        error["permission_violations"] = [{"type": "action_scope_required", "subject": scope} for scope in scopes]
    return Answer.json({"code": code, "msg": message, "error": error}, status, headers)


def limited(reset_s: float = 1, status: int = 429, limit: int = 5, *, named: bool = True) -> Answer:
    """Too many requests: `status` 429, 400 as on the document routes, or 200. `named` false leaves the headers out."""
    headers = {"x-ogw-ratelimit-limit": str(limit), "x-ogw-ratelimit-reset": str(math.ceil(reset_s))} if named else {}
    return refused(99991400, "request trigger frequency limit", status, headers=headers)


def html(status: int = 200) -> Answer:
    """What a gateway between sends."""
    return Answer(status, b"<html><body><h1>Bad gateway</h1></body></html>", {"content-type": "text/html"})


def truncated() -> Answer:
    """Half of a JSON body, with status 200 and a length that is true of the half."""
    return Answer(200, b'{"code":0,"msg":"success","data":{"items":[{"block_id":"', {"content-type": "application/json; charset=utf-8"})


def reset() -> Answer:
    """The connection breaks inside the body."""
    return Answer(200, b'{"code":0,"msg":"success","data":{}}', {"content-type": "application/json"}, cut_at=9)


@dataclass(slots=True)
class Trouble:
    """Answers the next `times` requests that match, after `skip` such have passed. `pattern` is searched in "METHOD /path?query"."""

    pattern: str
    answer: Answer
    times: int = 1
    skip: int = 0

    def strikes(self, line: str) -> bool:
        if self.times <= 0 or not re.search(self.pattern, line):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


class Tokens:
    """Tenant tokens under the rule of thirty minutes, revocable, with a life that tests choose."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.app_id, self.app_secret = APP_ID, APP_SECRET
        self.life_s = 7200.0
        self.issued: dict[str, float] = {}
        """Token → until when it is valid."""
        self._newest = ""

    def issue(self, given: Mapping[str, object]) -> Answer:
        if (given.get("app_id"), given.get("app_secret")) != (self.app_id, self.app_secret):
            return refused(99991543, "app_id or app_secret is invalid")
        now = self.clock.now()
        if self.issued.get(self._newest, 0.0) - now < RENEWAL_S:
            self._newest = f"t-g1sim{len(self.issued) + 1:06d}"
            self.issued[self._newest] = now + self.life_s
        left = int(self.issued[self._newest] - now)
        return Answer.json({"code": 0, "msg": "ok", "tenant_access_token": self._newest, "expire": left})

    def revoke(self) -> None:
        """Every token that was issued is void from now on; the next call for one gets a new one."""
        self.issued = dict.fromkeys(self.issued, 0.0)

    def check(self, header: str) -> Answer | None:
        """The refusal that a request with this Authorization header earns."""
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer" or not token:
            return refused(99991661, "Missing access token for authorization. Please make a request with token attached.")
        if not token.startswith(("t-", "u-")):
            return refused(99991671, "Invalid access token for authorization. The token must start with t- or u-.")
        if self.issued.get(token, 0.0) <= self.clock.now():
            return refused(99991663, "Invalid access token for authorization. Please make a request with token attached.")
        return None


class Meter:
    """Counts calls per route in sliding windows, and refuses what is beyond a limit when told to."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.limits: dict[str, Limits] = dict(LIMITS)
        self.enforced = False
        self.disguise: dict[str, int] = {}
        """Route → HTTP status of its refusals; without one 400 for documents, 429 for the others."""
        self._arrived: dict[str, list[float]] = {}
        self._let_in: dict[tuple[str, float], deque[float]] = {}

    def note(self, route: str) -> None:
        self._arrived.setdefault(route, []).append(self.clock.now())

    def peak(self, route: str, window_s: float = 1.0) -> int:
        """Most calls of a route that arrived in any window of that length, refused ones included."""
        times = sorted(self._arrived.get(route, ()))
        first = most = 0
        for last, at in enumerate(times):
            while at - times[first] >= window_s - 1e-6:
                first += 1
            most = max(most, last - first + 1)
        return most

    def over(self) -> dict[str, str]:
        """Routes on which more arrived than their limits allow, with the figures."""
        found: dict[str, str] = {}
        for route, limits in self.limits.items():
            for most, window_s in limits:
                seen = self.peak(route, window_s)
                if seen > most:
                    found[route] = f"{seen} in {window_s:g} s, allowed are {most}"
        return found

    def admit(self, route: str) -> Answer | None:
        """The refusal of a call beyond the limit; otherwise the call is counted."""
        if not self.enforced:
            return None
        now = self.clock.now()
        kept = [(most, window_s, self._let_in.setdefault((route, window_s), deque())) for most, window_s in self.limits.get(route, ())]
        for most, window_s, times in kept:
            while times and self._left(times[0], window_s, now) <= 1e-6:
                times.popleft()
            if len(times) >= most:
                status = self.disguise.get(route, 400 if route.startswith("docx.") else 429)
                return limited(self._left(times[0], window_s, now), status, most)
        for _, _, times in kept:
            times.append(now)
        return None

    @staticmethod
    def _left(at: float, window_s: float, now: float) -> float:
        """Seconds until a call stops counting. Days are days of China, shorter windows slide."""
        if window_s < DAY_S:
            return at + window_s - now
        return (math.floor((at + 8 * 3600) / DAY_S) + 1) * DAY_S - 8 * 3600 - now
