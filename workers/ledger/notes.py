"""What connectors keep between their scans beyond a mark, per source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sqlalchemy import Column, String, Table, Text, delete, select

from workers.ledger.engine import Database, upsert
from workers.ledger.schema import metadata

SLICE = 500

source_notes = Table(
    "source_notes",
    metadata,
    Column("source_id", String(32), primary_key=True),
    Column("key", String(64), primary_key=True),
    Column("value", Text, nullable=False),
    sqlite_with_rowid=False,
)
"""What a connector wants to find again and is too much for a mark: the pages that a crawl knows. It goes with its source."""


def read(db: Database, source_id: str) -> Iterator[tuple[str, str]]:
    """(key, value) of every note of a source, in no order."""
    last = ""
    while True:
        query = select(source_notes.c.key, source_notes.c.value).where(source_notes.c.source_id == source_id, source_notes.c.key > last)
        with db.read() as connection:
            rows = connection.execute(query.order_by(source_notes.c.key).limit(SLICE)).all()
        yield from ((row.key, row.value) for row in rows)
        if len(rows) < SLICE:
            return
        last = rows[-1].key


def write(db: Database, source_id: str, notes: Mapping[str, str | None]) -> None:
    """Keep notes, in place of those with the same key; None drops one."""
    kept = [{"source_id": source_id, "key": key, "value": value} for key, value in notes.items() if value is not None]
    dropped = [key for key, value in notes.items() if value is None]
    for start in range(0, max(len(kept), len(dropped)), SLICE):
        with db.write() as connection:
            upsert(connection, source_notes, kept[start : start + SLICE])
            some = dropped[start : start + SLICE]
            if some:
                connection.execute(delete(source_notes).where(source_notes.c.source_id == source_id, source_notes.c.key.in_(some)))
