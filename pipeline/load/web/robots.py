"""A host's robots.txt: what it lets us ask for, how often, and where its sitemaps are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protego import Protego

from pipeline.errors import Unavailable
from pipeline.load.web.addresses import canonical
from pipeline.load.web.fetch import Fetcher, origin

MOST_BYTES = 512_000
"""What lies beyond is not read, as the standard lets us."""
MOST_REDIRECTS = 5
MOST_DELAY_S = 60.0
MOST_SITEMAPS = 50
_LATER = "Nothing is asked of a host whose rules are not known; the next sync tries again."


@dataclass(frozen=True, slots=True)
class Robots:
    """Rules for one agent."""

    rules: Protego | None
    agent: str

    def allows(self, url: str) -> bool:
        return self.rules is None or self.rules.can_fetch(url, self.agent)

    @property
    def delay_s(self) -> float:
        """Seconds between two requests; 0 when it does not say."""
        if self.rules is None:
            return 0.0
        delay = self.rules.crawl_delay(self.agent) or 0.0
        rate = self.rules.request_rate(self.agent)
        if rate is not None and rate.requests:
            delay = max(delay, rate.seconds / rate.requests)
        return min(MOST_DELAY_S, max(0.0, float(delay)))

    @property
    def sitemaps(self) -> list[str]:
        return list(self.rules.sitemaps)[:MOST_SITEMAPS] if self.rules is not None else []


def parse(text: str, agent: str) -> Robots:
    """Rules out of a file. A byte order mark would hide its first group."""
    return Robots(Protego.parse(text.lstrip("\ufeff")), agent)


def read(fetcher: Fetcher, url: str, agent: str) -> str:
    """The robots.txt of an address's host; empty where there is none. Raises Unavailable when nobody knows what it says."""
    address = f"{origin(url)}/robots.txt"
    for _ in range(MOST_REDIRECTS + 1):
        reply = fetcher.ask(address, bound=_bound, deadline_s=30.0, cut=True)
        if reply.status in {301, 302, 303, 307, 308}:
            address = canonical(reply.headers.get("location", ""), address)
            if address:
                continue
            return ""
        if reply.status >= 500 or reply.status == 429:
            raise Unavailable(f"{origin(url)} answered {reply.status} for its robots.txt", code="robots_unavailable", hint=_LATER)
        if reply.status >= 400:
            return ""
        return reply.body[:MOST_BYTES].decode("utf-8", "replace")
    return ""


def _bound(status: int, _headers: Mapping[str, str]) -> int:
    return MOST_BYTES if status == 200 else 0
