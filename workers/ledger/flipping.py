"""The moment at which another generation of a collection answers, and the end of one that never will."""

from __future__ import annotations

import json

from sqlalchemy import Connection, and_, delete, exists, func, insert, literal, or_, select, update

from pipeline.contracts import Stage
from workers.ledger import balance
from workers.ledger.engine import Database
from workers.ledger.generations import MARK, MOVING, OPTIONS, Building, answers, forget_shadows, pending_in
from workers.ledger.schema import artifact_refs, collections, documents, generations, retained, run_items, runs


def flip(db: Database, building: Building, base: str, *, accept: bool = False) -> bool:
    """Let the new generation answer, in one transaction; False when something changed meanwhile, and nothing was done.

    Args:
        base: how the new generation's documents are built; the second half of their fingerprints.
        accept: documents that failed in the new generation answer no more, instead of keeping it from answering.
    """
    made = building.collection
    with db.write() as connection:
        now = db.now(connection)
        old = connection.execute(select(collections).where(collections.c.id == building.main_id).with_for_update()).one()
        moving, failed = pending_in(connection, building)
        if moving or (failed and not accept) or _behind(connection, building):
            return False
        dimension = made.dimension or connection.scalar(select(collections.c.dimension).where(collections.c.id == made.id))
        _retire(connection, building, int(old.generation))
        _hand_over(connection, building, base, now)
        _restart(connection, building.main_id, now)
        connection.execute(
            update(runs).where(runs.c.collection_id == made.id).values(collection_id=building.main_id),
        )
        connection.execute(delete(collections).where(collections.c.id == made.id))
        values = {name: getattr(made, name) for name in OPTIONS} | {"chunk_options": json.dumps(dict(made.chunk_options), sort_keys=True)}
        connection.execute(
            update(collections)
            .where(collections.c.id == building.main_id)
            .values(**values, dimension=dimension, generation=made.generation, revision=collections.c.revision + 1)
        )
        mine = generations.c.collection_id == building.main_id
        connection.execute(update(generations).where(mine, generations.c.generation == old.generation).values(status="retained", retired_at=now))
        connection.execute(
            update(generations).where(mine, generations.c.generation == made.generation).values(status="live", live_at=now, dimension=dimension)
        )
        connection.execute(update(runs).where(runs.c.id == building.run_id).values(scan="complete"))
        balance.finish(connection, [building.run_id], now)
    return True


def _behind(connection: Connection, building: Building) -> bool:
    """True while a document that answers has no shadow of its version, or one that answers no more has one."""
    main, shadow = documents.alias("main"), documents.alias("shadow")
    joined = and_(shadow.c.shadow_of == main.c.id, shadow.c.collection_id == building.collection.id)
    missing = select(literal(1)).select_from(main.outerjoin(shadow, joined))
    missing = missing.where(
        main.c.collection_id == building.main_id, answers(main), or_(shadow.c.id.is_(None), shadow.c.version < main.c.live_version)
    )
    extra = select(literal(1)).select_from(shadow.outerjoin(main, main.c.id == shadow.c.shadow_of))
    extra = extra.where(shadow.c.collection_id == building.collection.id, or_(main.c.id.is_(None), ~answers(main)))
    return connection.scalar(missing.limit(1)) is not None or connection.scalar(extra.limit(1)) is not None


def _retire(connection: Connection, building: Building, number: int) -> None:
    """Remember what the generation that is leaving holds, for a way back."""
    connection.execute(
        delete(retained).where(retained.c.collection_id == building.main_id, retained.c.generation.in_((number, building.collection.generation)))
    )
    held = select(literal(building.main_id), literal(number), documents.c.id, documents.c.live_version, documents.c.live_chunks).where(
        documents.c.collection_id == building.main_id, documents.c.live_version.is_not(None)
    )
    connection.execute(insert(retained).from_select(["collection_id", "generation", "document_id", "version", "chunks"], held))


def _hand_over(connection: Connection, building: Building, base: str, now: float) -> None:
    """Counts, marks and outputs of the shadows become the documents' own; the shadows go."""
    shadow = documents.alias("shadow")
    joined = and_(shadow.c.shadow_of == documents.c.id, shadow.c.collection_id == building.collection.id)
    own, done = documents.c.collection_id == building.main_id, exists().where(joined, shadow.c.status == "done")
    chunks = select(shadow.c.live_chunks).where(joined).scalar_subquery()
    mark = func.substr(documents.c.live_fingerprint, 1, MARK).op("||")(base[:MARK])
    connection.execute(update(documents).where(own, done).values(live_chunks=chunks, live_fingerprint=mark, updated_at=now))
    connection.execute(
        update(documents)
        .where(own, done, documents.c.status == "done")
        .values(chunks=documents.c.live_chunks, fingerprint=documents.c.live_fingerprint)
    )
    for name in ("error_stage", "error_code", "error_detail", "error_hint"):
        lost = exists().where(joined, shadow.c.status != "done")
        value = select(shadow.c[name]).where(joined).scalar_subquery()
        connection.execute(update(documents).where(own, lost, documents.c.status == "done").values({name: value}))
    lost = exists().where(joined, shadow.c.status != "done")
    connection.execute(update(documents).where(own, lost).values(live_version=None, live_hash="", live_fingerprint="", live_chunks=0))
    connection.execute(update(documents).where(own, lost, documents.c.status == "done").values(status="dead"))
    _move_refs(connection, building)
    mine = select(documents.c.shadow_of).where(documents.c.id == run_items.c.document_id).scalar_subquery()
    theirs = select(documents.c.id).where(documents.c.collection_id == building.collection.id)
    connection.execute(update(run_items).where(run_items.c.run_id == building.run_id, run_items.c.document_id.in_(theirs)).values(document_id=mine))
    forget_shadows(connection, documents.c.collection_id == building.collection.id)


def _move_refs(connection: Connection, building: Building) -> None:
    shadows = select(documents.c.id).where(documents.c.collection_id == building.collection.id, documents.c.run_id != 0)
    moved = artifact_refs.c.stage.in_((Stage.CHUNK.value, Stage.EMBED.value))
    live = exists().where(documents.c.id == artifact_refs.c.document_id, documents.c.live_version == artifact_refs.c.version)
    main = select(documents.c.id).where(documents.c.collection_id == building.main_id)
    connection.execute(delete(artifact_refs).where(moved, artifact_refs.c.document_id.in_(main), live))
    name = select(documents.c.shadow_of).where(documents.c.id == artifact_refs.c.document_id).scalar_subquery()
    connection.execute(update(artifact_refs).where(moved, artifact_refs.c.document_id.in_(shadows)).values(document_id=name))


def _restart(connection: Connection, main_id: str, now: float) -> None:
    """Documents under way were cut or embedded as the old generation wanted: whoever works on them can no longer commit, and they begin again."""
    moving = and_(documents.c.collection_id == main_id, documents.c.status.in_(MOVING))
    late = documents.c.stage.in_((Stage.EMBED.value, Stage.INDEX.value))
    connection.execute(update(documents).where(moving, late).values(stage=Stage.CHUNK.value))
    connection.execute(update(documents).where(moving).values(status="ready", batch_id=None, next_at=0.0, updated_at=now))


def abandon(db: Database, building: Building) -> None:
    """Give up a building generation; its index is dropped next."""
    with db.write() as connection:
        forget_shadows(connection, documents.c.collection_id == building.collection.id)
        connection.execute(delete(collections).where(collections.c.id == building.collection.id))
        mine = and_(generations.c.collection_id == building.main_id, generations.c.generation == building.collection.generation)
        connection.execute(update(generations).where(mine).values(status="dropping"))
        connection.execute(update(runs).where(runs.c.collection_id == building.collection.id).values(collection_id=building.main_id))
        balance.finish(connection, [building.run_id], db.now(connection))
