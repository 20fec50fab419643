"""Documents that are fetched again although no listing says that they changed: an event names them, or something of them is still to be had."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, func, insert, select, update

from pipeline.contracts import Lane, Stage
from workers.ledger import balance
from workers.ledger.engine import Database
from workers.ledger.schema import OF_SOURCE, documents, run_items
from workers.ledger.sources import Claim, SourceRow, renew
from workers.ledger.work import CollectionRow

MOVING = ("ready", "queued", "retry")
SLICE = 500


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
        # The event says that the change mark is out of date, and not what it is now.
        _begin(connection, chosen, run_id, Lane.INTERACTIVE, now)
    return len(chosen), unknown


def unfinished(db: Database, claim: Claim, *, lease_s: float) -> int:
    """Fetch again, in a run that lists changes only, what has no change mark and was not listed: it failed, or its picture is yet to come.

    Returns how many documents; 0 when the claim was lost, too.
    """
    with db.write() as connection:
        now = db.now(connection)
        if not renew(connection, claim, now + lease_s):
            return 0
        mine = (documents.c.source_id == claim.source.id, OF_SOURCE, documents.c.shadow_of == "", documents.c.absence == "")
        left = (documents.c.revision_mark == "", documents.c.status.in_(("dead", "done")), func.coalesce(documents.c.seen_run, 0) != claim.run_id)
        chosen = list(connection.scalars(select(documents.c.id).where(*mine, *left)))
        for start in range(0, len(chosen), SLICE):
            part = chosen[start : start + SLICE]
            _begin(connection, part, claim.run_id, Lane.BULK, now)
            connection.execute(update(documents).where(documents.c.id.in_(part)).values(seen_run=claim.run_id))
    return len(chosen)


def _begin(connection: Connection, ids: Sequence[str], run_id: int, lane: Lane, now: float) -> None:
    connection.execute(
        update(documents)
        .where(documents.c.id.in_(ids))
        .values(
            run_id=run_id,
            lane=lane.value,
            stage=Stage.LOAD.value,
            status="ready",
            version=documents.c.version + 1,
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
    connection.execute(insert(run_items), [{"run_id": run_id, "document_id": key, "outcome": "pending", "chunks": 0, "detail": ""} for key in ids])
