"""Counters that never fall: what closed batches amount to, counted over the rows that are there and the tallies of those that were tidied away."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, Connection, Select, case, func, literal_column, select, update

from workers.ledger.engine import Database
from workers.ledger.schema import batches
from workers.ledger.watched import tallies

Labels: TypeAlias = tuple[str, ...]
Tallies: TypeAlias = dict[tuple[str, Labels], float]

SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)
"""Upper bounds of the histogram of batch durations."""

BATCHES, DOCUMENTS, SPENT, WITHIN, REISSUED, EXPIRED = "batches", "documents", "seconds", "within", "reissued", "expired"
UNPURGED = "cache_purge_failures"
_CLOSED = batches.c.status.in_([literal_column("'done'"), literal_column("'lost'")])


def closed(connection: Connection, where: ColumnElement[bool] | None = None) -> Tallies:
    """What the closed batches, or those of them that `where` names, amount to; a batch counts for the first of its stages.

    BATCHES by (stage, outcome), DOCUMENTS in them, SPENT seconds by stage, WITHIN by (stage, bound), REISSUED and EXPIRED by stage.
    """
    within = [func.sum(case((batches.c.seconds <= bound, 1), else_=0)) for bound in SECONDS]
    query: Select[Any] = select(
        batches.c.stages,
        batches.c.status,
        func.count(),
        func.sum(batches.c.size),
        func.sum(batches.c.seconds),
        func.sum(batches.c.token - 1),
        *within,
    )
    query = query.where(_CLOSED).group_by(batches.c.stages, batches.c.status)
    found: Tallies = {}
    rows: list[tuple[Any, ...]] = [tuple(row) for row in connection.execute(query if where is None else query.where(where))]
    for row in rows:
        stages, status, number, size, seconds, again = row[:6]
        stage = str(stages).partition(",")[0]
        _add(found, BATCHES, (stage, status), number)
        _add(found, DOCUMENTS, (stage, status), size)
        _add(found, REISSUED, (stage,), again)
        if status == "lost":
            _add(found, EXPIRED, (stage,), number)
            continue
        _add(found, SPENT, (stage,), seconds)
        for bound, within_it in zip(SECONDS, row[6:], strict=True):
            _add(found, WITHIN, (stage, f"{bound:g}"), within_it)
    return found


def _add(found: Tallies, name: str, labels: Labels, value: float | None) -> None:
    found[name, labels] = found.get((name, labels), 0.0) + float(value or 0)


def kept(connection: Connection) -> Tallies:
    """What was counted before its rows went."""
    return {(row.name, tuple(json.loads(row.labels))): row.value for row in connection.execute(select(tallies))}


def add(connection: Connection, counted: Mapping[tuple[str, Labels], float]) -> None:
    """Add to tallies; call it in the transaction that does, or removes, what is counted."""
    for (name, labels), value in counted.items():
        if value:
            _put(connection, name, labels, value, tallies.c.value + value)


def one_more(db: Database, name: str) -> None:
    """Count one thing that seldom happens, in a transaction of its own."""
    with db.write() as connection:
        add(connection, {(name, ()): 1.0})


def put(connection: Connection, name: str, value: float, *labels: str) -> None:
    """Note the latest value of something that is measured now and then."""
    _put(connection, name, labels, value, value)


def _put(connection: Connection, name: str, labels: Labels, value: float, then: Any) -> None:
    key = json.dumps(labels)
    there = update(tallies).where(tallies.c.name == name, tallies.c.labels == key).values(value=then)
    if not connection.execute(there).rowcount:
        connection.execute(tallies.insert().values(name=name, labels=key, value=value))


def total(connection: Connection) -> Tallies:
    """Rows and tallies together."""
    found = closed(connection)
    for (name, labels), value in kept(connection).items():
        _add(found, name, labels, value)
    return found
