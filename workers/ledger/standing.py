"""Where documents stand, counted from indexes: 100,000 waiting documents cost tens of milliseconds, not a walk through their rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from workers import queues
from workers.ledger.engine import Database
from workers.ledger.schema import FINISHED, OPEN, WAITING, batches, documents, runs

RECENT = 5000
"""Newest batches that are looked at for rates."""
RATE_S = 60.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """Documents that wait for one stage in one queue."""

    stage: str
    lane: str
    queue: str
    documents: int
    retry: int
    """Of them, those that wait after a failure."""
    oldest_at: float


@dataclass(frozen=True, slots=True)
class Standing:
    """One look at the ledger."""

    now: float
    waiting: tuple[Waiting, ...]
    open_documents: Mapping[tuple[str, str], int]
    """(stage, queued or leased) → documents."""
    open_batches: Mapping[tuple[str, str], int]
    """(queue, queued or leased) → batches."""
    finished: Mapping[str, int]
    """done, skipped, cancelled → documents."""
    dead: Mapping[tuple[str, str], int]
    """(stage, code) → documents."""

    def by_status(self) -> dict[str, int]:
        """Status → documents, those left out that are none."""
        counts = {"ready": sum(w.documents - w.retry for w in self.waiting), "retry": sum(w.retry for w in self.waiting)}
        for (_, status), number in self.open_documents.items():
            counts[status] = counts.get(status, 0) + number
        counts |= dict(self.finished) | {"dead": sum(self.dead.values())}
        return {status: number for status, number in counts.items() if number}


def look(db: Database) -> Standing:
    """Count everything once. Raises Unavailable."""
    with db.read() as connection:
        now = db.now(connection)
        batch_rows = connection.execute(
            select(batches.c.queue, batches.c.status, func.count()).where(OPEN).group_by(batches.c.queue, batches.c.status)
        ).all()
        document_rows = connection.execute(
            select(documents.c.stage, batches.c.status, func.count())
            .select_from(batches.join(documents, documents.c.batch_id == batches.c.id))
            .where(OPEN, documents.c.batch_id.is_not(None))
            .group_by(documents.c.stage, batches.c.status)
        ).all()
        finished: dict[str, int] = dict(
            connection.execute(select(documents.c.status, func.count()).where(FINISHED).group_by(documents.c.status)).all()
        )
        dead = connection.execute(
            select(documents.c.error_stage, documents.c.error_code, func.count())
            .where(documents.c.status == "dead")
            .group_by(documents.c.error_stage, documents.c.error_code)
        ).all()
        waiting = tuple(_waiting(connection))
    return Standing(
        now,
        waiting,
        {(stage, status): number for stage, status, number in document_rows},
        {(queue, status): number for queue, status, number in batch_rows},
        finished,
        {(stage, code): number for stage, code, number in dead},
    )


def _waiting(connection: Connection) -> Iterator[Waiting]:
    fused = documents.c.route == "fused"
    rows = connection.execute(
        select(
            documents.c.run_id,
            documents.c.stage,
            func.count(),
            func.count().filter(fused),
            func.count().filter(documents.c.status == "retry"),
            func.count().filter(documents.c.status == "retry", fused),
            func.min(documents.c.updated_at).filter(fused),
            func.min(documents.c.updated_at).filter(~fused),
        )
        .where(WAITING)
        .group_by(documents.c.run_id, documents.c.stage)
    ).all()
    lanes: dict[int, str] = dict(connection.execute(select(runs.c.id, runs.c.lane).where(runs.c.id.in_({row[0] for row in rows}))).all())
    for run_id, stage, number, together, retry, retry_together, oldest, oldest_staged in rows:
        lane = lanes.get(run_id, "bulk")
        if together:
            home = "parse" if stage in {one.value for one in queues.FUSED} else stage
            yield Waiting(stage, lane, f"{queues.PREFIX}{home}.{lane}", together, retry_together, oldest)
        if number - together:
            yield Waiting(stage, lane, f"{queues.PREFIX}{stage}.{lane}", number - together, retry - retry_together, oldest_staged)


def per_minute(db: Database) -> dict[str, int]:
    """Stage → documents that left it within the last minute; a batch counts for each of its stages. Raises Unavailable."""
    with db.read() as connection:
        now = db.now(connection)
        newest = connection.scalar(select(func.max(batches.c.id))) or 0
        rows = connection.execute(
            select(batches.c.stages, func.sum(batches.c.size))
            .where(batches.c.id > newest - RECENT, batches.c.status == "done", batches.c.finished_at > now - RATE_S)
            .group_by(batches.c.stages)
        ).all()
    found = {stage.value: 0 for stage in queues.ORDER}
    for stages, number in rows:
        for stage in str(stages).split(","):
            found[stage] = found.get(stage, 0) + int(number or 0)
    return found
