"""Every address a crawl knows, from one sync to the next: what it was the last time, and what is still to be asked. Kept in the source's notes."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import cast
from urllib.parse import urlsplit

from pipeline.load.web.addresses import dated, shape, winding
from pipeline.protocols import Surroundings

MOST_WAITING = 200_000
MOST_VARIANTS = 300
"""Addresses of one path that differ in their parameters."""
MOST_DATED = 60
"""Addresses of one shape that name a month or a day: a calendar has no end."""
MOST_MISSES = 5
"""Syncs in a row after which a dead address is asked for no more unless a page links to it anew."""
HEADER = "0"
"""Note with what the others were made under."""

WAITING, PAGE, FILE, SHELL, BROKEN = "waiting", "page", "file", "shell", "broken"
MOVED, LED, SAME = "moved", "led", "same"
"""It leads to another one for good, for now, or shows what another one shows."""
ALIASES = frozenset({MOVED, LED, SAME})
MISSING, GONE, REFUSED, ROBOTS, OUTSIDE, NO_DOCUMENT = "missing", "gone", "refused", "robots", "outside", "no_document"
DOCUMENTS = frozenset({PAGE, FILE, SHELL, BROKEN})
"""States in which an address is listed."""


@dataclass(slots=True)
class Known:
    """One address."""

    url: str
    depth: int = 0
    order: int = 0
    state: str = WAITING
    visit: float = 0.0
    """Crawl that asked for it last."""
    listed: float = 0.0
    """Crawl that listed it last; 0: it is no document here."""
    etag: str = ""
    modified: str = ""
    mark: str = ""
    """Its change mark, as listed."""
    title: str = ""
    media_type: str = ""
    target: str = ""
    """Address that stands for it, where it is one of the `ALIASES`."""
    text: str = ""
    """Hash of its words."""
    likeness: int = 0
    misses: int = 0
    tries: int = 0
    hops: int = 0
    """Redirects that led here."""
    page: bool = False
    """It is asked for as a page, whatever its suffix."""

    def dump(self) -> str:
        values = [getattr(self, name) for name in _FIELDS]
        while values and not values[-1]:
            values.pop()
        return json.dumps(values, ensure_ascii=False, separators=(",", ":"))

    @property
    def validators(self) -> dict[str, str]:
        """For a conditional request; none where the last answer cannot stand for a new one."""
        return {"etag": self.etag, "last_modified": self.modified} if self.mark and self.state != WAITING else {}


_FIELDS = tuple(field.name for field in fields(Known))


def key(url: str) -> str:
    """Name of an address's note."""
    return blake2b(url.encode(), digest_size=16).hexdigest()


class Frontier:
    """All addresses of one crawl, in memory, with what has changed since they were kept. Used by one thread.

    Args:
        config: fingerprint of what belongs to the site; when it is another one, nothing that was learnt counts.
    """

    def __init__(self, around: Surroundings, config: str) -> None:
        self._around, self._config = around, config
        self.pages: dict[str, Known] = {}
        self.crawl = 0.0
        self.left_out: dict[str, int] = {}
        """Why addresses were not taken → how many."""
        self._dirty: dict[str, Known | None] = {}
        self._waiting: dict[str, list[tuple[int, int, int, int, str]]] = {}
        self._shapes: dict[str, int] = {}
        self._paths: dict[str, int] = {}
        self._counter = 0

    def open(self, crawl: float | None) -> None:
        """Read what is kept, and queue what this crawl has not asked for yet; None begins a new one."""
        notes = dict(self._around.remembered())
        fresh = notes.pop(HEADER, "") != self._config
        for name, text in notes.items():
            known = Known(*cast("list[object]", json.loads(text)))  # pyright: ignore[reportArgumentType]
            if fresh:
                # A page that answers stays known, so that it can be said of it that it lies outside now.
                known = Known(known.url, known.depth, known.order, listed=known.listed)
                self._dirty[name] = known
            self.pages[known.url] = known
        if fresh:
            self._around.remember({HEADER: self._config})
        last = max((known.visit for known in self.pages.values()), default=0.0)
        self.crawl = crawl if crawl is not None else max(self._around.now(), last + 0.001)
        for known in sorted(self.pages.values(), key=lambda each: each.order):
            self._count(known.url)
            self._counter = max(self._counter, known.order)
            if known.visit != self.crawl and known.misses < MOST_MISSES:
                self.queue(known)

    def add(self, url: str, depth: int, *, hops: int = 0) -> Known | None:
        """Take note of an address that belongs to the site; None where it looks like a trap."""
        known = self.pages.get(url)
        if known is not None:
            if known.misses >= MOST_MISSES and known.visit != self.crawl:
                known.misses = 0
                self.queue(known)
            return known
        why = self._trap(url)
        if why:
            self.left_out[why] = self.left_out.get(why, 0) + 1
            return None
        self._count(url)
        self._counter += 1
        known = self.pages[url] = Known(url, depth, self._counter, hops=hops)
        self.queue(known)
        self.change(known)
        return known

    def _trap(self, url: str) -> str:
        if len(self.pages) >= MOST_WAITING:
            return "too many addresses"
        if winding(url):
            return "paths that repeat themselves"
        if dated(url) and self._shapes.get(shape(url), 0) >= MOST_DATED:
            return "calendars without end"
        if "?" in url and self._paths.get(url.partition("?")[0], 0) >= MOST_VARIANTS:
            return "too many variants of one page"
        return ""

    def _count(self, url: str) -> None:
        if dated(url):
            self._shapes[shape(url)] = self._shapes.get(shape(url), 0) + 1
        if "?" in url:
            path = url.partition("?")[0]
            self._paths[path] = self._paths.get(path, 0) + 1

    def queue(self, known: Known) -> None:
        """Ask for it in this crawl: first what has not failed, what was listed before, then by distance from the entry."""
        entry = (known.tries, 0 if known.listed else 1, known.depth, known.order, known.url)
        heapq.heappush(self._waiting.setdefault(urlsplit(known.url).netloc, []), entry)

    def hosts(self) -> list[str]:
        """Hosts of which something is still to be asked."""
        return [host for host, waiting in self._waiting.items() if waiting]

    def pop(self, host: str) -> Known | None:
        """The next address of a host."""
        waiting = self._waiting.get(host, [])
        while waiting:
            known = self.pages.get(heapq.heappop(waiting)[4])
            if known is not None and known.visit != self.crawl:
                return known
        return None

    def change(self, known: Known) -> None:
        """It is to be kept."""
        self._dirty[key(known.url)] = known

    def drop(self, url: str) -> None:
        """Forget an address."""
        if self.pages.pop(url, None) is not None:
            self._dirty[key(url)] = None

    def save(self) -> None:
        """Keep what has changed. Call it when everything that it says was handed over."""
        dirty, self._dirty = self._dirty, {}
        if dirty:
            self._around.remember({name: known.dump() if known is not None else None for name, known in dirty.items()})

    def listed(self) -> Iterable[Known]:
        """What this crawl has listed so far."""
        return (known for known in self.pages.values() if known.listed == self.crawl)

    def stands_for(self, url: str) -> str:
        """The listed document that an address leads to over any number of others; empty when there is none."""
        seen: set[str] = set()
        while url and url not in seen:
            seen.add(url)
            known = self.pages.get(url)
            if known is None:
                return ""
            if known.listed == self.crawl and known.state in DOCUMENTS:
                return url
            url = known.target if known.state in ALIASES and known.visit == self.crawl else ""
        return ""


def likenesses(pages: Iterable[Known]) -> Mapping[str, int]:
    """Address → SimHash, in the order in which they were found."""
    return {known.url: known.likeness for known in sorted(pages, key=lambda each: each.order) if known.likeness}
