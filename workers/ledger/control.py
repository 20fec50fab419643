"""Cancel, pause and resume: of a run, of a source, of a collection."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, Select, and_, exists, select, update

from pipeline.errors import NotFound
from workers.ledger import balance
from workers.ledger.engine import Database
from workers.ledger.schema import collections, documents, run_items, runs, sources

MOVING = ("ready", "queued", "retry")


def stop(db: Database, run_id: int) -> None:
    """Cancel what a run has not finished: no late worker can commit it any more. A run that has ended stays as it is."""
    with db.write() as connection:
        _stop(connection, run_id, db.now(connection))


def stop_all(db: Database, *, collection_id: str = "", source_id: str = "") -> list[int]:
    """Cancel every run of a collection or source that has not ended; returns which."""
    with db.write() as connection:
        now = db.now(connection)
        of_collection = runs.c.collection_id.in_([collection_id, *connection.scalars(_builds(collection_id))])
        mine = of_collection if collection_id else runs.c.source_id == source_id
        found = list(connection.scalars(select(runs.c.id).where(mine, runs.c.finished_at.is_(None)).order_by(runs.c.id)))
        for run_id in found:
            _stop(connection, run_id, now)
    return found


def _stop(connection: Connection, run_id: int, now: float) -> None:
    done = connection.execute(update(runs).where(runs.c.id == run_id, runs.c.finished_at.is_(None)).values(status="cancelling", scan="complete"))
    if done.rowcount != 1:
        return
    # Only what this run works on stops; a document that another run works on is merely waited for no longer.
    working: ColumnElement[bool] = exists().where(
        documents.c.id == run_items.c.document_id, documents.c.run_id == run_id, documents.c.status.in_(MOVING)
    )
    stopped = list(connection.scalars(select(run_items.c.document_id).where(run_items.c.run_id == run_id, run_items.c.outcome == "pending", working)))
    connection.execute(
        update(documents)
        .where(documents.c.run_id == run_id, documents.c.status.in_(MOVING))
        .values(status="cancelled", batch_id=None, updated_at=now)
    )
    connection.execute(
        update(run_items)
        .where(run_items.c.run_id == run_id, run_items.c.outcome == "pending")
        .values(outcome="cancelled", detail="the run was cancelled", stage=balance.where_it_stands())
    )
    for start in range(0, len(stopped), 500):
        others = [(document, "cancelled", 0, "the run that worked on it was cancelled") for document in stopped[start : start + 500]]
        balance.settle(connection, others, now)
    balance.finish(connection, [run_id], now)


def hold(db: Database, run_id: int, *, paused: bool) -> None:
    """Pause or resume: nothing new is formed for a paused run; batches under way finish their stage."""
    wanted, now_is = ("paused", ("queued", "running")) if paused else ("running", ("paused",))
    with db.write() as connection:
        connection.execute(update(runs).where(runs.c.id == run_id, runs.c.finished_at.is_(None), runs.c.status.in_(now_is)).values(status=wanted))


def hold_collection(db: Database, collection_id: str, *, paused: bool) -> None:
    """Pause or resume all work on a collection. Raises NotFound."""
    with db.write() as connection:
        done = connection.execute(update(collections).where(collections.c.id == collection_id).values(paused=int(paused)))
        connection.execute(update(collections).where(collections.c.id.in_(_builds(collection_id))).values(paused=int(paused)))
    if done.rowcount != 1:
        raise NotFound(f"there is no collection {collection_id!r}", hint="`dujiang collections list` shows those there are.")


def _builds(collection_id: str) -> Select[str]:
    """Rows under which the next generation of a collection is built."""
    main = collections.alias("main")
    same = (main.c.tenant == collections.c.tenant, main.c.name == collections.c.name, main.c.id == collection_id)
    return select(collections.c.id).join(main, and_(*same)).where(collections.c.status == "building")


def held_back() -> ColumnElement[bool]:
    """True for a run whose collection or source is paused; for a statement that selects from `runs`."""
    collection = exists().where(collections.c.id == runs.c.collection_id, collections.c.paused != 0)
    source = exists().where(sources.c.id == runs.c.source_id, sources.c.paused == 1)
    return collection | source
