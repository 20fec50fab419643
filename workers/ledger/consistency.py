"""Rows of the ledger that contradict each other: there should be none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, and_, func, insert, or_, select, update

from pipeline.contracts import Lane, Stage
from workers.ledger.engine import Database, upsert
from workers.ledger.removal import PATIENCE_S
from workers.ledger.schema import artifact_refs, batches, documents, run_items, runs
from workers.ledger.work import CollectionRow

SLICE = 500


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


def half_deleted(db: Database, collection_id: str) -> list[str]:
    """Keys of documents whose deletion nobody finished."""
    with db.read() as connection:
        old = documents.c.updated_at < db.now(connection) - PATIENCE_S
        return list(
            connection.scalars(select(documents.c.key).where(documents.c.collection_id == collection_id, documents.c.status == "deleting", old))
        )


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


def mend(db: Database, row: CollectionRow, rebuild: set[str], reload: set[str], stuck: set[str]) -> int | None:
    """One run in which documents are written again from kept outputs, or begun again from load; None when there is nothing to do.

    What stands in the store meanwhile goes on answering: a version is replaced by its equal.
    """
    ids = sorted(rebuild | reload | stuck)
    if not ids:
        return None
    with db.write() as connection:
        now = db.now(connection)
        values = {"tenant": row.tenant, "collection_id": row.id, "collection": row.name, "source": "audit --repair", "kind": "repair"}
        opened = insert(runs).values(**values, lane=Lane.BULK.value, status="queued", scan="complete", started_at=now)
        run_id = int(connection.execute(opened.returning(runs.c.id)).scalar_one())
        begun = 0
        for start in range(0, len(ids), SLICE):
            part = ids[start : start + SLICE]
            in_hand = and_(documents.c.status == "queued", documents.c.id.in_(stuck & set(part)))
            free = or_(documents.c.status.in_(("done", "dead", "skipped")), in_hand)
            chosen = select(documents.c.id, documents.c.version, documents.c.live_version).where(documents.c.id.in_(part))
            rows = connection.execute(chosen.where(documents.c.collection_id == row.id, free)).all()
            mine = [found.id for found in rows]
            if not mine:
                continue
            begun += len(mine)
            connection.execute(insert(run_items), [{"run_id": run_id, "document_id": name, "outcome": "pending"} for name in mine])
            common = {"status": "ready", "batch_id": None, "next_at": 0.0, "run_id": run_id, "attempts": 0, "waits": 0, "lost": 0, "updated_at": now}
            # Only the version that answers has outputs to be written again; one that failed after it begins anew.
            whole = [found.id for found in rows if found.id in rebuild - reload and found.version == found.live_version]
            anew = [found for found in rows if found.id in reload or (found.id in rebuild and found.id not in whole)]
            again = [name for name in mine if name not in whole and name not in {found.id for found in anew}]
            connection.execute(
                update(documents).where(documents.c.id.in_(whole)).values(**common, stage=Stage.INDEX.value, chunks=documents.c.live_chunks)
            )
            connection.execute(update(documents).where(documents.c.id.in_(again)).values(**common, stage=Stage.LOAD.value))
            _anew(connection, anew, common, now)
        if not begun:
            connection.execute(update(runs).where(runs.c.id == run_id).values(status="done", finished_at=now))
    return run_id if begun else None


def _anew(connection: Connection, found: Sequence[Row[*tuple[Any, ...]]], common: Mapping[str, object], now: float) -> None:
    """As a newer version, from the bytes that are kept or from where they came: equal bytes would count as unchanged otherwise."""
    raised = {"version": documents.c.version + 1, "live_hash": "", "stage": Stage.LOAD.value}
    ids = [row.id for row in found]
    kept = connection.execute(select(artifact_refs).where(artifact_refs.c.document_id.in_(ids), artifact_refs.c.stage == Stage.LOAD.value))
    newest = {row.id: row.version for row in found}
    live = {row.id: row.live_version for row in found}
    rows = [
        {**ref._mapping, "version": newest[ref.document_id] + 1, "created_at": now}  # pyright: ignore[reportPrivateUsage]
        for ref in kept
        if ref.version == live[ref.document_id]
    ]
    upsert(connection, artifact_refs, rows)
    connection.execute(update(documents).where(documents.c.id.in_(ids)).values(**dict(common) | raised))
