"""Connectors at work in this process: made once a thread and source, and made anew when a person changed the source."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pipeline.contracts import RawDocument, Scalar, SourceItem
from pipeline.contracts.documents import Asset
from pipeline.contracts.sources import SourceSpec
from pipeline.errors import BrokenContract, Cancelled, TooLarge, Unauthorised, Unavailable
from pipeline.identity import content_hash, fingerprint
from pipeline.load import connectors
from pipeline.protocols import Connector, Surroundings
from pipeline.settings import Settings
from workers import sealing
from workers.ledger import sources
from workers.ledger.engine import Database
from workers.ledger.sources import SourceRow
from workers.ledger.work import Detail

FRESH_S = 2.0
"""How long a connector is used without a look at whether its source was changed or stopped."""
PAUSED_WAIT_S = 0.5
"""Nothing is begun for a paused source; this is how soon its documents go on once it is resumed."""
REFUSED_WAIT_S = 60.0

Surround = Callable[[SourceRow, Callable[[], None]], Surroundings]
"""(source, look whether the run was stopped) → what its connector is given."""


def spec_of(settings: Settings, row: SourceRow) -> SourceSpec:
    """A source with its secrets opened. Raises Unauthorised when they cannot be."""
    secrets = sealing.read(sealing.unseal(settings, row.id, row.secrets))
    private = tuple(part for part in settings.private_hosts.replace(",", " ").split() if part)
    return SourceSpec(row.id, row.kind, sealing.read(row.options), secrets, settings.max_file_mb * 1_000_000, private)


def scope_of(row: SourceRow) -> str:
    """Fingerprint of the options that say what is listed. Raises Unsupported for a kind that is not installed."""
    named = [option.name for option in connectors.kind(row.kind).options if option.scope]
    return fingerprint({name: row.options.get(name, "") for name in named})


def key_of(source: str, key: str) -> str:
    """A document's key in its collection: two sources never share a document."""
    return f"{source}:{key}"


@dataclass(frozen=True, slots=True)
class _Made:
    connector: Connector
    row: SourceRow
    looked_at: float


class Fetcher:
    """Downloads items of sources. Safe for threads."""

    def __init__(self, settings: Settings, db: Database, surround: Surround) -> None:
        self._settings, self._db, self._surround = settings, db, surround
        self._here = threading.local()
        self._refused: dict[str, float] = {}

    def fetch(self, source_id: str, item: SourceItem) -> tuple[RawDocument, Detail]:
        """One item, and what its download told. `item.key` is the document's key.

        Raises what the connector raises. Refused credentials stop the whole source, and its documents wait: no call is made with them again.
        """
        made = self._made(source_id)
        own = item.key.removeprefix(key_of(made.row.name, ""))
        try:
            raw = made.connector.fetch(replace(item, key=own))
        except Unauthorised as error:
            self._refused[source_id] = made.row.updated_at
            stopped = sources.stop(self._db, made.row, error.detail)
            raise _refused(made.row, REFUSED_WAIT_S if stopped else PAUSED_WAIT_S) from error
        checked = sound(raw, item, self._settings.max_file_mb * 1_000_000)
        return checked, detail(checked, item)

    def _made(self, source_id: str) -> _Made:
        held: dict[str, _Made] = self._here.__dict__.setdefault("held", {})
        made, now = held.get(source_id), time.monotonic()
        if made is not None and now - made.looked_at < FRESH_S and self._refused.get(source_id) != made.row.updated_at:
            return made
        row = sources.by_id(self._db, source_id)
        if row is None:
            raise Cancelled("the source was deleted")
        if row.paused == sources.STOPPED:
            raise _refused(row)
        if row.paused:
            raise Unavailable(
                f"source {row.name!r} is paused",
                after=PAUSED_WAIT_S,
                dependency=True,
                hint=f"`dujiang sources resume {row.name}` lets it go on.",
                code="source_paused",
            )
        if made is not None and made.row.updated_at == row.updated_at:
            made = _Made(made.connector, row, now)
        else:
            made = _Made(connectors.create(self._open(row), self._surround(row, lambda: None)), row, now)
        held[source_id] = made
        return made

    def _open(self, row: SourceRow) -> SourceSpec:
        try:
            return spec_of(self._settings, row)
        except Unauthorised as error:
            sources.stop(self._db, row, error.detail)
            raise _refused(row) from error


def _refused(row: SourceRow, after: float = REFUSED_WAIT_S) -> Unavailable:
    return Unavailable(
        f"the credentials of source {row.name!r} were refused",
        after=after,
        dependency=True,
        hint=f"Give valid ones with `dujiang sources update {row.name}`; the documents go on from there.",
        code="source_stopped",
    )


def sound(raw: RawDocument, item: SourceItem, max_bytes: int) -> RawDocument:
    """What a connector gave, under our own key and hash. Raises BrokenContract, TooLarge."""
    if not isinstance(raw, RawDocument) or not isinstance(raw.data, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BrokenContract(f"the connector gave no document for {item.key}")
    if len(raw.data) > max_bytes:
        raise TooLarge(f"{item.key} has {len(raw.data) / 1e6:,.0f} MB; the limit is {max_bytes / 1e6:,.0f} MB", hint="Raise DUJIANG_MAX_FILE_MB.")
    return replace(raw, item=replace(raw.item, key=item.key), sha256=content_hash(raw.data))


def detail(raw: RawDocument, item: SourceItem) -> Detail:
    """What the ledger keeps of a download: the six fields of a crawl, its assets, and what the parser must know."""
    facts: dict[str, Scalar | list[str]] = dict(item.metadata)
    crawled = raw.crawled
    if crawled is not None:
        facts |= crawled.metadata
        facts |= {"content_length": crawled.content_length, "crawl_timestamp": crawled.crawl_timestamp.isoformat()}
    else:
        facts["crawl_timestamp"] = datetime.now(UTC).isoformat(timespec="seconds")
    if raw.charset:
        facts["charset"] = raw.charset
    if raw.assets:
        facts["assets"] = [_asset(asset) for asset in raw.assets]
    title = (crawled.title if crawled else "") or raw.item.title or item.title
    url = (crawled.url if crawled else "") or raw.item.url or item.url
    revision = raw.item.revision if raw.item.revision != item.revision else ""
    waits = any(asset.state == "pending" for asset in raw.assets)
    return Detail(title, url, raw.media_type or item.media_type, len(raw.data), facts, revision, again=waits)


def _asset(asset: Asset) -> str:
    parts = (asset.kind, asset.name, asset.state, asset.detail)
    return " ".join(part for part in parts if part)
