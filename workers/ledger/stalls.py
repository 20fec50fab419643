"""Signs of workers that are alive and consume nothing."""

from __future__ import annotations

from sqlalchemy import select

from workers.ledger.engine import Database
from workers.ledger.schema import batches


def waiting(db: Database, seconds: float) -> set[str]:
    """Queues with a batch that was published longer ago than that and is still not claimed."""
    with db.read() as connection:
        now = db.now(connection)
        return set(connection.scalars(select(batches.c.queue).where(batches.c.status == "queued", batches.c.published_at < now - seconds).distinct()))


def owners(db: Database) -> set[str]:
    """Who holds a lease now."""
    with db.read() as connection:
        return set(connection.scalars(select(batches.c.owner).where(batches.c.status == "leased").distinct()))
