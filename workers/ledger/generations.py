"""Builds of a collection that the store may hold, and the rows that stand for them.

While the next generation grows beside the one that answers, it has a row of its own in `collections` (status "building"), and a shadow row in
`documents` for each document that answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, delete, func, insert, select, update

from pipeline import identity, tuning
from pipeline.errors import NotFound
from workers.ledger.engine import Database
from workers.ledger.schema import artifact_refs, attempts, collections, documents, generations, retained, runs
from workers.ledger.work import CollectionRow

MARK = 16
"""Length of either half of a document's fingerprint: its own part, then the collection's."""
OPTIONS = ("chunker", "chunk_options", "tokenizer", "embedder", "embedder_revision")
ENDED = ("cancelling", "cancelled")


@dataclass(frozen=True, slots=True)
class Building:
    """A generation under construction."""

    collection: CollectionRow
    """The building row: its id, generation and options."""
    main_id: str
    run_id: int
    """The newest run that builds it."""
    run_ended: bool
    cancelled: bool

    @property
    def index(self) -> str:
        """Its name in the store."""
        return identity.index_name(self.collection.tenant, self.collection.name, self.collection.generation)


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


def answers(main: Any) -> ColumnElement[bool]:
    """Whether a row of `documents` is shown to whoever asks."""
    return and_(main.c.live_version.is_not(None), main.c.hidden_at.is_(None), main.c.status.not_in(("deleting", "deleted", "hiding", "hidden")))


def listed(db: Database, collection_id: str) -> tuple[GenerationRow, ...]:
    """Every build of a collection, oldest first; empty while there was never a second one."""
    columns = [generations.c[name] for name in GenerationRow.__dataclass_fields__]
    mine = (generations.c.collection_id == collection_id, generations.c.status != "dropped")
    with db.read() as connection:
        return tuple(GenerationRow(*row) for row in connection.execute(select(*columns).where(*mine).order_by(generations.c.generation)))


def indices(db: Database, row: CollectionRow) -> list[str]:
    """Names of all indices of a collection that the store may hold, the one that answers first."""
    others = [found.generation for found in listed(db, row.id) if found.generation != row.generation]
    return [identity.index_name(row.tenant, row.name, number) for number in (row.generation, *others)]


def under_construction(db: Database, main_id: str = "") -> list[Building]:
    """Every generation that is being built, or that of one collection."""
    main = collections.alias("main")
    query = select(collections, main.c.id.label("main_id")).where(collections.c.status == "building")
    query = query.join(main, and_(main.c.tenant == collections.c.tenant, main.c.name == collections.c.name, main.c.status == "live"))
    with db.read() as connection:
        return [
            of_row(connection, row, str(row.main_id)) for row in connection.execute(query.where(main.c.id == main_id) if main_id else query).all()
        ]


def of_row(connection: Connection, row: Any, main_id: str) -> Building:
    """What is being built by a row of `collections`, and how its run stands."""
    made = _collection(row)
    newest = select(runs.c.id, runs.c.finished_at, runs.c.status).where(runs.c.collection_id == made.id, runs.c.kind == "reindex")
    run = connection.execute(newest.order_by(runs.c.id.desc()).limit(1)).first()
    ended = run is None or run.finished_at is not None
    return Building(made, main_id, int(run.id) if run else 0, ended, run is not None and run.status in ENDED)


def _collection(row: Any) -> CollectionRow:
    values: dict[str, Any] = {column.name: getattr(row, column.name) for column in collections.c}
    values["chunk_options"] = json.loads(values["chunk_options"])
    values["paused"] = bool(values["paused"])
    values |= {"search": tuning.load(values["search"]), "calibrations": tuning.load_calibrations(values["calibrations"])}
    return CollectionRow(**values)


def options_of_row(row: CollectionRow) -> dict[str, object]:
    """`OPTIONS` and ``dimension`` as the tables hold them."""
    values: dict[str, object] = {name: getattr(row, name) for name in (*OPTIONS, "dimension")}
    return values | {"chunk_options": json.dumps(dict(row.chunk_options), sort_keys=True)}


def following(connection: Connection, row: CollectionRow) -> int:
    """A number that no build of this collection has had: somebody late may still write under an old one."""
    highest = connection.scalar(select(func.max(generations.c.generation)).where(generations.c.collection_id == row.id)) or 0
    return max(int(highest), row.generation) + 1


def note(connection: Connection, collection_id: str, number: int, options: Mapping[str, object], status: str, **times: float) -> None:
    """Give a build its status; its row is made when it is missing."""
    mine = (generations.c.collection_id == collection_id, generations.c.generation == number)
    if not connection.execute(update(generations).where(*mine).values(status=status)).rowcount:
        values = {name: options[name] for name in (*OPTIONS, "dimension")}
        connection.execute(insert(generations).values(collection_id=collection_id, generation=number, status=status, **times, **values))


def forget_shadows(connection: Connection, which: ColumnElement[bool]) -> None:
    """Remove shadow rows of `documents` with all that hangs on them."""
    mine = select(documents.c.id).where(which)
    connection.execute(delete(artifact_refs).where(artifact_refs.c.document_id.in_(mine)))
    connection.execute(delete(attempts).where(attempts.c.document_id.in_(mine)))
    connection.execute(delete(documents).where(which))


def last_retained(db: Database, row: CollectionRow) -> int:
    """The generation that answered before. Raises NotFound."""
    found = [one for one in listed(db, row.id) if one.status == "retained"]
    if not found:
        raise NotFound(
            f"no earlier generation of {row.name!r} is kept", hint="Reindex with the earlier options instead.", code="no_retained_generation"
        )
    return max(found, key=lambda one: (one.retired_at or 0.0, one.generation)).generation


def options_of(db: Database, collection_id: str, generation: int) -> dict[str, object]:
    """What a generation was built with."""
    where = (generations.c.collection_id == collection_id, generations.c.generation == generation)
    with db.read() as connection:
        row = connection.execute(select(*[generations.c[name] for name in (*OPTIONS, "dimension")]).where(*where)).one()
        return dict(row._mapping)  # pyright: ignore[reportPrivateUsage]


def answering(db: Database, collection_id: str) -> dict[str, int]:
    """Document id → version that is shown."""
    with db.read() as connection:
        rows = connection.execute(
            select(documents.c.id, documents.c.live_version).where(documents.c.collection_id == collection_id, answers(documents))
        )
        return {row.id: int(row.live_version) for row in rows}


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


def give_up(db: Database, collection_id: str, generation: int) -> bool:
    """Nobody may return to a build any more; False when somebody has just begun to."""
    mine = (generations.c.collection_id == collection_id, generations.c.generation == generation)
    with db.write() as connection:
        done = connection.execute(update(generations).where(*mine, generations.c.status.in_(("retained", "dropping"))).values(status="dropping"))
        if done.rowcount == 1:
            connection.execute(delete(retained).where(retained.c.collection_id == collection_id, retained.c.generation == generation))
    return done.rowcount == 1


def dropped(db: Database, collection_id: str, generation: int) -> None:
    """The store holds it no more. The newest number stays known, so that it is not given again."""
    mine = (generations.c.collection_id == collection_id, generations.c.generation == generation, generations.c.status == "dropping")
    with db.write() as connection:
        connection.execute(update(generations).where(*mine).values(status="dropped"))
        newest = select(func.max(generations.c.generation)).where(generations.c.collection_id == collection_id).scalar_subquery()
        old = (generations.c.collection_id == collection_id, generations.c.status == "dropped", generations.c.generation < newest)
        connection.execute(delete(generations).where(*old))
