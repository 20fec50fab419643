"""What the sweep finds: leases that ran out, messages that were lost, a broker that was wiped."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, delete, insert, or_, select, update

from workers.ledger import batches as machine
from workers.ledger import losses, tallies, turns
from workers.ledger.engine import Database
from workers.ledger.schema import batches, idempotency, meta
from workers.ledger.work import Issue

UNSENT_S = 3.0
"""A queued batch that nobody published by then: its maker died between commit and publish."""
SILENT_S = 5.0
"""Published, not claimed, and the broker's queue is empty: the message is gone."""
OVERDUE_S = 300.0
"""Published and not claimed although the queue is not empty, or its length is unknown."""
KEEP_BATCHES_S = 7 * 86400.0


def expired(db: Database) -> list[Issue]:
    """Take over leases that ran out or are past their deadline, in halves."""
    with db.read() as connection:
        now = db.now(connection)
        rows = connection.execute(
            select(batches.c.id, batches.c.token, batches.c.owner, batches.c.deadline).where(
                batches.c.status == "leased", or_(batches.c.lease_until < now, batches.c.deadline < now)
            )
        ).all()
    issues: list[Issue] = []
    for row in rows:
        late = row.deadline < now
        reason = f"{row.owner} passed the stage's deadline" if late else f"{row.owner} stopped renewing its lease"
        issues += losses.expire(db, row.id, row.token, reason=reason)
    return issues


def orphaned(db: Database, owner_prefix: str) -> tuple[int, list[Issue]]:
    """Take over every lease of a node that is known to be gone; gives how many there were, and what to publish."""
    with db.read() as connection:
        rows = connection.execute(
            select(batches.c.id, batches.c.token).where(batches.c.status == "leased", batches.c.owner.startswith(owner_prefix, autoescape=True))
        ).all()
    issues: list[Issue] = []
    for row in rows:
        issues += losses.expire(db, row.id, row.token, reason=f"the worker {owner_prefix} exited")
    return len(rows), issues


def given_back(db: Database, owner_prefix: str) -> int:
    """End the leases of a node that was told to stop; returns how many. The next sweep sends those batches whole: nothing was their fault."""
    with db.write() as connection:
        done = connection.execute(
            update(batches)
            .where(batches.c.status == "leased", batches.c.owner.startswith(owner_prefix, autoescape=True))
            .values(status="queued", token=batches.c.token + 1, published_at=None, owner="", lease_until=None, deadline=None)
        )
    return done.rowcount


def lost(db: Database, depth: Callable[[str], int | None]) -> list[Issue]:
    """Queued batches whose message is gone, issued anew under a higher token.

    `depth` gives a queue's length in the broker, or None when it cannot be told.
    """
    with db.write() as connection:
        now = db.now(connection)
        rows = connection.execute(
            select(batches.c.id, batches.c.queue, batches.c.created_at, batches.c.published_at).where(
                batches.c.status == "queued", batches.c.created_at < now - UNSENT_S
            )
        ).all()
        depths = {queue: depth(queue) for queue in {row.queue for row in rows}}
        overdue = [row.id for row in rows if _gone(row.published_at, depths[row.queue], now)]
        return _again(connection, overdue)


def _gone(published_at: float | None, depth: int | None, now: float) -> bool:
    if published_at is None:
        return True
    return now - published_at > (SILENT_S if depth == 0 else OVERDUE_S)


def wiped(db: Database) -> list[Issue]:
    """The broker lost everything: every queued batch is issued anew at once."""
    with db.write() as connection:
        return _again(connection, list(connection.scalars(select(batches.c.id).where(batches.c.status == "queued"))))


def _again(connection: Connection, ids: list[int]) -> list[Issue]:
    if not ids:
        return []
    rows = connection.execute(
        update(batches)
        .where(batches.c.id.in_(ids), batches.c.status == "queued")
        .values(token=batches.c.token + 1, published_at=None)
        .returning(batches.c.id, batches.c.token, batches.c.stages, batches.c.queue)
    ).all()
    return [Issue(row.id, row.token, machine.stages_of(row.stages)[0], row.queue) for row in rows]


def epoch(db: Database) -> str | None:
    """The mark that this ledger last wrote into the broker."""
    with db.read() as connection:
        return connection.scalar(select(meta.c.value).where(meta.c.name == "epoch"))


def set_epoch(db: Database, value: str) -> None:
    with db.write() as connection:
        connection.execute(delete(meta).where(meta.c.name == "epoch"))
        connection.execute(insert(meta).values(name="epoch", value=value))


def tidy(db: Database) -> int:
    """Forget closed batches and old idempotency answers; returns how many rows went."""
    with db.write() as connection:
        now = db.now(connection)
        old = batches.c.finished_at < now - KEEP_BATCHES_S
        tallies.add(connection, tallies.closed(connection, old))
        gone = connection.execute(delete(batches).where(batches.c.status.in_(("done", "lost")), old))
        turns.tidy(connection)
        answers = connection.execute(delete(idempotency).where(idempotency.c.at < now - 86400.0))
    return gone.rowcount + answers.rowcount
