"""Web sites on loopback: several hosts over one server, pages that tests change, robots, sitemaps, conditional answers, traps, a resolver that lies.

python -m tests.simulators.web --port 0        the bundled site, its address printed
"""

from __future__ import annotations

import argparse
import gzip
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from urllib.parse import unquote, urlsplit

from tests.simulators.served import Answer, Call, Clock, Simulator

Script = Callable[[Call], Answer]
"""A page that a program makes."""


@dataclass(slots=True)
class Leaf:
    """One page of a host."""

    body: bytes
    media_type: str = "text/html; charset=utf-8"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict[str, str])
    etag: str | None = None
    """None: made from the body; empty: it has none."""

    def answer(self, call: Call) -> Answer:
        etag = f'"{blake2b(self.body, digest_size=8).hexdigest()}"' if self.etag is None else self.etag
        headers = {**({"content-type": self.media_type} if self.media_type else {}), **({"etag": etag} if etag else {}), **self.headers}
        if etag and self.status == 200 and call.headers.get("if-none-match") == etag:
            return Answer(304, headers={"etag": etag})
        body = b"" if call.method == "HEAD" else self.body
        return Answer(self.status, body, {"content-length": str(len(self.body)), **headers})


def page(title: str, *paragraphs: str, links: Sequence[str] = (), head: str = "") -> bytes:
    """A small page with its links in a list."""
    listed = "".join(f'<li><a href="{link}">{link}</a></li>' for link in links)
    text = "".join(f"<p>{paragraph}</p>" for paragraph in paragraphs)
    frame = f"<!doctype html><html><head><meta charset='utf-8'><title>{title}</title>{head}</head><body>"
    return f"{frame}<main><h1>{title}</h1>{text}</main><nav><ul>{listed}</ul></nav></body></html>".encode()


class Site:
    """One host: path (with its query) → page, redirect or script."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.leaves: dict[str, Leaf | Script] = {}
        self.robots: str | bytes | None = None
        self.soft = False
        """Answers 200 to what does not exist."""
        self.otherwise: Script | None = None

    def write(self, path: str, title: str = "", *paragraphs: str, links: Sequence[str] = (), head: str = "", **given: object) -> Leaf:
        leaf = self.leaves[unquote(path)] = Leaf(page(title or path, *paragraphs, links=links, head=head), **given)  # type: ignore[arg-type]
        return leaf

    def put(self, path: str, body: bytes, media_type: str = "text/html; charset=utf-8", **given: object) -> Leaf:
        leaf = self.leaves[unquote(path)] = Leaf(body, media_type, **given)  # type: ignore[arg-type]
        return leaf

    def redirect(self, path: str, target: str, status: int = 302) -> None:
        self.leaves[path] = Leaf(b"", "", status, {"location": target}, etag="")

    def sitemap(self, path: str, addresses: Sequence[str], *, index: bool = False, packed: bool = False, lastmod: str = "") -> None:
        outer, inner = ("sitemapindex", "sitemap") if index else ("urlset", "url")
        date = f"<lastmod>{lastmod}</lastmod>" if lastmod else ""
        rows = "".join(f"<{inner}><loc>{address}</loc>{date}</{inner}>" for address in addresses)
        body = f'<?xml version="1.0"?><{outer} xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{rows}</{outer}>'.encode()
        self.put(path, gzip.compress(body) if packed else body, "application/gzip" if packed else "application/xml")

    def answer(self, call: Call) -> Answer:
        if call.path == "/robots.txt":
            text = self.robots if isinstance(self.robots, bytes) else (self.robots or "").encode()
            return Answer(404) if self.robots is None else Answer(200, text, {"content-type": "text/plain"})
        whole = f"{call.path}?{call.raw_query}" if call.raw_query else call.path
        leaf = self.leaves.get(whole, self.leaves.get(call.path))
        if leaf is None and self.otherwise is not None:
            return self.otherwise(call)
        if leaf is None:
            missing = page("Not here", "The page that you look for is not on this server, it may have moved or never existed.", links=["/"])
            return Answer(200 if self.soft else 404, missing, {"content-type": "text/html"})
        return leaf.answer(call) if isinstance(leaf, Leaf) else leaf(call)


class Web(Simulator):
    """Hosts by name; the port is the server's. `resolver` gives every name of theirs the address 127.0.0.1."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.sites: dict[str, Site] = {}
        self.names: dict[str, list[list[str]]] = {}
        """Name → its addresses at the first, second, … look-up; the last one stays."""

    def site(self, name: str = "127.0.0.1") -> Site:
        return self.sites.setdefault(name, Site(name))

    def address(self, name: str = "127.0.0.1", path: str = "/") -> str:
        return f"http://{name}:{urlsplit(self.url).port}{path}"

    def resolver(self, host: str, _port: int) -> Sequence[str]:
        planned = self.names.get(host)
        if planned:
            return planned.pop(0) if len(planned) > 1 else planned[0]
        if host in self.sites:
            return ["127.0.0.1"]
        raise OSError(f"no such name: {host}")

    def answer(self, call: Call) -> Answer:
        host = call.headers.get("host", "").rpartition(":")[0] or call.headers.get("host", "")
        site = self.sites.get(host)
        return site.answer(call) if site is not None else Answer(421)

    def paths(self, pattern: str = "") -> list[str]:
        """What was asked for, robots.txt and sitemaps left out."""
        return [call.path for call in self.asked(pattern) if not call.path.endswith(("robots.txt", ".xml", ".xml.gz"))]


def large(site: Site, pages: int) -> None:
    """A site of so many pages, in sections of fifty, each with its neighbours' links."""
    sections = (pages + 49) // 50
    site.write("/", "Handbook", "All sections of a large handbook.", links=[f"/s{number}/" for number in range(sections)])
    words = "gauge river valve level water gate station reading radar rain basin channel pump alarm battery survey flow crest bank pipe".split()
    count = 1
    for section in range(sections):
        inside = range(section * 50, min(section * 50 + 50, pages))
        site.write(f"/s{section}/", f"Section {section}", f"Pages of section {section}.", links=[f"/s{section}/p{number}" for number in inside])
        count += 1
        for number in inside:
            if count >= pages:
                break
            count += 1
            told = [f"Page {number}: " + " ".join(words[(number * step + place * 7 + step) % 20] for place in range(60)) + "." for step in (3, 7, 11)]
            site.write(f"/s{section}/p{number}", f"Page {number}", *told, links=["/", f"/s{section}/", f"/s{section}/p{number + 1}"])


def main() -> None:
    from tests.simulators.web_site import fill

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    simulator = Web(Clock(real=True))
    fill(simulator.site())
    simulator.start(parser.parse_args().port)
    print(simulator.address(path="/handbook/"), flush=True)
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        simulator.stop()


if __name__ == "__main__":
    main()
