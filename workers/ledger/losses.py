"""Workers that died on a batch: their lease ends, and halving leads to the document at fault."""

from __future__ import annotations

from sqlalchemy import Connection, select, update

from pipeline.contracts import Lane, Stage
from workers.ledger import balance
from workers.ledger.batches import members, new_batch, record_attempt, stages_of
from workers.ledger.engine import Database
from workers.ledger.schema import batches, documents
from workers.ledger.work import Issue

POISON_AFTER = 3
"""Workers that one document may take with it while it is alone in its batch."""


def expire(db: Database, batch_id: int, token: int, *, reason: str) -> list[Issue]:
    """Take a lease from a worker that is gone or stuck, and issue its documents anew in two halves.

    Halving leads to the document that kills workers: alone in its batch, it may do so `POISON_AFTER` times.
    """
    with db.write() as connection:
        now = db.now(connection)
        row = connection.execute(
            update(batches)
            .where(batches.c.id == batch_id, batches.c.token == token, batches.c.status == "leased")
            .values(status="lost", finished_at=now)
            .returning(batches.c.tenant, batches.c.collection_id, batches.c.stages, batches.c.lane, batches.c.owner)
        ).first()
        if row is None:
            return []
        stages, lane = stages_of(row.stages), Lane(row.lane)
        found = connection.execute(
            select(documents.c.id, documents.c.run_id, documents.c.version, documents.c.lost, documents.c.chunks)
            .where(documents.c.batch_id == batch_id)
            .order_by(documents.c.id)
        ).all()
        connection.execute(update(batches).where(batches.c.id == batch_id).values(members=members(document.id for document in found)))
        for document in found:
            record_attempt(connection, document.id, document.run_id, document.version, stages[0], "lost", "worker_lost", reason, row.owner, now)
        if len(found) == 1 and found[0].lost + 1 >= POISON_AFTER:
            _quarantine(connection, found[0].id, stages[0], now)
            return []
        middle = (len(found) + 1) // 2
        issues: list[Issue] = []
        for half in (found[:middle], found[middle:]):
            if half:
                chunks = sum(document.chunks for document in half)
                issue = new_batch(connection, row.tenant, row.collection_id, stages, lane, size=len(half), chunks=chunks, now=now)
                connection.execute(
                    update(documents)
                    .where(documents.c.id.in_([document.id for document in half]))
                    .values(batch_id=issue.batch_id, lost=documents.c.lost + (1 if len(found) == 1 else 0), updated_at=now)
                )
                issues.append(issue)
        return issues


def _quarantine(connection: Connection, document_id: str, stage: Stage, now: float) -> None:
    detail = f"{POISON_AFTER} workers died on this document alone"
    connection.execute(
        update(documents)
        .where(documents.c.id == document_id)
        .values(
            status="dead",
            batch_id=None,
            error_stage=stage.value,
            error_code="poison",
            error_detail=detail,
            error_hint="Look at the worker's log, then remove or repair the document.",
            updated_at=now,
        )
    )
    balance.settle(connection, [(document_id, "failed", 0, detail)], now)
