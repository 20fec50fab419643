"""When sources are listed again: cron with a time zone and a jitter, missed times made up for once."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from sqlalchemy import select, update

from pipeline.errors import BadRequest
from workers.ledger import sources
from workers.ledger.engine import Database
from workers.ledger.schema import sources as table
from workers.ledger.sources import SourceRow

MAX_JITTER_S = 86400.0


def check(cron: str, timezone: str, jitter_s: float) -> None:
    """Raises BadRequest naming what is wrong."""
    if not 0 <= jitter_s <= MAX_JITTER_S:
        raise BadRequest(f"a jitter of {jitter_s:g} s", hint="Use 0 to 86400 seconds.", pointer="/jitter_s")
    zone = zone_of(timezone)
    if cron:
        try:
            CronSim(cron, datetime.now(zone))
        except CronSimError as error:
            raise BadRequest(
                f"{cron!r} is no cron expression: {error}", hint="Five fields, e.g. '0 2 * * *' for two o'clock every night.", pointer="/cron"
            ) from error


def zone_of(name: str) -> ZoneInfo:
    """Raises BadRequest."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise BadRequest(f"there is no time zone {name!r}", hint="Use a name such as Asia/Shanghai or UTC.", pointer="/timezone") from None


def following(cron: str, timezone: str, jitter_s: float, name: str, after: float) -> float | None:
    """Seconds since the epoch of the first time after `after`, moved by the part of the jitter that is this source's at that time.

    Clocks that are put forward do not skip a daily time, and clocks that are put back do not double it. None for a schedule without an end.
    """
    if not cron:
        return None
    try:
        occurrence = next(CronSim(cron, datetime.fromtimestamp(after, UTC).astimezone(zone_of(timezone))))
    except StopIteration:
        return None
    at = occurrence.timestamp()
    share = int.from_bytes(hashlib.blake2b(f"{name} {at:.0f}".encode(), digest_size=4).digest(), "big") / 0x1_0000_0000
    return at + share * jitter_s


def due(db: Database, now: float | None = None) -> list[int]:
    """Open a run for every source whose time has come; gives the runs that were opened.

    Each time is taken by compare-and-set, so that it is taken once, whoever looks. Times that were missed are made up for by one run; a source
    that is paused or still under way lets its time pass.
    """
    with db.read() as connection:
        moment = db.now(connection) if now is None else now
        waiting = list(connection.scalars(select(table.c.id).where(table.c.next_at <= moment)))
    opened: list[int] = []
    for source_id in waiting:
        row = sources.by_id(db, source_id)
        if row is None or row.next_at is None or row.next_at > moment:
            continue
        run = _take(db, row, moment)
        if run is not None:
            opened.append(run)
    return opened


def _take(db: Database, row: SourceRow, now: float) -> int | None:
    upcoming = following(row.cron, row.timezone, row.jitter_s, row.id, now)
    with db.write() as connection:
        taken = connection.execute(update(table).where(table.c.id == row.id, table.c.next_at == row.next_at).values(next_at=upcoming))
        if taken.rowcount != 1 or row.paused or sources.under_way(connection, row.id) is not None:
            return None
        return sources.open_sync(connection, row, now, full=False)
