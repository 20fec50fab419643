"""Events that a source sends: hints that a document should be looked at now. Listings stay the truth, so that a lost event costs time only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from pipeline.errors import NotFound
from pipeline.identity import document_id
from pipeline.load import connectors
from workers.fetching import key_of, spec_of
from workers.ledger import catalog, hinted, sources
from workers.runtime import Runtime

MOST = 200
"""Keys of one event that are looked at."""


class Hinting(Protocol):
    """A connector whose source sends events."""

    def decode_hint(self, headers: Mapping[str, str], body: bytes) -> list[str]: ...


class Answering(Protocol):
    """A connector whose source wants to hear something back, such as a challenge."""

    def answer_hint(self, headers: Mapping[str, str], body: bytes) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Heard:
    """What became of one event."""

    answer: bytes
    """JSON to send back; empty for none."""
    looked_at: int
    """Documents that are fetched again because of it."""


def hear(runtime: Runtime, source_id: str, headers: Mapping[str, str], body: bytes) -> Heard:
    """Fetch again what an event names; what nobody knows yet begins a sync. A source that is paused hears nothing.

    Raises NotFound for a source without events, and what the connector raises for an event that is not genuine: Forbidden, Malformed.
    """
    row = sources.by_id(runtime.db, source_id)
    connector = connectors.create(spec_of(runtime.settings, row), runtime.surroundings(row, lambda: None)) if row is not None else None
    if row is None or not hasattr(connector, "decode_hint"):
        raise NotFound("there is no source that hears events under this address", code="source_not_found")
    keys = cast("Hinting", connector).decode_hint({name.lower(): value for name, value in headers.items()}, body)[:MOST]
    answer = cast("Answering", connector).answer_hint(headers, body) if hasattr(connector, "answer_hint") else b""
    if row.paused or not keys:
        return Heard(answer, 0)
    collection = catalog.find(runtime.db, row.tenant, row.collection)
    ids = [document_id(row.tenant, collection.name, key_of(row.name, key)) for key in _plain(keys)]
    looked_at, unknown = hinted.again(runtime.db, row, collection, ids)
    if unknown:
        with runtime.db.write() as connection:
            sources.open_sync(connection, row, runtime.db.now(connection), full=False)
    return Heard(answer, looked_at)


def _plain(keys: Sequence[str]) -> list[str]:
    return [key for key in dict.fromkeys(keys) if "\0" not in key]
