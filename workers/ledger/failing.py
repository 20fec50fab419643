"""Dead letters that a person acts on: replayed as a run of their own, or taken off the list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from sqlalchemy import ColumnElement, Connection, Select, and_, case, insert, select, update

from pipeline.contracts import Lane, Stage
from workers.ledger import balance
from workers.ledger.browse import run_number
from workers.ledger.engine import Database
from workers.ledger.schema import collections, documents, run_items
from workers.views import Selection

SLICE = 500
"""Documents of one statement."""
CLEARED: dict[str, object] = {
    "attempts": 0,
    "waits": 0,
    "lost": 0,
    "waiting_since": None,
    "error_stage": "",
    "error_code": "",
    "error_detail": "",
    "error_hint": "",
    "error_trace": "",
}


def _where(selection: Selection) -> ColumnElement[bool]:
    """The condition on `documents` joined to `collections`. Raises NotFound for a run id that is none."""
    found: list[ColumnElement[bool]] = [documents.c.status == "dead", documents.c.tenant == selection.tenant]
    if selection.document_ids:
        found.append(documents.c.id.in_(selection.document_ids))
    if selection.collections:
        found.append(collections.c.name.in_(selection.collections))
    if selection.run_id:
        found.append(documents.c.run_id == run_number(selection.run_id))
    if selection.code:
        found.append(documents.c.error_code == selection.code)
    if selection.stage:
        found.append(documents.c.error_stage == selection.stage)
    return and_(*found)


def _selected(selection: Selection, *columns: ColumnElement[Any]) -> Select[Any]:
    return select(*columns).join(collections, collections.c.id == documents.c.collection_id).where(_where(selection))


def count(db: Database, selection: Selection) -> dict[str, int]:
    """Collection → dead letters selected there."""
    with db.read() as connection:
        names = [str(row[0]) for row in connection.execute(_selected(selection, collections.c.name))]
    return {name: names.count(name) for name in sorted(set(names))}


def replay(db: Database, selection: Selection) -> list[int]:
    """Begin again with what failed, at the stage that failed; returns one run for each collection.

    Outputs of earlier stages are used again; where they are gone, the document starts from load by itself. A version that answers
    goes on answering. Called twice, the second call finds nothing any more.
    """
    with db.write() as connection:
        now = db.now(connection)
        query = _selected(selection, documents.c.id, documents.c.collection_id, collections.c.name)
        rows = cast("list[tuple[str, str, str]]", connection.execute(query.with_for_update(of=documents)).all())
        by_collection: dict[tuple[str, str], list[str]] = {}
        for document_id, collection_id, name in rows:
            by_collection.setdefault((collection_id, name), []).append(document_id)
        return [_again(connection, selection.tenant, of, name, ids, now) for (of, name), ids in sorted(by_collection.items())]


def _again(connection: Connection, tenant: str, collection_id: str, name: str, ids: Sequence[str], now: float) -> int:
    lane = Lane.INTERACTIVE if len(ids) == 1 else Lane.BULK
    of = {"tenant": tenant, "collection_id": collection_id, "collection": name}
    run_id = balance.open_run(connection, now, **of, source="failures replay", kind="replay", lane=lane, scan="complete")
    stages = [stage.value for stage in Stage]
    failed_at = case((documents.c.error_stage.in_(stages), documents.c.error_stage), else_=Stage.LOAD.value)
    for start in range(0, len(ids), SLICE):
        part = ids[start : start + SLICE]
        connection.execute(insert(run_items), [{"run_id": run_id, "document_id": document, "outcome": "pending"} for document in part])
        connection.execute(
            update(documents)
            .where(documents.c.id.in_(part))
            .values(**CLEARED, stage=failed_at, status="ready", next_at=0.0, run_id=run_id, lane=lane.value, batch_id=None, updated_at=now)
        )
    return run_id


def discard(db: Database, selection: Selection) -> int:
    """Take dead letters off the list; returns how many. What answers goes on answering, and the next ingest takes the document up again."""
    with db.write() as connection:
        now = db.now(connection)
        ids = [str(row[0]) for row in connection.execute(_selected(selection, documents.c.id).with_for_update(of=documents))]
        for start in range(0, len(ids), SLICE):
            connection.execute(
                update(documents)
                .where(documents.c.id.in_(ids[start : start + SLICE]))
                .values(**CLEARED, status=case((documents.c.live_version.is_(None), "skipped"), else_="done"), updated_at=now)
            )
    return len(ids)
