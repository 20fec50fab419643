"""What a download told, written into the document's row."""

from __future__ import annotations

import json
from collections.abc import Iterable

from sqlalchemy import Connection, case, exists, update

from workers.ledger.schema import SOURCE_STOPPED, documents, sources
from workers.ledger.work import Advance, Setback


def downloaded(connection: Connection, batch_id: int, advances: Iterable[Advance]) -> None:
    """Address, size and metadata of items that were just fetched from their source. Title and media type go with the advance."""
    for advance in advances:
        told = advance.detail
        if told is None:
            continue
        values: dict[str, object] = {"url": told.url, "size": told.size, "meta": json.dumps(dict(told.metadata), ensure_ascii=False, sort_keys=True)}
        if told.again or told.revision:
            values["revision_mark"] = "" if told.again else told.revision
        connection.execute(update(documents).where(documents.c.id == advance.document_id, documents.c.batch_id == batch_id).values(**values))


def of_source(setback: Setback, now: float) -> dict[str, object]:
    """Columns that tell what a refusal means for a source's item."""
    values: dict[str, object] = {}
    if setback.again or setback.revision:
        values["revision_mark"] = "" if setback.again else setback.revision
    if setback.absence:
        values["absence"] = setback.absence
    if setback.hidden:
        values |= {"hidden_at": now, "live_version": None, "live_hash": "", "live_fingerprint": "", "live_chunks": 0}
    return values


def after(setback: Setback, now: float) -> object:
    """When a document is tried again: at once where its source was stopped for its credentials and has got new ones since."""
    if setback.code != "source_stopped":
        return now + setback.delay_s
    stopped = exists().where(sources.c.id == documents.c.source_id, sources.c.paused == SOURCE_STOPPED)
    return case((stopped, now + setback.delay_s), else_=now)
