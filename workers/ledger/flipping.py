"""The moment at which another generation of a collection answers, and the end of one that never will."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, and_, delete, exists, func, insert, literal, or_, select, tuple_, update
from sqlalchemy.dialects import postgresql, sqlite

from pipeline.contracts import Stage
from workers.ledger import balance, shadows
from workers.ledger.batches import members
from workers.ledger.engine import Database
from workers.ledger.generations import ENDED, MARK, OPTIONS, Building, answers, forget_shadows, options_of_row
from workers.ledger.schema import OPEN, artifact_refs, batches, collections, documents, generations, retained, runs
from workers.ledger.shadows import MOVING, shadow

OF_A_GENERATION = (Stage.CHUNK, Stage.EMBED, Stage.INDEX)
"""Stages that work as the generation wants it; load and parse serve every one."""
CUT = (Stage.CHUNK.value, Stage.EMBED.value)
"""Outputs that are a generation's own."""
PATIENCE_MS = 500
"""How long a flip waits for a row on PostgreSQL: shorter than its search for deadlocks, so that the flip gives way and comes again."""


class _NotYet(Exception):
    """Undoes the transaction of a flip that came too early."""


def flip(db: Database, building: Building, base: str, *, accept: bool = False) -> bool:
    """Let the new generation answer, in one transaction; False when it is not whole, or something changed meanwhile: then nothing was done.

    Args:
        base: how the new generation's documents are built; the second half of their fingerprints.
        accept: documents that failed in the new generation answer no more, instead of keeping it from answering.
    """
    try:
        with db.write() as connection:
            _flip(connection, building, base, db.now(connection), accept=accept)
    except _NotYet:
        return False
    return True


def _flip(connection: Connection, building: Building, base: str, now: float, *, accept: bool) -> None:
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {PATIENCE_MS}")
    made = building.collection
    present = (collections.c.id == made.id, collections.c.status == "building")
    if connection.execute(select(collections.c.id).where(*present).with_for_update()).first() is None or _given_up(connection, building):
        raise _NotYet
    # In the order in which a commit takes them. From here on nobody who works as the old generation wants it can commit.
    closed = _take_back(connection, building.main_id, now)
    live = (collections.c.id == building.main_id, collections.c.status == "live")
    old = connection.execute(select(collections.c.generation, collections.c.dimension).where(*live).with_for_update()).first()
    moving, failed = shadows.pending(connection, building)
    if old is None or moving or (failed and not accept) or shadows.differs(connection, building):
        raise _NotYet
    _retire(connection, building, int(old.generation))
    _hand_over(connection, building, base, now)
    _lose(connection, building)
    _move_refs(connection, building)
    shadows.own_name(connection, made.id, documents.c.collection_id == made.id)
    forget_shadows(connection, documents.c.collection_id == made.id)
    _restart(connection, building.main_id, closed, base, now)
    dimension = made.dimension or connection.scalar(select(collections.c.dimension).where(collections.c.id == made.id))
    _answer(connection, building, int(old.generation), old.dimension, dimension, now)
    _end_runs(connection, building, now)


def _given_up(connection: Connection, building: Building) -> bool:
    return connection.scalar(select(runs.c.status).where(runs.c.id == building.run_id)) in ENDED


def _take_back(connection: Connection, collection_id: str, now: float, stages: tuple[Stage, ...] = OF_A_GENERATION) -> list[int]:
    """Close the open batches of these stages: whoever holds one has lost it. Gives which."""
    wanted = or_(*(batches.c.stages.contains(stage.value) for stage in stages))
    query = select(batches.c.id).where(OPEN, batches.c.collection_id == collection_id, wanted).order_by(batches.c.id)
    found = list(connection.scalars(query.with_for_update()))
    for batch_id in found:
        held = connection.scalars(select(documents.c.id).where(documents.c.batch_id == batch_id).order_by(documents.c.id))
        closed = {"status": "done", "owner": "", "lease_until": None, "finished_at": now, "members": members(held)}
        connection.execute(update(batches).where(batches.c.id == batch_id).values(**closed))
    return found


def _retire(connection: Connection, building: Building, number: int) -> None:
    """Remember what the generation that is leaving holds, for a way back."""
    connection.execute(
        delete(retained).where(retained.c.collection_id == building.main_id, retained.c.generation.in_((number, building.collection.generation)))
    )
    held = select(literal(building.main_id), literal(number), documents.c.id, documents.c.live_version, documents.c.live_chunks)
    held = held.where(documents.c.collection_id == building.main_id, answers(documents))
    connection.execute(insert(retained).from_select(["collection_id", "generation", "document_id", "version", "chunks"], held))


def _mark(column: ColumnElement[str], base: str) -> ColumnElement[str]:
    """A fingerprint with the document's own part kept and the collection's replaced."""
    return func.substr(column, 1, MARK).op("||")(base[:MARK])


def _hand_over(connection: Connection, building: Building, base: str, now: float) -> None:
    """Counts and marks of what was built become the documents' own."""
    joined = and_(shadow.c.shadow_of == documents.c.id, shadow.c.collection_id == building.collection.id, shadow.c.status == "done")
    values = {"live_chunks": shadow.c.live_chunks, "live_fingerprint": _mark(documents.c.live_fingerprint, base), "updated_at": now}
    connection.execute(update(documents).where(joined).values(**values))
    at_rest = (documents.c.collection_id == building.main_id, documents.c.status == "done", documents.c.live_version.is_not(None))
    connection.execute(update(documents).where(*at_rest).values(chunks=documents.c.live_chunks))


def _lose(connection: Connection, building: Building) -> None:
    """Documents that failed in the new generation answer no more; those at rest become dead letters with the reason."""
    joined = and_(shadow.c.shadow_of == documents.c.id, shadow.c.collection_id == building.collection.id, shadow.c.status != "done")
    errors = {name: shadow.c[name] for name in ("error_stage", "error_code", "error_detail", "error_hint", "error_trace")}
    at_rest = and_(joined, documents.c.status == "done")
    connection.execute(update(documents).where(at_rest).values(status="dead", run_id=building.run_id, **errors))
    connection.execute(update(documents).where(joined).values(live_version=None, live_hash="", live_fingerprint="", live_chunks=0))


def _move_refs(connection: Connection, building: Building) -> None:
    """What was made for the new generation stands for the version that answers; what belonged to the old one alone goes."""
    mine = documents.c.collection_id == building.collection.id
    place = tuple_(artifact_refs.c.document_id, artifact_refs.c.version)
    found = select(documents.c.shadow_of, documents.c.version).where(mine, documents.c.run_id == 0)
    connection.execute(delete(artifact_refs).where(artifact_refs.c.stage.in_(CUT), place.in_(found)))
    same = artifact_refs.alias("same")
    alike = and_(*(same.c[name] == artifact_refs.c[name] for name in ("version", "stage", "pack", "start")))
    copied = exists().where(same.c.document_id == documents.c.shadow_of, alike)
    rest = [column for column in artifact_refs.c if column.name != "document_id"]
    made = select(documents.c.shadow_of, *rest).join(documents, documents.c.id == artifact_refs.c.document_id)
    made = made.where(mine, shadows.built(), documents.c.version == artifact_refs.c.version, or_(artifact_refs.c.stage.in_(CUT), ~copied))
    put = (postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert)(artifact_refs)
    put = put.from_select(["document_id", *(column.name for column in rest)], made)
    keys = ["document_id", "version", "stage"]
    values = {column.name: put.excluded[column.name] for column in rest if column.name not in keys}
    connection.execute(put.on_conflict_do_update(index_elements=keys, set_=values))


def _restart(connection: Connection, main_id: str, closed: list[int], base: str, now: float) -> None:
    """What is under way goes on as the new generation wants it: from chunk where it was past that, from where it was otherwise."""
    mine = documents.c.collection_id == main_id
    late = documents.c.stage.in_((Stage.EMBED.value, Stage.INDEX.value))
    connection.execute(update(documents).where(mine, documents.c.status.in_(MOVING), late).values(stage=Stage.CHUNK.value))
    for batch_id in closed:
        again = {"status": "ready", "batch_id": None, "next_at": 0.0, "updated_at": now}
        connection.execute(update(documents).where(documents.c.batch_id == batch_id).values(**again))
    connection.execute(update(documents).where(mine, documents.c.fingerprint != "").values(fingerprint=_mark(documents.c.fingerprint, base)))


def _answer(connection: Connection, building: Building, old: int, old_dimension: int | None, dimension: int | None, now: float) -> None:
    made, main_id = building.collection, building.main_id
    connection.execute(update(runs).where(runs.c.collection_id == made.id).values(collection_id=main_id))
    connection.execute(delete(collections).where(collections.c.id == made.id))
    given = {name: value for name, value in options_of_row(made).items() if name in OPTIONS}
    values = given | {"dimension": dimension, "generation": made.generation, "revision": collections.c.revision + 1, "paused": shadows.released()}
    connection.execute(update(collections).where(collections.c.id == main_id).values(**values))
    mine = generations.c.collection_id == main_id
    leaving = {"status": "retained", "retired_at": now, "dimension": old_dimension}
    connection.execute(update(generations).where(mine, generations.c.generation == old).values(**leaving))
    coming = {"status": "live", "live_at": now, "retired_at": None, "dimension": dimension, "waves": 0}
    connection.execute(update(generations).where(mine, generations.c.generation == made.generation).values(**coming))


def _end_runs(connection: Connection, building: Building, now: float) -> None:
    mine = runs.c.id == building.run_id
    connection.execute(update(runs).where(mine).values(scan="complete"))
    # A run that ended as failed has come to its end after all; what failed is in its balance.
    connection.execute(update(runs).where(mine, runs.c.status == "failed").values(status="done"))
    balance.finish(connection, [building.run_id], now)


def abandon(db: Database, building: Building) -> None:
    """Give up a building generation; its index is dropped next, unless it has answered before: then it stays to be returned to."""
    with db.write() as connection:
        abandoned(connection, building, db.now(connection))


def abandoned(connection: Connection, building: Building, now: float) -> None:
    """See `abandon`. In the caller's transaction."""
    made, main_id = building.collection, building.main_id
    mine = documents.c.collection_id == made.id
    _take_back(connection, made.id, now, tuple(Stage))
    build = and_(generations.c.collection_id == main_id, generations.c.generation == made.generation)
    before = connection.scalar(select(generations.c.live_at).where(build)) is not None
    if before:
        connection.execute(delete(retained).where(retained.c.collection_id == main_id, retained.c.generation == made.generation))
        held = select(literal(main_id), literal(made.generation), documents.c.shadow_of, documents.c.version, documents.c.live_chunks)
        columns = ["collection_id", "generation", "document_id", "version", "chunks"]
        connection.execute(insert(retained).from_select(columns, held.where(mine, documents.c.status == "done")))
    connection.execute(update(generations).where(build).values(status="retained" if before else "dropping", waves=0))
    shadows.own_name(connection, made.id, mine)
    forget_shadows(connection, mine)
    connection.execute(update(runs).where(runs.c.collection_id == made.id).values(collection_id=main_id))
    connection.execute(delete(collections).where(collections.c.id == made.id))
    connection.execute(update(collections).where(collections.c.id == main_id).values(paused=shadows.released()))
    balance.finish(connection, [building.run_id], now)
