"""How many documents are before those of a run: what the feeder would form first, counted as it would form it."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, func, literal, select

from pipeline.contracts import Lane, Stage
from workers import queues
from workers.ledger import forming, turns
from workers.ledger.schema import WAITING, documents
from workers.ledger.turns import Group, Line

MOST = 10_000
"""Who has more than that ahead is told this number."""


def ahead(connection: Connection, run_id: int, lane: Lane) -> int | None:
    """Documents of other runs that are begun before the next one of this run; None when nothing of it may be begun.

    What was begun already does not count, and neither does what waits to be tried again.
    """
    active = forming.groups(connection, lane)
    if all(group.run_id != run_id for group in active):
        return None
    if len(active) == 1:
        return 0
    shares = forming.shares(connection)
    found: list[int] = []
    for stage in queues.FUSED:
        routes = _routes(connection, run_id, stage)
        if routes:
            line = Line(active, turns.stored(connection, stage, lane), shares, under_way={})
            found.append(_before(connection, run_id, line, _Place(stage, _beside(stage, lane, routes[0]))))
    return min(found, default=0)


@dataclass(frozen=True, slots=True)
class _Place:
    stage: Stage
    routes: tuple[str, ...]
    """Those that share one queue."""


def _beside(stage: Stage, lane: Lane, route: str) -> tuple[str, ...]:
    queue = forming.home(stage, route, lane)
    return tuple(other for other in forming.ROUTES if forming.home(stage, other, lane) == queue)


def _routes(connection: Connection, run_id: int, stage: Stage) -> list[str]:
    """Route of the document of a run that is next."""
    query = select(documents.c.route).where(documents.c.run_id == run_id, documents.c.stage == stage.value, WAITING, documents.c.status == "ready")
    return list(connection.scalars(query.order_by(documents.c.id).limit(1)))


def _waiting(connection: Connection, run_id: int, place: _Place) -> int:
    """Up to `MOST` documents of a run that have not been begun."""
    those = (
        select(literal(1))
        .where(documents.c.run_id == run_id, documents.c.stage == place.stage.value, WAITING, documents.c.status == "ready")
        .where(documents.c.route.in_(place.routes))
        .limit(MOST)
    )
    return connection.scalar(select(func.count()).select_from(those.subquery())) or 0


def _before(connection: Connection, run_id: int, line: Line, place: _Place) -> int:
    left: dict[int, int] = {}
    size = queues.bounds(place.stage).documents
    total = 0
    while total < MOST and (group := line.first()) is not None and group.run_id != run_id:
        number = min(size, _left(connection, left, group, place))
        if not number:
            line.leave(group)
            continue
        left[group.run_id] -= number
        total += number
        line.served(group, number)
    return min(total, MOST)


def _left(connection: Connection, left: dict[int, int], group: Group, place: _Place) -> int:
    if group.run_id not in left:
        left[group.run_id] = _waiting(connection, group.run_id, place)
    return left[group.run_id]
