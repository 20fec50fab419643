"""Builds of a collection: the next one grows beside the one that answers, and takes its place in one transaction.

While it grows, the building generation has a row of its own in `collections` and a shadow row in `documents` for each document that answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, delete, func, insert, or_, select, update

from pipeline import identity
from pipeline.contracts import Lane, Stage
from pipeline.errors import Conflict, NotFound
from workers.ledger import balance
from workers.ledger.batches import collection_row
from workers.ledger.engine import Database, upsert
from workers.ledger.schema import artifact_refs, attempts, collections, documents, generations, retained, run_items, runs
from workers.ledger.work import CollectionRow

SLICE = 500
MOVING = ("ready", "queued", "retry")
MARK = 16
"""Length of either half of a document's fingerprint: its own part, then the collection's."""
OPTIONS = ("chunker", "chunk_options", "tokenizer", "embedder", "embedder_revision")


@dataclass(frozen=True, slots=True)
class Building:
    """A generation under construction."""

    collection: CollectionRow
    """The building row: its id, generation and options."""
    main_id: str
    run_id: int
    run_ended: bool
    cancelled: bool


@dataclass(frozen=True, slots=True)
class GenerationRow:
    """One build that the store may hold."""

    generation: int
    status: str
    """building, live, retained, dropping."""
    chunker: str
    embedder: str
    dimension: int | None
    created_at: float
    live_at: float | None
    retired_at: float | None


def building_id(collection_id: str, generation: int) -> str:
    return identity.fingerprint({"collection": collection_id, "generation": generation})


def shadow_id(document_id: str, generation: int) -> str:
    return identity.fingerprint({"document": document_id, "generation": generation})


def listed(db: Database, collection_id: str) -> tuple[GenerationRow, ...]:
    """Every build of a collection, oldest first; empty while there was never a second one."""
    columns = [generations.c[name] for name in GenerationRow.__dataclass_fields__]
    with db.read() as connection:
        rows = connection.execute(select(*columns).where(generations.c.collection_id == collection_id).order_by(generations.c.generation))
        return tuple(GenerationRow(*row) for row in rows)


def indices(db: Database, row: CollectionRow) -> list[str]:
    """Names of all indices of a collection that the store may hold, the one that answers first."""
    others = [found.generation for found in listed(db, row.id) if found.generation != row.generation]
    return [identity.index_name(row.tenant, row.name, number) for number in (row.generation, *others)]


def begin(db: Database, row: CollectionRow, options: Mapping[str, object], *, generation: int | None = None) -> Building:
    """Open the next generation, or go on with the one under construction when it has the same options.

    Args:
        options: `OPTIONS` and ``dimension`` of the new generation.
        generation: a retained one to return to, instead of a new number.
    Raises Conflict when another one is under construction.
    """
    with db.write() as connection:
        now = db.now(connection)
        found = connection.execute(
            select(collections).where(collections.c.tenant == row.tenant, collections.c.name == row.name, collections.c.status == "building")
        ).first()
        if found is not None:
            _same(found, options, row.name)
            return _again(connection, collection_row(found), row.id, now)
        number = generation or _next(connection, row)
        _note(connection, row.id, row.generation, _options_of(row), "live", now)
        _note(connection, row.id, number, options, "building", now)
        mine = building_id(row.id, number)
        values = {name: options[name] for name in (*OPTIONS, "dimension")}
        connection.execute(
            insert(collections).values(
                id=mine, tenant=row.tenant, name=row.name, store_url=row.store_url, generation=number, status="building", created_at=now, **values
            )
        )
        made = collection_row(connection.execute(select(collections).where(collections.c.id == mine)).one())
        if generation is not None:
            _take_retained(connection, row, made, now)
        return Building(made, row.id, _open_run(connection, made, now), False, False)


def _options_of(row: CollectionRow) -> dict[str, object]:
    values: dict[str, object] = {name: getattr(row, name) for name in (*OPTIONS, "dimension")}
    return values | {"chunk_options": json.dumps(dict(row.chunk_options), sort_keys=True)}


def _same(found: Any, options: Mapping[str, object], name: str) -> None:
    if any(getattr(found, option) != options[option] for option in OPTIONS):
        raise Conflict(
            f"another generation of {name!r} is being built: {found.chunker}, {found.embedder}",
            hint="Wait for its run, or cancel it: `dujiang runs list`.",
            code="reindex_under_way",
        )


def _next(connection: Connection, row: CollectionRow) -> int:
    highest = connection.scalar(select(func.max(generations.c.generation)).where(generations.c.collection_id == row.id)) or 0
    return max(int(highest), row.generation) + 1


def _note(connection: Connection, collection_id: str, number: int, options: Mapping[str, object], status: str, now: float) -> None:
    known = connection.execute(
        update(generations).where(generations.c.collection_id == collection_id, generations.c.generation == number).values(status=status)
    )
    if not known.rowcount:
        values = {name: options[name] for name in (*OPTIONS, "dimension")}
        connection.execute(insert(generations).values(collection_id=collection_id, generation=number, status=status, created_at=now, **values))


def _open_run(connection: Connection, made: CollectionRow, now: float) -> int:
    values = {
        "tenant": made.tenant,
        "collection_id": made.id,
        "collection": made.name,
        "source": "reindex",
        "kind": "reindex",
        "lane": Lane.BULK.value,
    }
    return int(connection.execute(insert(runs).values(**values, status="running", scan="open", started_at=now).returning(runs.c.id)).scalar_one())


def _again(connection: Connection, made: CollectionRow, main_id: str, now: float) -> Building:
    """The open run of a building generation, or a new one that takes up what failed before."""
    run = connection.scalar(select(func.max(runs.c.id)).where(runs.c.collection_id == made.id, runs.c.finished_at.is_(None)))
    if run is None:
        run = _open_run(connection, made, now)
        # What failed or was cancelled is made anew: without its row it is missing.
        forget_shadows(connection, and_(documents.c.collection_id == made.id, documents.c.status.not_in(("done", *MOVING))))
        connection.execute(update(documents).where(documents.c.collection_id == made.id, documents.c.status.in_(MOVING)).values(run_id=run))
    return Building(made, main_id, int(run), False, False)


def _take_retained(connection: Connection, row: CollectionRow, made: CollectionRow, now: float) -> None:
    """Documents that the retained generation holds in the version that still answers need no work."""
    main = documents.alias("main")
    held = connection.execute(
        select(main, retained.c.chunks.label("held"))
        .join(retained, and_(retained.c.document_id == main.c.id, retained.c.version == main.c.live_version))
        .where(retained.c.collection_id == row.id, retained.c.generation == made.generation, answers(main))
    ).all()
    for start in range(0, len(held), SLICE):
        rows = [
            _shadow(found, made, 0, now)
            | {"status": "done", "stage": Stage.INDEX.value, "live_version": found.live_version, "live_chunks": found.held}
            for found in held[start : start + SLICE]
        ]
        connection.execute(insert(documents), rows)


def answers(main: Any) -> ColumnElement[bool]:
    return and_(main.c.live_version.is_not(None), main.c.hidden_at.is_(None), main.c.status.not_in(("deleting", "deleted", "hiding")))


def _shadow(main: Any, made: CollectionRow, run_id: int, now: float) -> dict[str, Any]:
    copied = ("tenant", "key", "title", "url", "media_type", "size", "meta", "options", "access", "lane", "route", "source_id")
    return {name: getattr(main, name) for name in copied} | {
        "id": shadow_id(main.id, made.generation),
        "collection_id": made.id,
        "shadow_of": main.id,
        "run_id": run_id,
        "version": main.live_version,
        "source_hash": main.live_hash,
        "stage": Stage.LOAD.value,
        "status": "ready",
        "updated_at": now,
    }


def under_construction(db: Database) -> list[Building]:
    """Every generation that is being built."""
    main = collections.alias("main")
    with db.read() as connection:
        rows = connection.execute(
            select(collections, main.c.id.label("main_id"))
            .join(main, and_(main.c.tenant == collections.c.tenant, main.c.name == collections.c.name, main.c.status == "live"))
            .where(collections.c.status == "building")
        ).all()
        return [_building(connection, row) for row in rows]


def _building(connection: Connection, row: Any) -> Building:
    values = dict(row._mapping)
    main_id = str(values.pop("main_id"))
    values["chunk_options"] = json.loads(values["chunk_options"])
    values["paused"] = bool(values["paused"])
    run = connection.execute(select(runs).where(runs.c.collection_id == row.id).order_by(runs.c.id.desc()).limit(1)).first()
    ended = run is None or run.finished_at is not None
    return Building(CollectionRow(**values), main_id, int(run.id) if run else 0, ended, run is not None and run.status in ("cancelled", "cancelling"))


def follow(db: Database, building: Building) -> int:
    """Begin shadows of documents that are new or changed since; returns how many."""
    main, shadow = documents.alias("main"), documents.alias("shadow")
    behind = or_(shadow.c.id.is_(None), shadow.c.version < main.c.live_version)
    joined = and_(shadow.c.shadow_of == main.c.id, shadow.c.collection_id == building.collection.id)
    with db.write() as connection:
        # Two followers, a supervisor and a beat, must not begin the same shadow twice.
        connection.execute(select(collections.c.id).where(collections.c.id == building.collection.id).with_for_update())
        now = db.now(connection)
        rows = connection.execute(
            select(main)
            .outerjoin(shadow, joined)
            .where(main.c.collection_id == building.main_id, answers(main), behind)
            .order_by(main.c.id)
            .limit(SLICE)
        ).all()
        if not rows:
            return 0
        ids = {row.id: shadow_id(row.id, building.collection.generation) for row in rows}
        forget_shadows(connection, documents.c.id.in_(list(ids.values())))
        connection.execute(insert(documents), [_shadow(row, building.collection, building.run_id, now) for row in rows])
        _copy_refs(connection, {row.id: int(row.live_version) for row in rows}, ids, now)
        items = [{"run_id": building.run_id, "document_id": name, "outcome": "pending"} for name in ids.values()]
        connection.execute(delete(run_items).where(run_items.c.run_id == building.run_id, run_items.c.document_id.in_(list(ids.values()))))
        connection.execute(insert(run_items), items)
    return len(rows)


def _copy_refs(connection: Connection, versions: Mapping[str, int], ids: Mapping[str, str], now: float) -> None:
    """Bytes and parsed text of the version that answers serve the next generation too."""
    found = connection.execute(
        select(artifact_refs).where(artifact_refs.c.document_id.in_(list(versions)), artifact_refs.c.stage.in_((Stage.LOAD.value, Stage.PARSE.value)))
    )
    rows = [
        {**row._mapping, "document_id": ids[row.document_id], "created_at": now}  # pyright: ignore[reportPrivateUsage]
        for row in found
        if row.version == versions[row.document_id]
    ]
    upsert(connection, artifact_refs, rows)


def departed(db: Database, building: Building) -> list[str]:
    """Documents that answer no more and still have a shadow: their own ids."""
    main, shadow = documents.alias("main"), documents.alias("shadow")
    with db.read() as connection:
        return list(
            connection.scalars(
                select(shadow.c.shadow_of)
                .outerjoin(main, main.c.id == shadow.c.shadow_of)
                .where(shadow.c.collection_id == building.collection.id, or_(main.c.id.is_(None), ~answers(main)))
                .limit(SLICE)
            )
        )


def forget(db: Database, building: Building, document_ids: Sequence[str]) -> None:
    """Remove the shadows of documents that are out of the building index already."""
    ids = [shadow_id(name, building.collection.generation) for name in document_ids]
    with db.write() as connection:
        balance.settle(connection, [(name, "skipped", 0, "the document was deleted meanwhile") for name in ids], db.now(connection))
        forget_shadows(connection, documents.c.id.in_(ids))


def forget_shadows(connection: Connection, which: ColumnElement[bool]) -> None:
    mine = select(documents.c.id).where(which)
    connection.execute(delete(artifact_refs).where(artifact_refs.c.document_id.in_(mine)))
    connection.execute(delete(attempts).where(attempts.c.document_id.in_(mine)))
    connection.execute(delete(documents).where(which))


def pending(db: Database, building: Building) -> tuple[int, int]:
    """(shadows under way, shadows that failed)."""
    with db.read() as connection:
        return pending_in(connection, building)


def pending_in(connection: Connection, building: Building) -> tuple[int, int]:
    rows = connection.execute(
        select(documents.c.status, func.count()).where(documents.c.collection_id == building.collection.id).group_by(documents.c.status)
    )
    counts = {str(status): int(number) for status, number in rows}
    return sum(counts.get(status, 0) for status in MOVING), counts.get("dead", 0) + counts.get("cancelled", 0) + counts.get("skipped", 0)


def fail(db: Database, building: Building) -> None:
    """The run ends as failed; the building generation stays, so that it can be gone on with."""
    with db.write() as connection:
        connection.execute(update(runs).where(runs.c.id == building.run_id).values(scan="incomplete"))
        balance.finish(connection, [building.run_id], db.now(connection))


def last_retained(db: Database, row: CollectionRow) -> int:
    """The generation that answered before. Raises NotFound."""
    found = [one.generation for one in listed(db, row.id) if one.status == "retained"]
    if not found:
        raise NotFound(
            f"no earlier generation of {row.name!r} is kept", hint="Reindex with the earlier options instead.", code="no_retained_generation"
        )
    return found[-1]


def options_of(db: Database, collection_id: str, generation: int) -> dict[str, object]:
    """What a generation was built with."""
    with db.read() as connection:
        where = (generations.c.collection_id == collection_id, generations.c.generation == generation)
        row = connection.execute(select(*[generations.c[name] for name in (*OPTIONS, "dimension")]).where(*where)).one()
        return dict(row._mapping)  # pyright: ignore[reportPrivateUsage]


def surplus(db: Database, keep: int) -> list[tuple[str, str, str, int]]:
    """(collection id, tenant, name, generation) of builds that nobody needs: given up, or retired beyond the `keep` newest."""
    query = (
        select(generations, collections.c.tenant, collections.c.name)
        .join(collections, collections.c.id == generations.c.collection_id)
        .where(generations.c.status.in_(("retained", "dropping")))
        .order_by(generations.c.collection_id, generations.c.retired_at.desc())
    )
    found: list[tuple[str, str, str, int]] = []
    kept: dict[str, int] = {}
    with db.read() as connection:
        for row in connection.execute(query):
            if row.status == "retained":
                kept[row.collection_id] = kept.get(row.collection_id, 0) + 1
            if row.status == "dropping" or kept[row.collection_id] > keep:
                found.append((row.collection_id, row.tenant, row.name, row.generation))
    return found


def dropped(db: Database, collection_id: str, generation: int) -> None:
    """The store holds it no more."""
    with db.write() as connection:
        where = (generations.c.collection_id == collection_id, generations.c.generation == generation, generations.c.status != "live")
        connection.execute(delete(generations).where(*where))
        connection.execute(delete(retained).where(retained.c.collection_id == collection_id, retained.c.generation == generation))
