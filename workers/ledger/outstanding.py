"""What of a deletion is still to be done: a row each, until somebody has done it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, delete, select
from sqlalchemy.dialects import postgresql, sqlite

from workers.ledger.engine import Database
from workers.ledger.schema import outstanding

TENANT, COLLECTION, SOURCE, DOCUMENTS = "tenant", "collection", "source", "documents"
CACHE, PACK, INDEX, LEDGER, REDIS = "cache", "pack", "index", "ledger", "redis"
KINDS = (TENANT, COLLECTION, SOURCE, DOCUMENTS, CACHE, PACK, INDEX, LEDGER, REDIS)
ITSELF = "-"
"""Name of the one row of LEDGER, and of REDIS."""


@dataclass(frozen=True, slots=True)
class Chore:
    """One thing to do. It is the same chore only while `asked` is the same."""

    kind: str
    name: str
    asked: int
    since: float
    """When it was first asked for, in seconds since the epoch."""


def ask(connection: Connection, kind: str, names: Iterable[str], now: float) -> None:
    """Note what is to be done, again if it was noted before: whoever does it just now has then not done it."""
    rows = [{"kind": kind, "name": name, "asked": 1, "since": now} for name in sorted(set(names))]
    if not rows:
        return
    make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement = make(outstanding)
    connection.execute(statement.on_conflict_do_update(index_elements=["kind", "name"], set_={"asked": outstanding.c.asked + 1}), rows)


def listed(db: Database, *kinds: str) -> list[Chore]:
    """What there is to do, the oldest first; of all kinds when none is named."""
    query = select(outstanding.c.kind, outstanding.c.name, outstanding.c.asked, outstanding.c.since)
    if kinds:
        query = query.where(outstanding.c.kind.in_(kinds))
    with db.read() as connection:
        return [Chore(*row) for row in connection.execute(query.order_by(outstanding.c.since, outstanding.c.kind, outstanding.c.name))]


def done(db: Database, chore: Chore) -> None:
    """It was done, unless somebody asked again meanwhile."""
    with db.write() as connection:
        settle(connection, chore)


def settle(connection: Connection, chore: Chore) -> None:
    connection.execute(
        delete(outstanding).where(outstanding.c.kind == chore.kind, outstanding.c.name == chore.name, outstanding.c.asked == chore.asked)
    )
