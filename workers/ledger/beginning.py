"""Beginning a build of a collection, going on with one, and returning to one that answered before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, and_, insert, select, update

from pipeline.contracts import Lane, Stage
from pipeline.errors import Conflict, NotFound
from workers.ledger import balance, flipping, generations, shadows
from workers.ledger.batches import collection_row
from workers.ledger.engine import Database
from workers.ledger.generations import OPTIONS, Building
from workers.ledger.schema import collections, documents, retained
from workers.ledger.work import CollectionRow

NEVER: Mapping[str, int] = {}


def begin(
    db: Database, row: CollectionRow, options: Mapping[str, object], *, generation: int | None = None, held: Mapping[str, int] = NEVER
) -> Building:
    """Open the next generation, or go on with the one under construction when it has the same options.

    Args:
        row: the collection as its caller saw it when the options were chosen.
        options: `OPTIONS` and ``dimension`` of the new generation.
        generation: a retained one to return to, instead of a new number.
        held: document id → version that the store holds of that generation.
    A build that was cancelled, or failed with other options, makes room. Raises Conflict when another one is under construction, NotFound.
    """
    with db.write() as connection:
        now = db.now(connection)
        main = connection.execute(select(collections).where(collections.c.id == row.id, collections.c.status == "live").with_for_update()).first()
        if main is None:
            raise NotFound(f"there is no collection {row.name!r}", code="collection_not_found")
        if main.generation != row.generation:
            raise Conflict(
                f"another generation of {row.name!r} has just begun to answer", hint="Look at it, then ask again.", code="generation_changed"
            )
        mine = (collections.c.tenant == row.tenant, collections.c.name == row.name, collections.c.status == "building")
        found = connection.execute(select(collections).where(*mine)).first()
        if found is not None:
            present = generations.of_row(connection, found, row.id)
            if not present.cancelled and _same(found, options, generation):
                return _go_on(connection, present, now)
            _refuse(present)
            flipping.abandoned(connection, present, now)
        return _open(connection, row, options, generation, held, main.paused == 1, now)


def _same(found: Any, options: Mapping[str, object], generation: int | None) -> bool:
    return generation in (None, found.generation) and all(getattr(found, option) == options[option] for option in OPTIONS)


def _refuse(present: Building) -> None:
    made = present.collection
    if not (present.cancelled or present.run_ended):
        raise Conflict(
            f"another generation of {made.name!r} is being built: {made.chunker}, {made.embedder}",
            hint="Wait for its run, or cancel it: `dujiang runs list`.",
            code="reindex_under_way",
        )


def _open(
    connection: Connection,
    row: CollectionRow,
    options: Mapping[str, object],
    generation: int | None,
    held: Mapping[str, int],
    paused: bool,
    now: float,
) -> Building:
    number = generation or generations.following(connection, row)
    generations.note(connection, row.id, row.generation, generations.options_of_row(row), "live", created_at=row.created_at, live_at=row.created_at)
    generations.note(connection, row.id, number, options, "building", created_at=now)
    mine = generations.building_id(row.id, number)
    values = {name: options[name] for name in (*OPTIONS, "dimension")}
    place = {"tenant": row.tenant, "name": row.name, "store_url": row.store_url, "paused": int(paused)}
    connection.execute(insert(collections).values(id=mine, generation=number, status="building", created_at=now, **place, **values))
    made = collection_row(connection.execute(select(collections).where(collections.c.id == mine)).one())
    if generation is not None:
        _take_retained(connection, row, made, held, now)
    return Building(made, row.id, _open_run(connection, made, now, "reindex" if generation is None else "rollback"), False, False)


def _open_run(connection: Connection, made: CollectionRow, now: float, source: str = "reindex") -> int:
    of = {"tenant": made.tenant, "collection_id": made.id, "collection": made.name, "source": source, "kind": "reindex"}
    return balance.open_run(connection, now, **of, lane=Lane.BULK, status="running")


def go_on(db: Database, building: Building) -> Building:
    """A build whose run has ended, under a new run. What failed is begun again."""
    with db.write() as connection:
        return _go_on(connection, building, db.now(connection))


def _go_on(connection: Connection, building: Building, now: float) -> Building:
    if not building.run_ended:
        return building
    run = _open_run(connection, building.collection, now)
    mine = documents.c.collection_id == building.collection.id
    # Without its row a document of the build is missing, and is begun anew.
    stopped = and_(mine, documents.c.status.in_(shadows.STOPPED))
    shadows.own_name(connection, building.collection.id, stopped)
    generations.forget_shadows(connection, stopped)
    connection.execute(update(documents).where(mine, documents.c.status.in_(shadows.MOVING)).values(run_id=run))
    return replace(building, run_id=run, run_ended=False)


def _take_retained(connection: Connection, row: CollectionRow, made: CollectionRow, held: Mapping[str, int], now: float) -> None:
    """Documents that the retained generation holds in the version that still answers need no work."""
    main = shadows.main
    kept = and_(retained.c.document_id == main.c.id, retained.c.version == main.c.live_version)
    mine = (retained.c.collection_id == row.id, retained.c.generation == made.generation, generations.answers(main))
    found = connection.execute(select(main, retained.c.chunks.label("held")).join(retained, kept).where(*mine)).all()
    there = [one for one in found if held.get(one.id) == one.live_version]
    for start in range(0, len(there), shadows.SLICE):
        rows = [shadows.row_of(one, made, 0, now) | _done(one) for one in there[start : start + shadows.SLICE]]
        connection.execute(insert(documents), rows)


def _done(found: Any) -> dict[str, object]:
    return {"status": "done", "stage": Stage.INDEX.value, "live_version": found.live_version, "live_chunks": found.held, "chunks": found.held}
