"""Sources in the ledger: what they are told, who lists them now, and where the listing stands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, exists, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from pipeline.contracts import Lane
from pipeline.contracts.sources import Json
from pipeline.errors import Conflict, NotFound
from workers.ledger import balance
from workers.ledger.batches import collection_row
from workers.ledger.engine import Database
from workers.ledger.schema import OF_SOURCE, SOURCE_STOPPED, collections, documents, runs, sources
from workers.ledger.work import CollectionRow

STOPPED = SOURCE_STOPPED
"""`paused` of a source whose credentials were refused: it waits for others."""
DELETING = 3
"""`paused` of a source that is being deleted: there is none any more, but for whoever deletes it."""
_THERE = sources.c.paused != DELETING


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One source as the ledger has it."""

    id: str
    tenant: str
    collection_id: str
    collection: str
    name: str
    kind: str
    options: Mapping[str, str]
    secrets: str = field(repr=False)
    """Sealed."""
    checkpoint: Mapping[str, Any] = field(repr=False)
    cron: str
    timezone: str
    jitter_s: float
    next_at: float | None
    paused: int
    claimed_by: str
    claimed_until: float | None
    last_run_id: int | None
    last_at: float | None
    last_error: str
    held: int
    created_at: float
    updated_at: float


@dataclass(slots=True)
class Progress:
    """How far the listing of one run has come. Kept with the items it has handed over, in one transaction."""

    run: int
    config: str
    """Fingerprint of the options that say what is listed."""
    full: bool = False
    """Fetch everything, whatever the source's change marks say."""
    mark: Json = field(default_factory=dict[str, object])
    open: dict[str, int] = field(default_factory=dict[str, int])
    """Scope → items listed of it so far; scopes that ended are taken out."""
    ended: int = 0
    whole: bool = True
    """No scope failed, none listed changes only, none gave fewer items than it said."""
    notes: list[str] = field(default_factory=list[str])
    tries: int = 0
    """Interruptions since the last mark."""
    complete: int | None = None
    """The last run that listed everything."""
    listed_under: str = ""
    """The config of that run: after a change, what it held besides is out of scope."""

    @property
    def since(self) -> object:
        """What a connector of changes wants to find again in the next run."""
        return self.mark.get("since")

    def dump(self) -> str:
        return json.dumps({name: getattr(self, name) for name in self.__dataclass_fields__})


def progress(row: SourceRow) -> Progress:
    """The kept progress, or an empty one."""
    known: dict[str, Any] = {name: value for name, value in row.checkpoint.items() if name in Progress.__dataclass_fields__}
    given: dict[str, Any] = {"run": 0, "config": ""}
    return Progress(**given | known)


@dataclass(frozen=True, slots=True)
class Claim:
    """A lease on the listing of one source for one run."""

    source: SourceRow
    collection: CollectionRow
    run_id: int
    owner: str


def _row(row: Row[*tuple[Any, ...]]) -> SourceRow:
    values: dict[str, Any] = dict(row._mapping)  # pyright: ignore[reportPrivateUsage]
    return SourceRow(**values | {"options": json.loads(values["options"]), "checkpoint": json.loads(values["checkpoint"])})


def find(db: Database, tenant: str, name: str) -> SourceRow:
    """Raises NotFound."""
    with db.read() as connection:
        row = connection.execute(select(sources).where(sources.c.tenant == tenant, sources.c.name == name, _THERE)).first()
    if row is None:
        raise _unknown(name)
    return _row(row)


def _unknown(name: str) -> NotFound:
    return NotFound(f"there is no source {name!r}", hint="`dujiang sources list` shows those there are.", code="source_not_found")


def by_id(db: Database, source_id: str) -> SourceRow | None:
    """None when it was deleted."""
    with db.read() as connection:
        row = connection.execute(select(sources).where(sources.c.id == source_id, _THERE)).first()
    return None if row is None else _row(row)


def every(db: Database, tenant: str) -> list[SourceRow]:
    """By name."""
    with db.read() as connection:
        return [_row(row) for row in connection.execute(select(sources).where(sources.c.tenant == tenant, _THERE).order_by(sources.c.name))]


def of_all(db: Database) -> list[SourceRow]:
    """Of all tenants."""
    with db.read() as connection:
        return [_row(row) for row in connection.execute(select(sources).where(_THERE).order_by(sources.c.id))]


def create(db: Database, values: Mapping[str, object]) -> None:
    """Raises Conflict when the name is taken."""
    try:
        with db.write() as connection:
            now = db.now(connection)
            connection.execute(insert(sources).values(**values, created_at=now, updated_at=now))
    except IntegrityError as error:
        raise Conflict(
            f"there is a source {values['name']!r} already, or what is left of one that is being deleted",
            hint="`dujiang sources update` changes it; or use another name.",
            code="source_exists",
        ) from error


def change(db: Database, source_id: str, values: Mapping[str, object]) -> None:
    """Write what a person changed."""
    with db.write() as connection:
        connection.execute(update(sources).where(sources.c.id == source_id).values(**values, updated_at=db.now(connection)))


def under_way(connection: Connection, source_id: str) -> int | None:
    """The run of a source that has not finished."""
    query = select(runs.c.id).where(runs.c.finished_at.is_(None), runs.c.source_id == source_id, runs.c.kind == "sync").order_by(runs.c.id)
    return connection.scalar(query.limit(1))


def open_sync(connection: Connection, row: SourceRow, now: float, *, full: bool) -> int:
    """A run whose listing somebody will claim, or the one that is under way: a slow run is never overlapped."""
    # One at a time, and over what the last listing left: the row may have changed since it was read.
    found = connection.execute(select(sources).where(sources.c.id == row.id, _THERE).with_for_update()).first()
    if found is None:
        raise _unknown(row.name)
    row = _row(found)
    present = under_way(connection, row.id)
    if present is not None:
        return present
    of = {"tenant": row.tenant, "collection_id": row.collection_id, "collection": row.collection, "source": row.name, "source_id": row.id}
    run_id = balance.open_run(connection, now, **of, kind="sync", lane=Lane.BULK)
    before = progress(row)
    since = None if full else before.since
    # Whoever lists sees whether the options that say what is listed were changed since, and then begins from nothing.
    mark: Json = {} if since is None else {"since": since}
    begun = Progress(run_id, before.config, full, mark, complete=before.complete, listed_under=before.listed_under)
    connection.execute(
        update(sources)
        .where(sources.c.id == row.id)
        .values(checkpoint=begun.dump(), claimed_by="", claimed_until=None, last_run_id=run_id, last_at=now, last_error="")
    )
    return run_id


def _free(now: float) -> ColumnElement[bool]:
    return and_(sources.c.paused == 0, or_(sources.c.claimed_until.is_(None), sources.c.claimed_until < now))


def _to_list() -> ColumnElement[bool]:
    return and_(runs.c.finished_at.is_(None), runs.c.kind == "sync", runs.c.scan == "open", runs.c.status.in_(("queued", "running")))


def claim(db: Database, owner: str, *, lease_s: float) -> Claim | None:
    """The oldest listing that waits for somebody, by compare-and-set; None when there is none."""
    with db.read() as connection:
        now = db.now(connection)
        waiting = connection.execute(
            select(runs.c.id, sources.c.id).join(sources, sources.c.id == runs.c.source_id).where(_to_list(), _free(now)).order_by(runs.c.id)
        ).all()
    for run_id, source_id in waiting:
        with db.write() as connection:
            now = db.now(connection)
            taken = connection.execute(
                update(sources).where(sources.c.id == source_id, _free(now)).values(claimed_by=owner, claimed_until=now + lease_s).returning(sources)
            ).first()
            if taken is None:
                continue
            if connection.scalar(select(runs.c.id).where(runs.c.id == run_id, _to_list())) is None:
                connection.execute(update(sources).where(sources.c.id == source_id).values(claimed_by="", claimed_until=None))
                continue
            connection.execute(update(runs).where(runs.c.id == run_id, runs.c.status == "queued").values(status="running"))
            row = _row(taken)
            collection = connection.execute(select(collections).where(collections.c.id == row.collection_id)).first()
            if collection is None:
                _without_collection(connection, row, run_id, now)
                continue
            return Claim(row, collection_row(collection), run_id, owner)
    return None


def _without_collection(connection: Connection, row: SourceRow, run_id: int, now: float) -> None:
    reason = f"the collection {row.collection!r} was deleted"
    connection.execute(update(sources).where(sources.c.id == row.id).values(claimed_by="", claimed_until=None, last_error=reason))
    connection.execute(update(runs).where(runs.c.id == run_id).values(scan="incomplete", warnings=json.dumps([reason])))
    balance.finish(connection, [run_id], now)


def renew(connection: Connection, held: Claim, until: float) -> bool:
    """Prolong a claim; False when it was lost, the source was paused, or the run is not to be listed any more."""
    wanted = exists().where(runs.c.id == held.run_id, _to_list())
    done = connection.execute(
        update(sources)
        .where(sources.c.id == held.source.id, sources.c.claimed_by == held.owner, sources.c.paused == 0, wanted)
        .values(claimed_until=until)
    )
    return done.rowcount == 1


def beat(db: Database, held: Claim, *, lease_s: float) -> bool:
    """`renew` in a transaction of its own."""
    with db.write() as connection:
        return renew(connection, held, db.now(connection) + lease_s)


def give_up(db: Database, held: Claim, *, wait_s: float = 0.0, kept: Progress | None = None, error: str = "") -> None:
    """Hand a claim back; nobody takes it before `wait_s` seconds. With `kept`, the progress is written, too."""
    with db.write() as connection:
        values: dict[str, object] = {"claimed_by": "", "claimed_until": db.now(connection) + wait_s if wait_s else None}
        values |= {"last_error": error} if error else {}
        values |= {"checkpoint": kept.dump()} if kept is not None else {}
        connection.execute(update(sources).where(sources.c.id == held.source.id, sources.c.claimed_by == held.owner).values(**values))


def freed(db: Database, owner_prefix: str) -> int:
    """End the claims of a node that is known to be gone; returns how many."""
    with db.write() as connection:
        done = connection.execute(
            update(sources).where(sources.c.claimed_by.startswith(owner_prefix, autoescape=True)).values(claimed_by="", claimed_until=None)
        )
    return done.rowcount


def stop(db: Database, used: SourceRow, reason: str) -> bool:
    """The credentials in `used` were refused: nothing is asked until a person changes them, and the run waits. False when they have changed."""
    with db.write() as connection:
        same = (sources.c.id == used.id, sources.c.updated_at == used.updated_at)
        if connection.execute(select(sources.c.id).where(*same).with_for_update()).first() is None:
            return False
        _hold(connection, used.id, STOPPED, db.now(connection), reason)
    return True


def hold(db: Database, source_id: str, *, paused: bool) -> None:
    """Pause or resume a source with the run that is under way."""
    with db.write() as connection:
        _hold(connection, source_id, 1 if paused else 0, db.now(connection), "")


def hurry(db: Database, source_id: str) -> None:
    """What waits for the source to answer again need not wait any longer: somebody has given it new credentials."""
    with db.write() as connection:
        mine = (documents.c.source_id == source_id, OF_SOURCE, documents.c.status == "retry", documents.c.waits > 0)
        connection.execute(update(documents).where(*mine).values(next_at=0.0))


def _hold(connection: Connection, source_id: str, paused: int, now: float, reason: str) -> None:
    connection.execute(
        update(sources)
        .where(sources.c.id == source_id, _THERE)
        .values(paused=paused, last_error=reason, claimed_by="", claimed_until=None, updated_at=now)
    )
    if not paused:
        # However long it was, the pause is nobody's failure.
        mine = (documents.c.source_id == source_id, OF_SOURCE, documents.c.waiting_since.is_not(None))
        connection.execute(update(documents).where(*mine).values(waiting_since=None))
    wanted, now_is = ("paused", ("queued", "running")) if paused else ("running", ("paused",))
    connection.execute(
        update(runs)
        .where(runs.c.source_id == source_id, runs.c.kind == "sync", runs.c.finished_at.is_(None), runs.c.status.in_(now_is))
        .values(status=wanted)
    )
