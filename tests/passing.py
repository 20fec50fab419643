"""Time that passes for a running system at once: what waits for a moment finds that it has come."""

from __future__ import annotations

import json

from sqlalchemy import select, update

from tests.simulators.served import Clock
from tests.system import System
from workers import queues
from workers.ledger.schema import documents, sources


def pass_time(system: System, seconds: float, *clocks: Clock) -> None:
    """Every moment that ledger and limits hold comes nearer by `seconds`, and clocks of simulators go on by as much.

    Limits are forgotten altogether: use it for times after which they would be.
    """
    for clock in clocks:
        clock.advance(seconds)
    with system.redis() as redis:
        for key in list(redis.scan_iter(f"{queues.PREFIX}limit.*")):
            redis.delete(key)
    with system.platform.db.write() as connection:
        connection.execute(update(documents).where(documents.c.next_at > 0).values(next_at=documents.c.next_at - seconds))
        waiting = (sources.c.claimed_by == "", sources.c.claimed_until.is_not(None))
        connection.execute(update(sources).where(*waiting).values(claimed_until=sources.c.claimed_until - seconds))
        for row in connection.execute(select(sources.c.id, sources.c.checkpoint).where(sources.c.kind == "yuque")).all():
            kept = json.loads(row.checkpoint)
            since = kept.get("mark", {}).get("since")
            if since:
                kept["mark"]["since"] = {name: max(0.0, moment - seconds) for name, moment in since.items()}
                connection.execute(update(sources).where(sources.c.id == row.id).values(checkpoint=json.dumps(kept)))
