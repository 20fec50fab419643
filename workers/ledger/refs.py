"""Looking artifacts up: by document and version, or by key, so that equal work is done once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, delete, exists, func, select, update

from pipeline.contracts import Stage
from workers.ledger.engine import Database
from workers.ledger.schema import artifact_refs, documents
from workers.ledger.work import Ref


def of(db: Database, stage: Stage, versions: Mapping[str, int]) -> dict[str, Ref]:
    """Document id → its output of `stage` in the given version, where there is one."""
    with db.read() as connection:
        rows = connection.execute(
            select(artifact_refs).where(artifact_refs.c.stage == stage.value, artifact_refs.c.document_id.in_(list(versions)))
        ).all()
    return {row.document_id: _ref(row) for row in rows if row.version == versions[row.document_id]}


_REF = (
    artifact_refs.c.document_id,
    artifact_refs.c.version,
    artifact_refs.c.stage,
    artifact_refs.c.key,
    artifact_refs.c.pack,
    artifact_refs.c.start,
    artifact_refs.c.length,
)
_PRESENT = and_(documents.c.id == artifact_refs.c.document_id, documents.c.version == artifact_refs.c.version)
_OF_BATCH = (
    select(*_REF)
    .join(documents, _PRESENT)
    .where(documents.c.batch_id == bindparam("batch"), artifact_refs.c.stage.in_(bindparam("stages", expanding=True)))
)
_STAGES: Mapping[str, Stage] = {stage.value: stage for stage in Stage}


def of_batch(db: Database, batch_id: int, stages: Sequence[Stage]) -> dict[tuple[Stage, str], Ref]:
    """(stage, document id) → output of one of `stages`, for the present version of every document that hangs on a batch."""
    with db.read() as connection:
        rows = connection.execute(_OF_BATCH, {"batch": batch_id, "stages": [stage.value for stage in stages]}).all()
    found = (Ref(document, version, _STAGES[stage], *rest) for document, version, stage, *rest in rows)
    return {(ref.stage, ref.document_id): ref for ref in found}


def by_key(db: Database, keys: Iterable[str]) -> dict[str, Ref]:
    """Artifact key → some document's output under it."""
    with db.read() as connection:
        rows = connection.execute(select(artifact_refs).where(artifact_refs.c.key.in_(list(keys)))).all()
    return {row.key: _ref(row) for row in rows}


def latest(connection: Connection, stage: Stage, ids: Iterable[str]) -> dict[str, Ref]:
    """Document id → its newest output of `stage`, whatever version that is."""
    query = select(*_REF).where(artifact_refs.c.stage == stage.value, artifact_refs.c.document_id.in_(list(ids))).order_by(artifact_refs.c.version)
    return {row[0]: Ref(row[0], row[1], stage, *row[3:]) for row in connection.execute(query)}


def newest(db: Database, stage: Stage, ids: Sequence[str]) -> list[Ref]:
    """The newest output of `stage` of each document, where there is one."""
    if not ids:
        return []
    with db.read() as connection:
        return list(latest(connection, stage, ids).values())


def of_pack(db: Database, pack: str) -> list[Ref]:
    """Everything that lies in a pack, by its place."""
    with db.read() as connection:
        rows = connection.execute(select(*_REF).where(artifact_refs.c.pack == pack).order_by(artifact_refs.c.start)).all()
    return [_ref(row) for row in rows]


def moved(db: Database, pack: str, places: Mapping[int, Ref], lost: Sequence[int] = ()) -> None:
    """Point every reference into `pack` at the copy of its entry, and drop those to entries that are lost; both by the old start."""
    with db.write() as connection:
        for start, ref in places.items():
            connection.execute(
                update(artifact_refs).where(artifact_refs.c.pack == pack, artifact_refs.c.start == start).values(pack=ref.pack, start=ref.start)
            )
        for start in lost:
            connection.execute(delete(artifact_refs).where(artifact_refs.c.pack == pack, artifact_refs.c.start == start))


def weights(db: Database) -> dict[str, int]:
    """Pack → bytes in it that some reference names."""
    spans = select(artifact_refs.c.pack, artifact_refs.c.start, artifact_refs.c.length).distinct().subquery()
    with db.read() as connection:
        rows = connection.execute(select(spans.c.pack, func.sum(spans.c.length)).group_by(spans.c.pack)).all()
    return {pack: int(length) for pack, length in rows}


def forget_deleted(db: Database, since: float) -> int:
    """Drop what batches that were under way have named of documents that were deleted since then."""
    gone = select(documents.c.id).where(documents.c.status == "deleted", documents.c.updated_at > since)
    with db.write() as connection:
        return connection.execute(delete(artifact_refs).where(artifact_refs.c.document_id.in_(gone))).rowcount


def answering(db: Database, collection_id: str) -> list[Ref]:
    """All outputs of the versions of a collection that answer."""
    live = and_(documents.c.id == artifact_refs.c.document_id, documents.c.live_version == artifact_refs.c.version)
    with db.read() as connection:
        rows = connection.execute(select(*_REF).join(documents, live).where(documents.c.collection_id == collection_id)).all()
    return [_ref(row) for row in rows]


def forget_old(db: Database, before: float) -> int:
    """Drop references of versions that neither answer nor are under way, older than `before`."""
    retired = (
        select(documents.c.id)
        .where(
            documents.c.id == artifact_refs.c.document_id,
            artifact_refs.c.version < documents.c.version,
            (documents.c.live_version.is_(None)) | (artifact_refs.c.version < documents.c.live_version),
        )
        .correlate(artifact_refs)
    )
    with db.write() as connection:
        done = connection.execute(delete(artifact_refs).where(artifact_refs.c.created_at < before, exists(retired)))
    return done.rowcount


def unreferenced(db: Database, packs: Sequence[str]) -> list[str]:
    """Those of the packs that no reference names."""
    found: set[str] = set()
    with db.read() as connection:
        for start in range(0, len(packs), 500):
            part = packs[start : start + 500]
            found.update(connection.scalars(select(artifact_refs.c.pack).where(artifact_refs.c.pack.in_(part)).distinct()))
    return [pack for pack in packs if pack not in found]


def _ref(row: Row[*tuple[Any, ...]]) -> Ref:
    return Ref(row.document_id, row.version, Stage(row.stage), row.key, row.pack, row.start, row.length)
