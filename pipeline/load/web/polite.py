"""Asking hosts no more than they bear: by their robots.txt, with pauses that all workers keep together, less when they say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from pipeline.errors import PipelineError, RateLimited, Unavailable
from pipeline.http import retry_after
from pipeline.load.web import robots
from pipeline.load.web.fetch import Bound, Fetcher, Reply, origin
from pipeline.load.web.robots import Robots
from pipeline.protocols import Surroundings

ROBOTS_LIFE_S = 3600.0
PATIENCE_S = 120.0
"""Waits up to this long are sat out; after longer ones the scan is taken up again."""
UNSAID_S = 30.0
"""Pause after a 429 that names no time."""
TRIES = 3
PAGE_FAILED = "server_error"
"""Code of a failure that says nothing about the host: it answers, only not with this page."""
LEFT_ALONE = "left_alone"
"""Code of a refusal of our own: all workers leave the host alone for a moment."""
AT_ONCE = 4
"""Requests at the same time to a host that needs no pauses."""


@dataclass(slots=True)
class Host:
    """One host in one connector."""

    origin: str
    robots: Robots | None = None
    ready_at: float = 0.0
    """Nothing is asked before that moment (seconds since the epoch)."""
    failures: int = 0
    """Requests in a row that nobody answered."""
    throttled: int = 0
    """429s in a row."""
    down: PipelineError | None = None
    """Why nothing more is asked in this crawl."""
    soft: frozenset[str] | None = None
    """Word groups of what it says to an address that does not exist, where it says so with 200."""
    probed: bool = False


class Polite:
    """Requests of one connector. Used by one thread.

    Args:
        delay_s: least seconds between two requests to a host; its crawl delay may be longer.
    """

    def __init__(self, fetcher: Fetcher, around: Surroundings, agent: str, delay_s: float) -> None:
        self.fetcher, self.around = fetcher, around
        self._agent, self._delay_s = agent, delay_s
        self._hosts: dict[str, Host] = {}

    def host(self, url: str) -> Host:
        """The host of an address."""
        return self.at(urlsplit(url).netloc, origin(url))

    def at(self, netloc: str, where: str = "") -> Host:
        """A host by its name and port."""
        return self._hosts.setdefault(netloc, Host(where))

    def rules(self, url: str, *, fresh: bool = False) -> Robots:
        """The rules of an address's host; `fresh`: as they are now. Raises Unavailable when nobody knows them, Forbidden."""
        host = self.host(url)
        if host.robots is None:
            made: list[str] = []

            def make() -> tuple[str, float]:
                # Never empty: a value that is empty counts as none.
                made.append(self._patiently(url) or "#")
                return made[0], ROBOTS_LIFE_S

            name = f"robots.{origin(url)}"
            text = self.around.shared(name, make)
            if fresh and not made:
                text = self.around.shared(name, make, stale=text)
            host.robots = robots.parse(text, self._agent)
        return host.robots

    def _patiently(self, url: str) -> str:
        for number in range(TRIES):
            try:
                return robots.read(self.fetcher, url, self._agent)
            except Unavailable as error:
                if number + 1 == TRIES or error.code == "unknown_host":
                    raise
            self.around.sleep(2.0**number)
        raise AssertionError

    def ask(self, url: str, *, bound: Bound, headers: Mapping[str, str] | None = None, method: str = "GET", deadline_s: float = 60.0) -> Reply:
        """One request in its turn.

        Raises RateLimited where the host or our own pace says later, Unavailable for 5xx and silence, and what `Fetcher.ask` raises.
        """
        host = self.host(url)
        delay_s = max(self._delay_s, self.rules(url).delay_s)
        rate, slots = (1.0 / delay_s, 1) if delay_s else (0.0, AT_ONCE)
        with self.around.acquire(f"//{urlsplit(url).netloc}", rate=rate, burst=1.0, slots=slots):
            reply = self.fetcher.ask(url, bound=bound, headers=headers, method=method, deadline_s=deadline_s)
            self._listen(host, url, reply)
        host.failures = host.throttled = 0
        return reply

    def _listen(self, host: Host, url: str, reply: Reply) -> None:
        wait_s = retry_after(reply.headers)
        name = urlsplit(url).netloc
        if reply.status == 429 or (reply.status == 503 and wait_s is not None):
            host.throttled += 1
            raise RateLimited(f"{name} answered {reply.status}", after=wait_s if wait_s is not None else UNSAID_S, scope=name)
        if reply.status >= 500:
            code = "bad_gateway" if reply.status in (502, 503, 504) else PAGE_FAILED
            raise Unavailable(f"{name} answered {reply.status}", code=code)

    def now_or_soon(self, url: str, *, bound: Bound, method: str = "GET") -> Reply:
        """`ask`, short waits and passing failures sat out. Raises as `ask` does."""
        for number in range(TRIES * 2):
            try:
                return self.ask(url, bound=bound, method=method)
            except RateLimited as error:
                if number + 1 == TRIES * 2 or (error.after or 0.0) > PATIENCE_S:
                    raise
                self.around.sleep(max(0.1, error.after or 1.0))
            except Unavailable as error:
                if number + 1 >= TRIES or error.code == "unknown_host":
                    raise
                self.around.sleep(error.after or 2.0**number)
        raise AssertionError
