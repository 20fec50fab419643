"""Counts for metrics, all over rows of the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import func, select

from workers.ledger.engine import Database
from workers.ledger.schema import attempts, batches, documents, usage


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums since the ledger began; batches since they were last tidied away."""

    batches: Mapping[tuple[str, str], int]
    seconds: Mapping[str, float]
    attempts: Mapping[tuple[str, str], int]
    tokens: Mapping[str, int]
    requests: Mapping[str, int]


def documents_by_stage(db: Database) -> dict[tuple[str, str], int]:
    """(stage, status) → unfinished documents."""
    with db.read() as connection:
        rows = connection.execute(
            select(documents.c.stage, documents.c.status, func.count())
            .where(documents.c.status.in_(("ready", "queued", "retry", "dead")))
            .group_by(documents.c.stage, documents.c.status)
        )
        return {(stage, status): number for stage, status, number in rows}


def totals(db: Database) -> Totals:
    closed: dict[tuple[str, str], int] = {}
    seconds: dict[str, float] = {}
    with db.read() as connection:
        rows = connection.execute(
            select(batches.c.stages, batches.c.status, func.count(), func.sum(batches.c.seconds))
            .where(batches.c.status.in_(("done", "lost")))
            .group_by(batches.c.stages, batches.c.status)
        )
        for stages, status, number, spent in rows:
            stage = stages.partition(",")[0]
            closed[stage, status] = closed.get((stage, status), 0) + number
            seconds[stage] = seconds.get(stage, 0.0) + float(spent or 0.0)
        failed = {
            (stage, outcome): number
            for stage, outcome, number in connection.execute(
                select(attempts.c.stage, attempts.c.outcome, func.count()).group_by(attempts.c.stage, attempts.c.outcome)
            )
        }
        spending = connection.execute(select(usage.c.part, func.sum(usage.c.input_tokens), func.sum(usage.c.requests)).group_by(usage.c.part)).all()
    tokens = {row[0]: int(row[1]) for row in spending if row[1] is not None}
    return Totals(closed, seconds, failed, tokens, {row[0]: int(row[2] or 0) for row in spending})
