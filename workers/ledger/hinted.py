"""Documents that an event of their source names: fetched again, in a run of their own."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import insert, select, update

from pipeline.contracts import Lane, Stage
from workers.ledger import balance
from workers.ledger.engine import Database
from workers.ledger.schema import documents, run_items
from workers.ledger.sources import SourceRow
from workers.ledger.work import CollectionRow

MOVING = ("ready", "queued", "retry")


def again(db: Database, row: SourceRow, collection: CollectionRow, ids: Sequence[str]) -> tuple[int, int]:
    """(documents that begin again, ids that nobody knows). What people deleted here, and what waits at the first stage anyway, is left alone."""
    with db.write() as connection:
        now = db.now(connection)
        known = connection.execute(
            select(documents.c.id, documents.c.status, documents.c.stage, documents.c.source_id).where(documents.c.id.in_(ids))
        ).all()
        mine = [found for found in known if found.source_id == row.id]
        chosen = [
            found.id
            for found in mine
            if found.status not in ("deleting", "deleted", "hiding") and not (found.status in MOVING and found.stage == Stage.LOAD.value)
        ]
        unknown = len(set(ids)) - len(mine)
        if not chosen:
            return 0, unknown
        of = {"tenant": row.tenant, "collection_id": collection.id, "collection": collection.name, "source": row.name, "source_id": row.id}
        run_id = balance.open_run(connection, now, **of, kind="hint", lane=Lane.INTERACTIVE, scan="complete")
        connection.execute(
            update(documents)
            .where(documents.c.id.in_(chosen))
            .values(
                run_id=run_id,
                lane=Lane.INTERACTIVE.value,
                stage=Stage.LOAD.value,
                status="ready",
                version=documents.c.version + 1,
                # The event says that the change mark is out of date, and not what it is now.
                revision_mark="",
                next_at=0.0,
                attempts=0,
                waits=0,
                waiting_since=None,
                lost=0,
                batch_id=None,
                chunks=0,
                error_stage="",
                error_code="",
                error_detail="",
                error_hint="",
                error_trace="",
                updated_at=now,
            )
        )
        items = [{"run_id": run_id, "document_id": document, "outcome": "pending", "chunks": 0, "detail": ""} for document in chosen]
        connection.execute(insert(run_items), items)
    return len(chosen), unknown
