"""What a batch's number, as Flower and the logs show it, stood for."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row, or_, select

from pipeline.errors import NotFound
from workers.batch_views import BatchDocumentView, BatchView
from workers.ledger.browse import run_name
from workers.ledger.catalog import moment
from workers.ledger.engine import Database
from workers.ledger.schema import batches, collections, documents, runs

KEPT_DAYS = 7


def batch(db: Database, batch_id: int, *, tenant: str) -> BatchView:
    """One batch with its documents. Raises NotFound, also for one that was tidied away."""
    with db.read() as connection:
        row = connection.execute(
            select(batches, collections.c.name.label("collection"))
            .outerjoin(collections, collections.c.id == batches.c.collection_id)
            .where(batches.c.id == batch_id, batches.c.tenant == tenant)
        ).first()
        if row is None:
            raise NotFound(
                f"there is no batch {batch_id}",
                hint=f"Closed batches are forgotten after {KEPT_DAYS} days; `dujiang runs show` has the documents of a run.",
                code="batch_not_found",
            )
        ids = [name for name in row.members.split("\n") if name]
        found = connection.execute(
            select(
                documents.c.id,
                documents.c.key,
                documents.c.run_id,
                documents.c.stage,
                documents.c.status,
                documents.c.error_detail,
                runs.c.collection,
            )
            .join(runs, runs.c.id == documents.c.run_id)
            .where(or_(documents.c.id.in_(ids), documents.c.batch_id == batch_id), documents.c.status != "deleted")
            .order_by(documents.c.key)
        ).all()
    return _view(row, tuple(_document(one) for one in found))


def label(db: Database, batch_id: int) -> str:
    """A batch in a few words: ``batch 15, run_3, 64 documents``; of one that was tidied away the number alone. Raises Unavailable."""
    with db.read() as connection:
        row = connection.execute(select(batches.c.size, batches.c.members).where(batches.c.id == batch_id)).first()
        if row is None:
            return f"batch {batch_id}"
        first = row.members.partition("\n")[0]
        mine = documents.c.id == first if first else documents.c.batch_id == batch_id
        run_id = connection.scalar(select(documents.c.run_id).where(mine).limit(1))
    run = "" if run_id is None else f", {run_name(run_id)}"
    return f"batch {batch_id}{run}, {row.size} document{'' if row.size == 1 else 's'}"


def _document(row: Row[*tuple[Any, ...]]) -> BatchDocumentView:
    detail = row.error_detail if row.status in ("dead", "retry") else ""
    return BatchDocumentView(row.id, row.key, row.collection, run_name(row.run_id), row.stage, row.status, detail)


def _view(row: Row[*tuple[Any, ...]], members: tuple[BatchDocumentView, ...]) -> BatchView:
    return BatchView(
        batch_id=row.id,
        status=row.status,
        stages=tuple(row.stages.split(",")),
        queue=row.queue,
        lane=row.lane,
        token=row.token,
        owner=row.owner,
        collection=row.collection or "",
        size=row.size,
        chunks=row.chunks,
        created_at=moment(row.created_at),
        finished_at=moment(row.finished_at) if row.finished_at else None,
        seconds=round(row.seconds, 3),
        documents=members,
    )
