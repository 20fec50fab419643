"""What should come to its end by itself, and for how long it has not: deletions, and builds of a collection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import func, select

from workers.ledger.engine import Database
from workers.ledger.schema import batches, collections, generations, outstanding


@dataclass(frozen=True, slots=True)
class Unfinished:
    """One look."""

    deletions: Mapping[str, int]
    """Kind, as in `outstanding`, → how many."""
    oldest_s: float
    """Since the oldest of them was asked for; 0 without any."""
    builds: int
    """Generations under construction."""
    idle_s: float
    """The longest that one of them has had no batch begun or ended."""


def look(db: Database) -> Unfinished:
    """Raises Unavailable."""
    with db.read() as connection:
        now = db.now(connection)
        kinds = connection.execute(select(outstanding.c.kind, func.count(), func.min(outstanding.c.since)).group_by(outstanding.c.kind)).all()
        building = connection.execute(
            select(collections.c.id, func.max(generations.c.created_at))
            .join(generations, generations.c.generation == collections.c.generation)
            .where(collections.c.status == "building", generations.c.status == "building")
            .group_by(collections.c.id)
        ).all()
        moved: list[float] = []
        for made, begun in building:
            last = connection.execute(
                select(func.max(batches.c.created_at), func.max(batches.c.finished_at)).where(batches.c.collection_id == made)
            ).one()
            moved.append(max(float(begun), *(float(moment or 0.0) for moment in last)))
    oldest = min((float(since) for _, _, since in kinds), default=now)
    deletions = {str(kind): int(number) for kind, number, _ in kinds}
    return Unfinished(deletions, max(0.0, now - oldest), len(moved), max((max(0.0, now - moment) for moment in moved), default=0.0))
