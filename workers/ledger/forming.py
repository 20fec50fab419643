"""Batches out of waiting documents: bounded, full where requests are paid for, fair over tenants and runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, func, select, update
from sqlalchemy.dialects import postgresql

from pipeline.contracts import Lane, Stage
from workers import queues
from workers.ledger import control, turns
from workers.ledger.batches import counts_by_queue, new_batch
from workers.ledger.engine import Database
from workers.ledger.schema import OPEN, WAITING, batches, documents, locks, runs, tenants
from workers.ledger.turns import Group, Line, Share
from workers.ledger.work import Issue

LINGER_S = 3.0
"""How long chunks may wait for company before a request is sent that is not full."""
ROUTES = ("fused", "staged")

# Built once, since they run with every turn.
_ACTIVE = and_(runs.c.finished_at.is_(None), runs.c.status.in_(("queued", "running")), ~control.held_back())
_GROUPS = select(runs.c.id, runs.c.tenant, runs.c.collection_id).where(_ACTIVE, runs.c.lane == bindparam("of")).order_by(runs.c.id)
_PICK = (
    select(documents.c.id, documents.c.size, documents.c.chunks, documents.c.route, documents.c.updated_at)
    .where(documents.c.run_id == bindparam("run"), documents.c.stage == bindparam("at"), WAITING, documents.c.next_at <= bindparam("now"))
    .order_by(documents.c.id)
    .limit(bindparam("most"))
)
_ANYTHING = (
    select(documents.c.id).join(runs, runs.c.id == documents.c.run_id).where(_ACTIVE, WAITING, documents.c.next_at <= bindparam("now")).limit(1)
)
_ATTACH = (
    update(documents)
    .where(documents.c.id.in_(bindparam("ids", expanding=True)))
    .values(status="queued", batch_id=bindparam("batch"), updated_at=bindparam("now"))
)
_BEGUN = update(runs).where(runs.c.id == bindparam("run"), runs.c.status == "queued").values(status="running")


@dataclass(frozen=True, slots=True)
class Window:
    """How many batches of one stage and lane may be under way, and how much of a batch is work enough."""

    batches: int
    chunks: int = queues.MAX_CHUNKS


def form(db: Database, windows: Mapping[Stage, Window], *, wait: bool = True) -> list[Issue]:
    """Form what fits into the windows. One feeder at a time: the lock row serialises them.

    A stage without a window is left alone. With `wait` False it gives up at once (empty list) when another feeder is at work.
    """
    with db.write() as connection:
        if not _locked(connection, db, wait):
            return []
        now = db.now(connection)
        issues: list[Issue] = []
        opened = {queue: sum(by.values()) for queue, by in counts_by_queue(connection).items()}
        for lane in (Lane.INTERACTIVE, Lane.BULK):
            active = groups(connection, lane)
            if not active:
                continue
            given = shares(connection)
            # Downstream first: what is nearly done frees space before new work is let in.
            for stage in reversed(queues.ORDER):
                if stage in windows:
                    issues += _stage(connection, stage, lane, active, given, windows[stage], opened, now)
    return issues


def published(db: Database, issues: list[Issue]) -> None:
    """Note that the messages were handed to the broker."""
    if not issues:
        return
    with db.write() as connection:
        connection.execute(update(batches).where(batches.c.id.in_([issue.batch_id for issue in issues])).values(published_at=db.now(connection)))


def _locked(connection: Connection, db: Database, wait: bool) -> bool:
    # SQLite's write transaction is the lock already; elsewhere the row is.
    if db.sqlite:
        return True
    mine = select(locks.c.name).where(locks.c.name == "feeder").with_for_update(skip_locked=not wait)
    row = connection.execute(mine).first()
    if row is None and not connection.scalar(select(func.count()).select_from(locks).where(locks.c.name == "feeder")):
        # Two hosts may begin a ledger at the same moment: the later one waits until the row of the earlier one is there.
        connection.execute(postgresql.insert(locks).values(name="feeder", owner="").on_conflict_do_nothing())
        row = connection.execute(mine).first()
    return row is not None


def groups(connection: Connection, lane: Lane) -> list[Group]:
    """Runs of a lane that something may be formed of, oldest first."""
    return [Group(row.id, row.tenant, row.collection_id) for row in connection.execute(_GROUPS, {"of": lane.value})]


def _stage(
    connection: Connection,
    stage: Stage,
    lane: Lane,
    active: list[Group],
    given: Mapping[str, Share],
    window: Window,
    opened: dict[str, int],
    now: float,
) -> list[Issue]:
    if not _open_routes(stage, lane, window, opened):
        return []
    issues: list[Issue] = []
    alone = len(active) == 1
    counted = any(share.most for share in given.values()) or len({group.tenant for group in active}) > 1
    line = Line(
        active,
        {} if alone else turns.stored(connection, stage, lane),
        given,
        under_way=_under_way(connection, stage, lane) if counted else {},
        places=window.batches,
    )
    limits = queues.bounds(stage, chunks_per_batch=window.chunks)
    while (routes := _open_routes(stage, lane, window, opened)) and (group := line.first()) is not None:
        rows = _pick(connection, group, stage, routes, limits, now)
        if not rows or (stage is Stage.EMBED and lane is Lane.BULK and not _worth(connection, group, rows, window, now)):
            line.leave(group)
            continue
        stages = _stages(stage, rows[0].route)
        queue = queues.home(stages, lane)
        chunks = sum(row.chunks for row in rows)
        issue = new_batch(connection, group.tenant, group.collection_id, stages, lane, size=len(rows), chunks=chunks, now=now)
        connection.execute(_ATTACH, {"ids": [row.id for row in rows], "batch": issue.batch_id, "now": now})
        connection.execute(_BEGUN, {"run": group.run_id})
        opened[queue] = opened.get(queue, 0) + 1
        line.served(group, chunks if stage is Stage.EMBED and chunks else len(rows))
        issues.append(issue)
    if not alone:
        turns.store(connection, stage, lane, line.changed())
    return issues


def _open_routes(stage: Stage, lane: Lane, window: Window, opened: Mapping[str, int]) -> list[str]:
    """Routes whose queue has room."""
    return [route for route in ROUTES if opened.get(home(stage, route, lane), 0) < window.batches]


def home(stage: Stage, route: str, lane: Lane) -> str:
    """The queue that a document waiting for `stage` goes to."""
    return queues.home(_stages(stage, route), lane)


def _stages(stage: Stage, route: str) -> tuple[Stage, ...]:
    if route == "fused" and stage in queues.FUSED:
        return queues.FUSED[queues.FUSED.index(stage) :]
    return (stage,)


def _under_way(connection: Connection, stage: Stage, lane: Lane) -> dict[str, int]:
    """Tenant → its open batches."""
    rows = connection.execute(
        select(batches.c.tenant, func.count())
        .where(OPEN, batches.c.lane == lane.value, batches.c.stages.startswith(stage.value))
        .group_by(batches.c.tenant)
    )
    return {row[0]: row[1] for row in rows}


def shares(connection: Connection) -> dict[str, Share]:
    """Tenant → its share, of those that were given one."""
    return {row.name: Share(row.weight, row.most) for row in connection.execute(select(tenants))}


def _pick(connection: Connection, group: Group, stage: Stage, routes: list[str], limits: queues.Bounds, now: float) -> list[Row[*tuple[Any, ...]]]:
    """Documents of one route that fit into one batch together; the first always fits."""
    query = _PICK if len(routes) == len(ROUTES) else _PICK.where(documents.c.route.in_(routes))
    given = {"run": group.run_id, "at": stage.value, "now": now, "most": limits.documents + 64}
    found = connection.execute(query, given).all()
    return list(_fill((row for row in found if row.route == found[0].route), limits))


def _fill(rows: Iterator[Row[*tuple[Any, ...]]], limits: queues.Bounds) -> Iterator[Row[*tuple[Any, ...]]]:
    number = chunks = size = 0
    for row in rows:
        over = chunks + row.chunks > limits.chunks or size + row.size > limits.bytes
        if number >= limits.documents:
            return
        if number and over:
            continue
        number, chunks, size = number + 1, chunks + row.chunks, size + row.size
        yield row


def _worth(connection: Connection, group: Group, rows: list[Row[*tuple[Any, ...]]], window: Window, now: float) -> bool:
    """True when a batch is nearly full, has lingered, or nothing more can come to fill it."""
    if sum(row.chunks for row in rows) >= window.chunks * 15 // 16 or now - min(row.updated_at for row in rows) > LINGER_S:
        return True
    upstream = connection.scalar(
        select(documents.c.id)
        .where(
            documents.c.run_id == group.run_id,
            documents.c.stage.in_([stage.value for stage in queues.FUSED]),
            documents.c.status.in_(("ready", "queued")),
        )
        .limit(1)
    )
    return upstream is None


def anything_waits(db: Database) -> bool:
    """A cheap look, without the write lock: is there a document that could go into a batch now?"""
    with db.read() as connection:
        now = db.now(connection)
        return connection.scalar(_ANYTHING, {"now": now}) is not None
