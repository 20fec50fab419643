"""A source that a test writes: what it holds, refuses and breaks off at stands in a JSON file, so that workers in other processes see it, too.

It comes in by an entry point, as a connector of somebody else would (tests/plugins).
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pipeline.contracts import CrawledDocument, RawDocument, SourceItem
from pipeline.contracts.documents import Asset
from pipeline.contracts.sources import (
    AccessLost,
    Evidence,
    Json,
    Listed,
    Mark,
    Presence,
    ScanEvent,
    ScopeDone,
    ScopeFailed,
    SourceCheck,
    SourceKind,
    SourceOption,
    SourceSpec,
    Tombstone,
)
from pipeline.errors import (
    Forbidden,
    Gone,
    Malformed,
    PipelineError,
    QuotaExhausted,
    RateLimited,
    TooLarge,
    Unauthorised,
    Unavailable,
    Unchanged,
    Unsupported,
)
from pipeline.load.files import load
from pipeline.protocols import Surroundings

PLUGINS = Path(__file__).resolve().parents[1] / "plugins"
"""To be put on Python's path, so that the entry point is found."""

KIND = SourceKind(
    "shelf",
    "A shelf that a test fills.",
    "tests.simulators.shelf:create",
    (
        SourceOption("path", "The file that says what is on it.", required=True),
        SourceOption("row", "Which row to list.", scope=True),
        SourceOption("token", "Opens it.", secret=True),
    ),
    events=True,
)


@dataclass
class Shelf:
    """The file's contents, for the test that writes it. Use `edit` to change it."""

    path: Path
    items: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Key → text, revision, title, url, path, scope, metadata."""
    gone: list[str] = field(default_factory=list[str])
    """Keys that a scan tells of as deleted."""
    lost: list[str] = field(default_factory=list[str])
    """Keys that a scan tells of as not to be read any more."""
    failed: dict[str, str] = field(default_factory=dict[str, str])
    """Scope → code: these cannot be listed."""
    delta: bool = False
    quiet: bool = False
    """A scan lists nothing, as one of changes does when there are none."""
    marks: int = 0
    """A mark after so many items; 0: none."""
    fetches: dict[str, str] = field(default_factory=dict[str, str])
    """Key → failure of its download."""
    probes: dict[str, str] = field(default_factory=dict[str, str])
    """Key → presence; an empty table means that nothing is known of any."""
    raises: dict[str, str] = field(default_factory=dict[str, str])
    """Number of items after which a scan breaks off → failure, once each."""
    token: str = ""
    """What the secret must be; empty: nothing is asked."""
    wait: str = ""
    """A scan waits before its end as long as this file exists."""
    pending: list[str] = field(default_factory=list[str])
    """Keys whose picture is not to be had yet."""
    promised: int = 0
    """So many items more than there are, each scope says."""

    def save(self) -> Shelf:
        temporary = self.path.with_suffix(".tmp")
        values = {name: value for name, value in self.__dict__.items() if name != "path"}
        temporary.write_text(json.dumps(values), encoding="utf-8")
        temporary.replace(self.path)
        return self

    @contextmanager
    def edit(self) -> Iterator[Shelf]:
        yield self
        self.save()

    def put(self, key: str, text: str = "", *, scope: str = "main", revision: str | None = None, **more: Any) -> None:
        """An item whose change mark is its text, unless another is given."""
        text = text or f"# {key}\n\nThis is the page called {key}, and it says something of its own."
        self.items[key] = {"text": text, "scope": scope, "revision": f"r-{hash_of(text)}" if revision is None else revision, "title": key, **more}

    def calls(self, verb: str = "") -> list[str]:
        """What was asked so far: ``scan``, ``list KEY``, ``fetch KEY``, ``probe KEY``."""
        log = self.path.with_suffix(".log")
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        return [line for line in lines if line.startswith(verb)]

    def forget_calls(self) -> None:
        self.path.with_suffix(".log").unlink(missing_ok=True)


def hash_of(text: str) -> str:
    import hashlib

    return hashlib.sha256(text.encode()).hexdigest()[:12]


def filled(path: Path, *keys: str, scope: str = "main") -> Shelf:
    """A shelf with a page for each key."""
    shelf = Shelf(path)
    for key in keys:
        shelf.put(key, scope=scope)
    return shelf.save()


def failure(name: str) -> PipelineError:
    """By its name in the tests."""
    after = datetime.now(UTC) + timedelta(seconds=1)
    table: Mapping[str, PipelineError] = {
        "unauthorised": Unauthorised("the token was refused"),
        "forbidden": Forbidden("this page is not for us"),
        "gone": Gone("it is not there"),
        "unchanged": Unchanged("304"),
        "malformed": Malformed("no page"),
        "unsupported": Unsupported("a drawing"),
        "too_large": TooLarge("too large"),
        "unavailable": Unavailable("503", after=0.2),
        "limited": RateLimited("429", after=0.2),
        "quota": QuotaExhausted("no calls left today", until=after),
    }
    return table[name]


def create(spec: SourceSpec, around: Surroundings) -> Connector:
    return Connector(spec, around)


class Connector:
    """Reads the file anew at every call."""

    def __init__(self, spec: SourceSpec, around: Surroundings) -> None:
        self._spec, self._around, self._path = spec, around, Path(spec.options["path"])

    def _shelf(self) -> Shelf:
        shelf = Shelf(self._path, **json.loads(self._path.read_text(encoding="utf-8")))
        if shelf.token and self._spec.secrets.get("token") != shelf.token:
            self._say("refused")
            raise failure("unauthorised")
        return shelf

    def _say(self, line: str) -> None:
        with self._path.with_suffix(".log").open("a", encoding="utf-8") as log:
            log.write(line + "\n")

    def _once(self, place: str) -> bool:
        """True the first time that anybody comes by here."""
        try:
            os.close(os.open(self._path.with_suffix(f".{place}"), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def validate(self) -> list[SourceCheck]:
        self._shelf()
        return [SourceCheck("token", True)]

    def scan(self, checkpoint: Json) -> Iterator[ScanEvent]:
        shelf = self._shelf()
        self._say(f"scan {json.dumps(checkpoint)}")
        row = self._spec.options.get("row", "")
        items = {key: item for key, item in shelf.items.items() if item["scope"] not in shelf.failed and (not row or item["scope"] == row)}
        items = {} if shelf.quiet else items
        start = int(str(checkpoint.get("at", 0)))
        for number, (key, item) in enumerate(items.items()):
            self._around.check()
            self._break_off(shelf, number)
            if number >= start:
                self._say(f"list {key}")
                yield Listed(self._item(key, item), item["scope"])
            if shelf.marks and number % shelf.marks == shelf.marks - 1:
                yield Mark({"at": number + 1})
        self._break_off(shelf, len(items))
        yield from [Tombstone(key, Evidence.DELETED) for key in shelf.gone]
        yield from [AccessLost(key) for key in shelf.lost]
        while shelf.wait and os.path.exists(shelf.wait):
            self._around.sleep(0.02)
        for scope in sorted({str(item["scope"]) for item in items.values()} | ({"main"} - set(shelf.failed) if not row else {row})):
            count = sum(item["scope"] == scope for item in items.values())
            yield ScopeDone(scope, count + shelf.promised, shelf.delta)
        yield from [ScopeFailed(scope, code, "it does not answer", "Wait.") for scope, code in shelf.failed.items()]
        if shelf.delta:
            yield Mark({"at": len(items), "since": len(items)})

    def _break_off(self, shelf: Shelf, number: int) -> None:
        name = shelf.raises.get(str(number))
        if name is None or not self._once(f"raised-{number}"):
            return
        self._say(f"break {name}")
        if name == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "bug":
            raise ZeroDivisionError("a bug of the connector")
        raise failure(name)

    def _item(self, key: str, item: Mapping[str, Any]) -> SourceItem:
        return SourceItem(
            key, item["revision"], item["title"], item.get("url", f"https://shelf.test/{key}"), item.get("path", ""), "text/markdown",
            metadata=item.get("metadata", {}),
        )  # fmt: skip

    def fetch(self, item: SourceItem) -> RawDocument:
        shelf = self._shelf()
        self._say(f"fetch {item.key}")
        refused = shelf.fetches.get(item.key)
        if refused is not None:
            raise failure(refused)
        held = shelf.items.get(item.key)
        if held is None:
            raise failure("gone")
        raw = load(item, str(held["text"]).encode())
        raw = replace(raw, item=replace(item, revision=held["revision"]))
        crawled = CrawledDocument(item.url, item.title, held["text"], len(held["text"]), datetime(2026, 1, 2, tzinfo=UTC), {"author": "somebody"})
        assets = (Asset("plan.png", "img-1", state="pending"),) if item.key in shelf.pending else ()
        return RawDocument(raw.item, raw.data, raw.sha256, "text/markdown", crawled=crawled, assets=assets)

    def probe(self, keys: Sequence[str]) -> Mapping[str, Presence]:
        shelf = self._shelf()
        for key in keys:
            self._say(f"probe {key}")
        return {key: Presence(shelf.probes.get(key, "unknown")) for key in keys}

    def decode_hint(self, headers: Mapping[str, str], body: bytes) -> list[str]:
        if headers.get("x-shelf-signature") != signature(self._spec.secrets.get("token", ""), body):
            raise Forbidden("the event is not signed with the shelf's token")
        return json.loads(body).get("keys", [])

    def answer_hint(self, headers: Mapping[str, str], body: bytes) -> bytes:
        return json.dumps({"challenge": json.loads(body).get("challenge", "")}).encode()


def signature(token: str, body: bytes) -> str:
    """As the shelf signs its events."""
    return hash_of(token + body.decode())
