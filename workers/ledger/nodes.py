"""Who works on this ledger: processes announce themselves here, whatever broker carries the messages."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import delete, insert, select, update

from workers import queues
from workers.ledger.batches import CODE_VERSION
from workers.ledger.engine import Database
from workers.ledger.watched import nodes

EVERY_S = 5.0
"""How often a process announces itself."""
FRESH_S = 20.0
"""Who has not announced itself for so long is gone."""
KEEP_S = 3600.0


@dataclass(frozen=True, slots=True)
class Node:
    """One process as it announced itself; ages are by the ledger's clock."""

    name: str
    role: str
    """worker, supervisor or beat."""
    pid: int
    queues: tuple[str, ...]
    code_version: str
    seen_s: float
    """Seconds since it announced itself."""
    progress_s: float
    """Seconds since it last took a batch; for a supervisor or beat, since it last swept."""
    skew_s: float = 0.0
    """How far its host's clock is ahead of the ledger's, less what the announcement took."""


def announce(db: Database, name: str, role: str, pid: int, served: Sequence[str] = (), *, progress: bool = False) -> None:
    """Say that a process is alive and what it consumes. Raises Unavailable.

    The first announcement counts as progress: who has just begun is not stuck, however long the work has waited.
    """
    with db.write() as connection:
        now = db.now(connection)
        values = {"clock": time.time(), "seen_at": now} | ({"progress_at": now} if progress else {})
        if connection.execute(update(nodes).where(nodes.c.name == name).values(**values)).rowcount:
            return
        connection.execute(delete(nodes).where(nodes.c.seen_at < now - KEEP_S))
        row = {"name": name, "role": role, "pid": pid, "queues": json.dumps(list(served)), "code_version": CODE_VERSION}
        connection.execute(insert(nodes).values(**row, **(values | {"progress_at": now})))


def progress(db: Database, name: str) -> None:
    """Say that a node took a batch. Raises Unavailable."""
    with db.write() as connection:
        connection.execute(update(nodes).where(nodes.c.name == name).values(progress_at=db.now(connection)))


def withdraw(db: Database, name: str) -> None:
    """A process has ended, or is known to be gone. Raises Unavailable."""
    with db.write() as connection:
        connection.execute(delete(nodes).where(nodes.c.name == name))


def living(db: Database, *, within_s: float = FRESH_S) -> list[Node]:
    """Who announced itself lately, by name. Raises Unavailable."""
    with db.read() as connection:
        now = db.now(connection)
        rows = connection.execute(select(nodes).where(nodes.c.seen_at > now - within_s).order_by(nodes.c.name)).all()
    return [
        Node(
            row.name,
            row.role,
            row.pid,
            tuple(json.loads(row.queues)),
            row.code_version,
            now - row.seen_at,
            now - row.progress_at,
            row.clock - row.seen_at,
        )
        for row in rows
    ]


def consumers(db: Database) -> dict[str, int]:
    """Queue → nodes that listen to it; every queue of ours is a key. Raises Unavailable."""
    counts = dict.fromkeys(queues.all_queues(), 0)
    for node in living(db):
        for queue in node.queues:
            counts[queue] = counts.get(queue, 0) + 1
    return counts
