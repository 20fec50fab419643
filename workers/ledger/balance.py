"""Runs and their balance: each document of a run ends in exactly one outcome, and a run ends with its last."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, exists, select, update

from workers.ledger.schema import run_items, runs


def settle(connection: Connection, outcomes: Sequence[tuple[str, str, int, str]], now: float) -> None:
    """Write (document id, outcome, chunks, detail) into every run that waits for the document, then end runs that wait for none."""
    if not outcomes:
        return
    ids = [outcome[0] for outcome in outcomes]
    waiting = select(run_items.c.run_id).where(run_items.c.document_id.in_(ids), run_items.c.outcome == "pending").distinct()
    touched = list(connection.scalars(waiting))
    connection.execute(
        update(run_items)
        .where(run_items.c.document_id == bindparam("d"), run_items.c.outcome == "pending")
        .values(outcome=bindparam("o"), chunks=bindparam("n"), detail=bindparam("t")),
        [{"d": document, "o": outcome, "n": chunks, "t": detail} for document, outcome, chunks, detail in outcomes],
    )
    finish(connection, touched, now)


def finish(connection: Connection, run_ids: Sequence[int], now: float) -> None:
    """End those of the runs whose listing is complete and that wait for no document any more."""
    for run_id in run_ids:
        pending = exists().where(run_items.c.run_id == run_id, run_items.c.outcome == "pending")
        connection.execute(
            update(runs)
            .where(runs.c.id == run_id, runs.c.finished_at.is_(None), runs.c.scan != "open", ~pending)
            .values(finished_at=now, status=_final())
        )


def _final() -> object:
    from sqlalchemy import case

    return case((runs.c.status == "cancelling", "cancelled"), (runs.c.scan == "incomplete", "failed"), else_="done")
