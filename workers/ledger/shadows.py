"""Shadow rows of `documents`: what the next generation builds, one for each document that answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, case, delete, func, insert, literal_column, or_, select, update

from pipeline.contracts import Lane, Stage
from workers.ledger import balance
from workers.ledger.engine import Database, upsert
from workers.ledger.generations import MARK, Building, answers, forget_shadows, shadow_id
from workers.ledger.schema import OPEN, WAITING, artifact_refs, batches, collections, documents, generations, run_items, runs
from workers.ledger.work import CollectionRow

SLICE = 500
CATCH_UPS = 3
"""How often a build may run after what changed meanwhile before the collection's own work is held back, so that it can end."""
HELD_BACK = 2
"""`collections.paused` of a collection whose next generation is about to answer; a person's own pause is 1."""
MOVING = ("ready", "queued", "retry")
STOPPED = ("dead", "cancelled", "skipped")
COPIED = ("tenant", "key", "title", "url", "path", "member", "media_type", "size", "meta", "options", "access", "route")

main, shadow = documents.alias("main"), documents.alias("shadow")
IS_SHADOW = shadow.c.shadow_of != literal_column("''")
"""Word for word the condition of the partial index."""
OWN = shadow.outerjoin(main, main.c.id == shadow.c.shadow_of)
"""Each shadow with the document that it is built for, where that is there."""


BUILT_FOR = main.outerjoin(shadow, and_(shadow.c.shadow_of == main.c.id, IS_SHADOW))
"""Each document with its shadow, where there is one: a collection has one build at a time. Named here, too, the collection would leave SQLite a
choice of indexes, one of which reads the whole build for each document."""


def lacking(building: Building) -> ColumnElement[bool]:
    """Of a document that answers: the build has no row for the version that it answers in."""
    return and_(main.c.collection_id == building.main_id, answers(main), or_(shadow.c.id.is_(None), shadow.c.version < main.c.live_version))


def needless(building: Building) -> ColumnElement[bool]:
    """Of a row of the build: its document answers no more."""
    return and_(shadow.c.collection_id == building.collection.id, or_(main.c.id.is_(None), ~answers(main)))


def row_of(found: Any, made: CollectionRow, run_id: int, now: float) -> dict[str, Any]:
    """A shadow that begins at load."""
    return {name: getattr(found, name) for name in COPIED} | {
        "id": shadow_id(found.id, made.generation),
        "collection_id": made.id,
        "shadow_of": found.id,
        "lane": Lane.BULK.value,
        "run_id": run_id,
        "version": found.live_version,
        "source_hash": found.live_hash,
        "stage": Stage.LOAD.value,
        "status": "ready",
        "updated_at": now,
    }


def follow(db: Database, building: Building, base: str, *, after: str = "") -> tuple[int, str]:
    """Begin shadows of documents that are new or changed since, a slice of them; gives (how many, where to go on, "" at the end).

    Args:
        base: how the documents of the generation that answers are built now; what was parsed so needs no parsing.
    """
    with db.write() as connection:
        # Two followers, a supervisor and a beat, must not begin the same shadow twice.
        mine = select(collections.c.id).where(collections.c.id == building.collection.id, collections.c.status == "building")
        if connection.execute(mine.with_for_update()).first() is None:
            return 0, ""
        query = select(main).select_from(BUILT_FOR).where(lacking(building), main.c.id > after).order_by(main.c.id).limit(SLICE)
        rows = connection.execute(query).all()
        if rows:
            _begin(connection, building, rows, base, db.now(connection))
    return len(rows), rows[-1].id if len(rows) == SLICE else ""


def _begin(connection: Connection, building: Building, rows: Any, base: str, now: float) -> None:
    ids = {row.id: shadow_id(row.id, building.collection.generation) for row in rows}
    forget_shadows(connection, documents.c.id.in_(list(ids.values())))
    parsed = _copy_refs(connection, {row.id: int(row.live_version) for row in rows}, ids, now)
    begun: list[dict[str, Any]] = []
    for row in rows:
        # What another version of the parser made is parsed again.
        ready = row.id in parsed and row.live_fingerprint[MARK:] == base[:MARK]
        begun.append(row_of(row, building.collection, building.run_id, now) | ({"stage": Stage.CHUNK.value} if ready else {}))
    connection.execute(insert(documents), begun)
    upsert(connection, run_items, [_pending(building.run_id, name) for name in ids.values()])


def _pending(run_id: int, document_id: str) -> dict[str, object]:
    return {"run_id": run_id, "document_id": document_id, "outcome": "pending", "chunks": 0, "detail": ""}


def _copy_refs(connection: Connection, versions: Mapping[str, int], ids: Mapping[str, str], now: float) -> set[str]:
    """Bytes and parsed text of the version that answers serve the next generation too; gives the documents that have parsed text."""
    wanted = artifact_refs.c.stage.in_((Stage.LOAD.value, Stage.PARSE.value))
    found = connection.execute(select(artifact_refs).where(artifact_refs.c.document_id.in_(list(versions)), wanted)).all()
    live = [row for row in found if row.version == versions[row.document_id]]
    copies = [{**row._mapping, "document_id": ids[row.document_id], "created_at": now} for row in live]  # pyright: ignore[reportPrivateUsage]
    upsert(connection, artifact_refs, copies)
    return {row.document_id for row in live if row.stage == Stage.PARSE.value}


def departed(db: Database, building: Building) -> dict[str, int]:
    """Documents that answer no more and still have a shadow: their own id → version that was built of them."""
    with db.read() as connection:
        query = select(shadow.c.shadow_of, shadow.c.version).select_from(OWN).where(needless(building)).limit(SLICE)
        return {str(name): int(version) for name, version in connection.execute(query)}


def forget(db: Database, building: Building, document_ids: Mapping[str, int]) -> None:
    """Remove the shadows of documents that are out of the building index already."""
    ids = [shadow_id(name, building.collection.generation) for name in document_ids]
    with db.write() as connection:
        balance.settle(connection, [(name, "skipped", 0, "the document answers no more") for name in ids], db.now(connection))
        own_name(connection, building.collection.id, documents.c.id.in_(ids))
        forget_shadows(connection, documents.c.id.in_(ids))


def own_name(connection: Connection, building_id: str, which: ColumnElement[bool]) -> None:
    """In the balance of the runs of a build, documents stand under their own ids once their shadows go."""
    mine = select(documents.c.id).where(which)
    own = select(documents.c.shadow_of).where(documents.c.id == run_items.c.document_id).scalar_subquery()
    of_build = select(runs.c.id).where(runs.c.collection_id == building_id)
    for run_id in connection.scalars(of_build).all():
        # One that left the build and came back has an outcome under its own id already.
        left = select(documents.c.shadow_of).where(which)
        connection.execute(delete(run_items).where(run_items.c.run_id == run_id, run_items.c.document_id.in_(left)))
        connection.execute(update(run_items).where(run_items.c.run_id == run_id, run_items.c.document_id.in_(mine)).values(document_id=own))


def busy(db: Database, building: Building) -> bool:
    """Whether somebody works on the build, or could. A cheap look: it reads no shadow that is done."""
    made = building.collection.id
    with db.read() as connection:
        if connection.scalar(select(batches.c.id).where(OPEN, batches.c.collection_id == made).limit(1)) is not None:
            return True
        own = list(connection.scalars(select(runs.c.id).where(runs.c.collection_id == made, runs.c.finished_at.is_(None))))
        waiting = select(documents.c.id).where(documents.c.run_id.in_(own), WAITING).limit(1)
        return bool(own) and connection.scalar(waiting) is not None


def stopped(db: Database, building: Building) -> bool:
    """Whether a document of the build has failed or was cancelled."""
    mine = documents.c.collection_id == building.collection.id
    with db.read() as connection:
        for status in STOPPED:
            # One at a time and written out: dead letters have an index of their own.
            if connection.scalar(select(documents.c.id).where(mine, documents.c.status == literal_column(f"'{status}'")).limit(1)) is not None:
                return True
    return False


def pending(connection: Connection, building: Building) -> tuple[int, int]:
    """(shadows under way, shadows that failed)."""
    rows = connection.execute(
        select(documents.c.status, func.count()).where(documents.c.collection_id == building.collection.id).group_by(documents.c.status)
    )
    counts = {str(status): int(number) for status, number in rows}
    return sum(counts.get(status, 0) for status in MOVING), sum(counts.get(status, 0) for status in STOPPED)


def differs(connection: Connection, building: Building) -> bool:
    """True while a document that answers has no shadow of its version, or one that answers no more has one."""
    missing = select(main.c.id).select_from(BUILT_FOR).where(lacking(building)).limit(1)
    extra = select(shadow.c.id).select_from(OWN).where(needless(building)).limit(1)
    return connection.scalar(missing) is not None or connection.scalar(extra) is not None


def chase(db: Database, building: Building) -> None:
    """Documents changed while the build was made; after the third time nothing more of the collection is begun until it answers."""
    mine = (generations.c.collection_id == building.main_id, generations.c.generation == building.collection.generation)
    with db.write() as connection:
        waves = connection.execute(update(generations).where(*mine).values(waves=generations.c.waves + 1).returning(generations.c.waves)).scalar()
        if waves is not None and waves > CATCH_UPS:
            held = (collections.c.id == building.main_id, collections.c.paused == 0)
            connection.execute(update(collections).where(*held).values(paused=HELD_BACK))


def released() -> ColumnElement[Any]:
    """`collections.paused` once the build is over; a person's own pause stays."""
    return case((collections.c.paused == HELD_BACK, 0), else_=collections.c.paused)


def fail(db: Database, building: Building) -> None:
    """The run ends as failed; the building generation stays, so that it can be gone on with."""
    with db.write() as connection:
        connection.execute(update(runs).where(runs.c.id == building.run_id, runs.c.finished_at.is_(None)).values(scan="incomplete"))
        connection.execute(update(collections).where(collections.c.id == building.main_id).values(paused=released()))
        balance.finish(connection, [building.run_id], db.now(connection))


def built() -> ColumnElement[bool]:
    """Of `documents`: a shadow that was made, rather than found in a generation that answered before."""
    return and_(documents.c.status == "done", documents.c.run_id != 0)
