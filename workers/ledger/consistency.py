"""Rows of the ledger that contradict each other: there should be none."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import and_, exists, func, literal, or_, select

from pipeline.contracts import Stage
from pipeline.identity import index_name
from workers.ledger.engine import Database
from workers.ledger.removal import PATIENCE_S
from workers.ledger.schema import OPEN, WAITING, batches, collections, documents, generations, run_items, runs

LATE_S = 60.0
"""How long after its end a lease may be left: a sweep takes it within seconds where one runs."""


@dataclass(frozen=True, slots=True)
class State:
    """Where a document stands."""

    key: str
    status: str
    stage: str
    version: int
    live_version: int | None
    live_chunks: int
    updated_at: float
    fetchable: bool
    """Its bytes can be had again: from a file, or from its source."""

    @property
    def indexing(self) -> bool:
        """Somebody may be writing it into the store just now."""
        return self.status == "queued" and self.stage == Stage.INDEX.value


def states(db: Database, collection_id: str) -> dict[str, State]:
    """Document id → where it stands, of all that the collection ever had."""
    columns = (documents.c.key, documents.c.status, documents.c.stage, documents.c.version, documents.c.live_version, documents.c.live_chunks)
    fetchable = or_(documents.c.path != "", documents.c.source_id != "")
    query = select(documents.c.id, *columns, documents.c.updated_at, fetchable).where(documents.c.collection_id == collection_id)
    with db.read() as connection:
        return {row[0]: State(*row[1:8], bool(row[8])) for row in connection.execute(query)}


def stranded(db: Database, collection_id: str) -> list[tuple[str, str, str]]:
    """(id, key, status) of documents that are queued in a batch which is closed or gone."""
    with db.read() as connection:
        rows = connection.execute(
            select(documents.c.id, documents.c.key, documents.c.status)
            .outerjoin(batches, batches.c.id == documents.c.batch_id)
            .where(
                documents.c.collection_id == collection_id,
                documents.c.status == "queued",
                or_(batches.c.id.is_(None), batches.c.status.not_in(("queued", "leased"))),
            )
        ).all()
    return [(row.id, row.key, row.status) for row in rows]


def waiting_for_nobody(db: Database, collection_id: str) -> list[tuple[str, str, str]]:
    """(id, key, status) of documents that wait for a run which has ended or is not there: batches are formed for open runs only."""
    with db.read() as connection:
        rows = connection.execute(
            select(documents.c.id, documents.c.key, documents.c.status)
            .outerjoin(runs, runs.c.id == documents.c.run_id)
            .where(documents.c.collection_id == collection_id, WAITING, or_(runs.c.id.is_(None), runs.c.finished_at.is_not(None)))
        ).all()
    return [(row.id, row.key, row.status) for row in rows]


def half_deleted(db: Database, collection_id: str) -> list[tuple[str, str]]:
    """(id, key) of documents whose deletion nobody finished."""
    return _half(db, collection_id, "deleting")


def half_hidden(db: Database, collection_id: str) -> list[tuple[str, str]]:
    """(id, key) of documents whose hiding nobody finished."""
    return _half(db, collection_id, "hiding")


def _half(db: Database, collection_id: str, status: str) -> list[tuple[str, str]]:
    with db.read() as connection:
        old = documents.c.updated_at < db.now(connection) - PATIENCE_S
        query = select(documents.c.id, documents.c.key).where(documents.c.collection_id == collection_id, documents.c.status == status, old)
        return [(row.id, row.key) for row in connection.execute(query)]


def unbalanced(db: Database, collection_id: str) -> list[tuple[int, int, int]]:
    """(run, documents with an outcome, documents) of runs that ended although a document has no outcome."""
    with db.read() as connection:
        pending = connection.execute(
            select(run_items.c.run_id, func.count())
            .join(runs, runs.c.id == run_items.c.run_id)
            .where(runs.c.collection_id == collection_id, runs.c.finished_at.is_not(None), run_items.c.outcome == "pending")
            .group_by(run_items.c.run_id)
        ).all()
        found: list[tuple[int, int, int]] = []
        for run_id, number in pending:
            total = connection.scalar(select(func.count()).select_from(run_items).where(run_items.c.run_id == run_id)) or 0
            found.append((run_id, total - number, total))
    return found


def endless(db: Database, collection_id: str) -> list[int]:
    """Runs whose listing is over and that wait for no document, and have not ended."""
    pending = exists(select(literal(1)).where(run_items.c.run_id == runs.c.id, run_items.c.outcome == "pending"))
    with db.read() as connection:
        old = runs.c.started_at < db.now(connection) - PATIENCE_S
        query = select(runs.c.id).where(runs.c.collection_id == collection_id, runs.c.finished_at.is_(None), runs.c.scan != "open", ~pending, old)
        return list(connection.scalars(query))


def overdue(db: Database) -> list[tuple[int, str, float]]:
    """(batch, owner, seconds since) of leases that ended and that nobody took over."""
    with db.read() as connection:
        now = db.now(connection)
        ended = and_(OPEN, batches.c.status == "leased", batches.c.lease_until < now - LATE_S)
        rows = connection.execute(select(batches.c.id, batches.c.owner, batches.c.lease_until).where(ended)).all()
    return [(row.id, row.owner, now - row.lease_until) for row in rows]


def indices(db: Database) -> frozenset[str]:
    """Names of all indices that the ledger knows of, whoever's they are."""
    with db.read() as connection:
        rows = connection.execute(select(collections.c.id, collections.c.tenant, collections.c.name, collections.c.generation)).all()
        names = {index_name(row.tenant, row.name, row.generation) for row in rows}
        owners = {row.id: (row.tenant, row.name) for row in rows}
        for row in connection.execute(select(generations.c.collection_id, generations.c.generation)):
            if row.collection_id in owners:
                names.add(index_name(*owners[row.collection_id], row.generation))
    return frozenset(names)
