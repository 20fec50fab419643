"""Runs and their balance: each document of a run ends in exactly one outcome, and a run ends with its last."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, bindparam, case, exists, func, insert, select, update

from pipeline.contracts import Lane, Stage
from workers.ledger.schema import documents, run_items, runs

_PENDING = run_items.c.outcome == "pending"
_WAITING = select(run_items.c.run_id).where(run_items.c.document_id.in_(bindparam("ids", expanding=True)), _PENDING).distinct()
_ENDED = (
    update(run_items)
    .where(run_items.c.document_id == bindparam("d"), _PENDING)
    .values(outcome=bindparam("o"), chunks=bindparam("n"), detail=bindparam("t"))
)
_INDEXED = _ENDED.values(stage=Stage.INDEX.value)
_OVER = (
    update(runs)
    .where(
        runs.c.id == bindparam("run"),
        runs.c.finished_at.is_(None),
        runs.c.scan != "open",
        ~exists().where(run_items.c.run_id == bindparam("run"), _PENDING),
    )
    .values(
        finished_at=bindparam("now"),
        status=case((runs.c.status == "cancelling", "cancelled"), (runs.c.scan == "incomplete", "failed"), else_="done"),
    )
)


def open_run(
    connection: Connection,
    now: float,
    *,
    tenant: str,
    collection_id: str,
    collection: str,
    source: str,
    lane: Lane,
    kind: str = "ingest",
    source_id: str = "",
    status: str = "queued",
    scan: str = "open",
) -> int:
    """A new run, in the caller's transaction; returns its number. With `scan` "open" it does not end before its listing is over."""
    opened = insert(runs).values(
        tenant=tenant,
        collection_id=collection_id,
        collection=collection,
        source=source,
        source_id=source_id,
        kind=kind,
        lane=lane.value,
        status=status,
        scan=scan,
        started_at=now,
    )
    return int(connection.execute(opened.returning(runs.c.id)).scalar_one())


def settle(connection: Connection, outcomes: Sequence[tuple[str, str, int, str]], now: float) -> None:
    """Write (document id, outcome, chunks, detail) into every run that waits for the document, then end runs that wait for none."""
    if not outcomes:
        return
    ids = [outcome[0] for outcome in outcomes]
    touched = list(connection.scalars(_WAITING, {"ids": ids}))
    whole: list[dict[str, object]] = []
    others: list[dict[str, object]] = []
    for document, outcome, chunks, detail in outcomes:
        (whole if outcome == "indexed" else others).append({"d": document, "o": outcome, "n": chunks, "t": detail})
    if whole:
        connection.execute(_INDEXED, whole)
    if others:
        connection.execute(_ENDED.values(stage=where_it_stands()), others)
    finish(connection, touched, now)


def where_it_stands() -> ColumnElement[str]:
    """The stage of a run item's document; empty where there is none any more."""
    return func.coalesce(select(documents.c.stage).where(documents.c.id == run_items.c.document_id).scalar_subquery(), "")


def finish(connection: Connection, run_ids: Sequence[int], now: float) -> None:
    """End those of the runs whose listing is complete and that wait for no document any more."""
    for run_id in run_ids:
        connection.execute(_OVER, {"run": run_id, "now": now})
