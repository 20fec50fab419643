"""A web source in the test's own process, on the simulator's clock, with its names and the notes it keeps from one crawl to the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.contracts import RawDocument, SourceItem
from pipeline.contracts.sources import AccessLost, Json, Listed, Mark, Note, ScanEvent, ScopeDone, ScopeFailed, SourceSpec, Tombstone
from pipeline.load.web.connector import Web as Connector
from pipeline.load.web.connector import connect
from tests.simulators.served import Around
from tests.simulators.web import Web


class Crawled:
    """One source over a simulator."""

    def __init__(
        self, web: Web, entry: str = "", *, private: Sequence[str] = ("127.0.0.0/8",), secrets: dict[str, str] | None = None, **options: str
    ) -> None:
        self.web = web
        self.around = Around(web.clock, patience_s=5.0)
        given = {"entry_url": entry or web.address(), "delay_s": "0", **options}
        self.spec = SourceSpec("s1", "web", given, secrets or {}, 50_000_000, tuple(private))

    def change(self, **options: str) -> None:
        self.spec = SourceSpec("s1", "web", {**self.spec.options, **options}, self.spec.secrets, self.spec.max_bytes, self.spec.private)

    def connector(self) -> Connector:
        return connect(self.spec, self.around, resolve=self.web.resolver)

    def scan(self, mark: Json | None = None) -> Scanned:
        return Scanned(list(self.connector().scan(mark or {})))

    def fetch(self, path: str, host: str = "127.0.0.1") -> RawDocument:
        url = self.web.address(host, path)
        return self.connector().fetch(SourceItem(url, url=url))


class Scanned:
    """What one scan told, sorted."""

    def __init__(self, events: Sequence[ScanEvent]) -> None:
        self.events = events

    def _of(self, kind: type) -> Iterator[ScanEvent]:
        return (event for event in self.events if isinstance(event, kind))

    @property
    def listed(self) -> dict[str, Listed]:
        """Path with its query → event, the host left out."""
        return {event.item.key.split("/", 3)[3]: event for event in self.events if isinstance(event, Listed)}

    @property
    def paths(self) -> set[str]:
        return {f"/{path}" for path in self.listed}

    @property
    def gone(self) -> set[str]:
        return {"/" + event.key.split("/", 3)[3] for event in self.events if isinstance(event, Tombstone)}

    @property
    def lost(self) -> set[str]:
        return {"/" + event.key.split("/", 3)[3] for event in self.events if isinstance(event, AccessLost)}

    @property
    def failed(self) -> list[ScopeFailed]:
        return [event for event in self.events if isinstance(event, ScopeFailed)]

    @property
    def done(self) -> list[ScopeDone]:
        return [event for event in self.events if isinstance(event, ScopeDone)]

    @property
    def marks(self) -> list[Mark]:
        return [event for event in self.events if isinstance(event, Mark)]

    @property
    def notes(self) -> str:
        return "\n".join(event.text for event in self.events if isinstance(event, Note))


def emptied(web: Web) -> Web:
    """A server that many tests share, as new."""
    with web.lock:
        for held in (web.sites, web.names, web.calls, web.faults, web.after):
            held.clear()
        web.__dict__.pop("resolver", None)
    return web


def linked(web: Web, *paths: str, host: str = "127.0.0.1") -> None:
    """A start page and pages that it links to."""
    site = web.site(host)
    site.write("/", "Start", f"The start of a small site, {host}.", links=paths)
    for path in paths:
        site.write(path, f"Page {path}", f"What stands on the page {path} stands nowhere else.")
