"""Deletion in the ledger. The row of a document stays, scrubbed, so that its version numbers go on rising and no late worker can win.

A deletion is first noted, then carried out: what is not done yet stands in `outstanding`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import Connection, bindparam, delete, func, or_, select, update

from pipeline import identity
from pipeline.errors import NotFound
from pipeline.packs import cache_group
from workers.artifacts import Artifacts, compaction
from workers.ledger import balance, generations, outstanding, scrubbing
from workers.ledger.batches import collection_row
from workers.ledger.engine import Database, upsert
from workers.ledger.notes import source_notes
from workers.ledger.schema import (
    OF_SOURCE,
    api_keys,
    artifact_refs,
    attempts,
    collections,
    deletions,
    documents,
    retained,
    runs,
    sources,
)
from workers.ledger.schema import generations as builds
from workers.ledger.schema import outstanding as undone
from workers.ledger.sources import DELETING
from workers.ledger.work import CollectionRow

PATIENCE_S = 60.0
"""How long whoever began a deletion is left alone with it."""
SLICE = 500

SCRUBBED: dict[str, object] = {
    "key": "",
    "title": "",
    "url": "",
    "path": "",
    "member": "",
    "meta": "{}",
    "options": "{}",
    "error_stage": "",
    "error_code": "",
    "error_detail": "",
    "error_hint": "",
    "error_trace": "",
    "source_hash": "",
    "live_hash": "",
    "fingerprint": "",
    "live_fingerprint": "",
    "live_chunks": 0,
    "chunks": 0,
    "size": 0,
}


def detach(db: Database, row: CollectionRow, ids: Collection[str]) -> dict[str, int]:
    """Take documents from whoever works on them; gives id → version that a later one must exceed, of those that were there."""
    wanted = sorted(set(ids))
    with db.write() as connection:
        now = db.now(connection)
        there = (documents.c.collection_id == row.id, documents.c.shadow_of == "", documents.c.status != "deleted")
        found = connection.execute(
            update(documents)
            .where(documents.c.id.in_(wanted), *there)
            .values(status="deleting", batch_id=None, version=documents.c.version + 1, updated_at=now)
            .returning(documents.c.id, documents.c.version)
        ).all()
        fence = {str(document): int(version) for document, version in found}
        if fence:
            outstanding.ask(connection, outstanding.DOCUMENTS, [row.id], now)
            outstanding.ask(connection, outstanding.CACHE, [cache_group(row.tenant, row.name)], now)
            balance.settle(connection, [(document, "cancelled", 0, scrubbing.DELETED) for document in fence], now)
            _shadows_go(connection, list(fence), now)
    return fence


def _shadows_go(connection: Connection, ids: Sequence[str], now: float) -> None:
    """The next generation is built without them."""
    mine = documents.c.shadow_of.in_(ids)
    shadows = list(connection.scalars(select(documents.c.id).where(mine, documents.c.shadow_of != "")))
    if shadows:
        _ask_packs(connection, artifact_refs.c.document_id.in_(shadows), now)
        balance.settle(connection, [(shadow, "skipped", 0, scrubbing.DELETED) for shadow in shadows], now)
        generations.forget_shadows(connection, documents.c.id.in_(shadows))


def _ask_packs(connection: Connection, which: object, now: float) -> None:
    packs = connection.scalars(select(artifact_refs.c.pack).where(which).distinct())  # pyright: ignore[reportArgumentType]
    outstanding.ask(connection, outstanding.PACK, packs, now)


def halves(db: Database, collection_id: str) -> dict[str, int]:
    """Id → version of documents of a collection whose deletion was begun."""
    with db.read() as connection:
        rows = connection.execute(
            select(documents.c.id, documents.c.version).where(documents.c.collection_id == collection_id, documents.c.status == "deleting")
        )
        return {str(document): int(version) for document, version in rows}


def fences(db: Database, ids: Collection[str]) -> dict[str, int]:
    """Id → version that a later one must exceed, of documents that are not to be seen."""
    gone = documents.c.status.in_(("deleting", "deleted", "hiding", "hidden"))
    with db.read() as connection:
        rows = connection.execute(select(documents.c.id, documents.c.version).where(documents.c.id.in_(list(ids)), gone))
        return {str(document): int(version) for document, version in rows}


def forget(db: Database, row: CollectionRow, fence: Mapping[str, int]) -> None:
    """Scrub detached documents that are out of the store, and note what of them is still in files. What was taken in anew meanwhile stays."""
    ids = list(fence)
    names = indices(db, row)
    with db.write() as connection:
        now = db.now(connection)
        below = or_(*((artifact_refs.c.document_id == document) & (artifact_refs.c.version <= version) for document, version in fence.items()))
        _ask_packs(connection, below, now)
        connection.execute(delete(artifact_refs).where(below))
        connection.execute(
            delete(attempts).where(attempts.c.document_id == bindparam("d"), attempts.c.version <= bindparam("v")),
            [{"d": document, "v": version} for document, version in fence.items()],
        )
        connection.execute(delete(retained).where(retained.c.collection_id == row.id, retained.c.document_id.in_(ids)))
        scrubbing.texts(connection, row.id, ids)
        scrubbing.replies(connection, frozenset(ids))
        mine = (documents.c.id.in_(ids), documents.c.status == "deleting")
        # What a source no longer had may come back with its next listing; what a person deleted may not.
        connection.execute(update(documents).where(*mine, documents.c.absence != "").values(source_id="", absence=""))
        connection.execute(update(documents).where(*mine).values(status="deleted", live_version=None, revision_mark="", updated_at=now, **SCRUBBED))
        connection.execute(update(collections).where(collections.c.id == row.id).values(revision=collections.c.revision + 1))
        outstanding.ask(connection, outstanding.CACHE, [cache_group(row.tenant, row.name)], now)
        outstanding.ask(connection, outstanding.INDEX, names, now)
        outstanding.ask(connection, outstanding.LEDGER, [outstanding.ITSELF], now)


def begin(db: Database, row: CollectionRow) -> int:
    """The collection is gone for everybody, and nobody works on its documents any more; returns how many there were. Raises NotFound."""
    with db.write() as connection:
        now = db.now(connection)
        # Whoever is writing documents into it holds the row, and finds it gone afterwards.
        present = connection.execute(select(collections).where(collections.c.id == row.id, collections.c.status == "live").with_for_update()).first()
        if present is None:
            raise NotFound(
                f"there is no collection {row.name!r}", hint="`dujiang collections list` shows those there are.", code="collection_not_found"
            )
        same = (collections.c.tenant == row.tenant, collections.c.name == row.name)
        building = list(connection.scalars(select(collections.c.id).where(*same, collections.c.id != row.id)))
        connection.execute(update(collections).where(*same).values(status="deleting"))
        outstanding.ask(connection, outstanding.COLLECTION, [row.id], now)
        outstanding.ask(connection, outstanding.CACHE, [cache_group(row.tenant, row.name)], now)
        there = (documents.c.collection_id == row.id, documents.c.status != "deleted")
        ids = list(connection.scalars(select(documents.c.id).where(*there)))
        connection.execute(update(documents).where(*there).values(status="deleting", batch_id=None, version=documents.c.version + 1, updated_at=now))
        shadows = list(connection.scalars(select(documents.c.id).where(documents.c.collection_id.in_(building))))
        _ask_packs(connection, artifact_refs.c.document_id.in_(select(documents.c.id).where(documents.c.collection_id.in_(building))), now)
        for part in (ids[start : start + SLICE] for start in range(0, len(ids), SLICE)):
            balance.settle(connection, [(item, "cancelled", 0, scrubbing.DELETED) for item in part], now)
        for part in (shadows[start : start + SLICE] for start in range(0, len(shadows), SLICE)):
            balance.settle(connection, [(item, "skipped", 0, scrubbing.DELETED) for item in part], now)
        if building:
            generations.forget_shadows(connection, documents.c.collection_id.in_(building))
        scrubbing.end_runs(connection, [row.id, *building], now)
    return len(ids)


def indices(db: Database, row: CollectionRow) -> list[str]:
    """Every index of a collection that the store may hold."""
    return generations.indices(db, row)


def forget_collection(db: Database, row: CollectionRow) -> None:
    """Scrub all documents of a collection whose indices are dropped, and note what of them is still in files."""
    mine = select(documents.c.id).where(documents.c.collection_id == row.id)
    names = indices(db, row)
    with db.write() as connection:
        now = db.now(connection)
        _ask_packs(connection, artifact_refs.c.document_id.in_(mine), now)
        connection.execute(delete(artifact_refs).where(artifact_refs.c.document_id.in_(mine)))
        connection.execute(delete(attempts).where(attempts.c.document_id.in_(mine)))
        scrubbing.collection(connection, row.id)
        connection.execute(
            update(documents)
            .where(documents.c.collection_id == row.id)
            .values(status="deleted", live_version=None, revision_mark="", updated_at=now, **SCRUBBED)
        )
        highest = connection.scalar(select(func.max(builds.c.generation)).where(builds.c.collection_id == row.id)) or 0
        for table in (builds, retained):
            connection.execute(delete(table).where(table.c.collection_id == row.id))
        connection.execute(
            delete(collections).where(collections.c.tenant == row.tenant, collections.c.name == row.name, collections.c.status == "deleting")
        )
        connection.execute(delete(undone).where(undone.c.kind.in_((outstanding.COLLECTION, outstanding.DOCUMENTS)), undone.c.name == row.id))
        number = max(int(highest), row.generation)
        logged = [("collection", row.id, number), *(("index", name, 0) for name in names)]
        upsert(connection, deletions, [{"kind": kind, "id": name, "generation": last, "at": now} for kind, name, last in logged])
        outstanding.ask(connection, outstanding.LEDGER, [outstanding.ITSELF], now)


def begin_tenant(db: Database, tenant: str) -> None:
    """Nobody may work for the tenant from now on, and it is remembered, without the name, that it was deleted."""
    with db.write() as connection:
        now = db.now(connection)
        outstanding.ask(connection, outstanding.TENANT, [tenant], now)
        upsert(connection, deletions, [{"kind": "tenant", "id": identity.fingerprint({"tenant": tenant}), "generation": 0, "at": now}])
        connection.execute(update(api_keys).where(api_keys.c.tenant == tenant, api_keys.c.revoked_at.is_(None)).values(revoked_at=now))
        connection.execute(update(sources).where(sources.c.tenant == tenant).values(paused=1, next_at=None))


def forget_tenant(db: Database, chore: outstanding.Chore) -> None:
    """The collections of a tenant are gone: everything else that the ledger holds of it goes."""
    with db.write() as connection:
        scrubbing.tenant(connection, chore.name)
        outstanding.settle(connection, chore)
        outstanding.ask(connection, outstanding.LEDGER, [outstanding.ITSELF], db.now(connection))


def begin_source(db: Database, source_id: str) -> None:
    """Nobody finds the source any more, nobody lists it, and what it was told is gone. Raises NotFound when somebody else was first."""
    empty = {"options": "{}", "secrets": "", "checkpoint": "{}", "last_error": "", "cron": "", "next_at": None}
    with db.write() as connection:
        done = connection.execute(
            update(sources)
            .where(sources.c.id == source_id, sources.c.paused != DELETING)
            .values(paused=DELETING, claimed_by="", claimed_until=None, held=0, **empty)
        )
        if done.rowcount != 1:
            raise NotFound("the source is being deleted already", code="source_not_found")
        connection.execute(delete(source_notes).where(source_notes.c.source_id == source_id))
        outstanding.ask(connection, outstanding.SOURCE, [source_id], db.now(connection))


def forget_source(db: Database, source_id: str) -> int:
    """The source goes, and what runs say of it, if its documents are gone; those that are there stay and belong to nobody. Returns how many."""
    mine = (documents.c.source_id == source_id, OF_SOURCE)
    with db.write() as connection:
        kept = connection.scalar(select(func.count()).select_from(documents).where(*mine, documents.c.status.not_in(("deleting", "deleted"))))
        connection.execute(update(documents).where(*mine).values(source_id="", absence="", revision_mark=""))
        if not kept:
            connection.execute(update(runs).where(runs.c.source_id == source_id).values(warnings=scrubbing.NO_WARNINGS))
        connection.execute(delete(source_notes).where(source_notes.c.source_id == source_id))
        connection.execute(delete(sources).where(sources.c.id == source_id))
        connection.execute(delete(undone).where(undone.c.kind == outstanding.SOURCE, undone.c.name == source_id))
        now = db.now(connection)
        upsert(connection, deletions, [{"kind": "source", "id": source_id, "generation": 0, "at": now}])
        outstanding.ask(connection, outstanding.LEDGER, [outstanding.ITSELF], now)
    return int(kept or 0)


def dropped_indices(db: Database) -> frozenset[str]:
    """Names of indices that were dropped for good."""
    with db.read() as connection:
        return frozenset(connection.scalars(select(deletions.c.id).where(deletions.c.kind == "index")))


def half_deleted(db: Database, *, collection_id: str = "", tenant: str = "") -> list[CollectionRow]:
    """Collections whose deletion was begun: the one, or all of a tenant; their next generation is not among them."""
    which = collections.c.id == collection_id if collection_id else collections.c.tenant == tenant
    with db.read() as connection:
        found = connection.execute(select(collections).where(which, collections.c.status == "deleting").order_by(collections.c.generation)).all()
    return list({(row.tenant, row.name): collection_row(row) for row in reversed(found)}.values())


def present(db: Database, collection_id: str, ids: Collection[str]) -> set[str]:
    """Those of the documents that there are."""
    there = (documents.c.collection_id == collection_id, documents.c.status != "deleted", documents.c.shadow_of == "")
    with db.read() as connection:
        return set(connection.scalars(select(documents.c.id).where(documents.c.id.in_(list(ids)), *there)))


def settle_documents(db: Database, chore: outstanding.Chore) -> None:
    """The documents of a collection are deleted, unless another one is being deleted meanwhile."""
    with db.write() as connection:
        halves = select(documents.c.id).where(documents.c.collection_id == chore.name, documents.c.status == "deleting").limit(1)
        if connection.scalar(halves) is None:
            outstanding.settle(connection, chore)


def drop_packs(db: Database, artifacts: Artifacts, packs: Sequence[str]) -> None:
    """Take the bytes of deleted documents off the shelf. Safe to repeat. Raises Unavailable: then they are there still."""
    compaction.scrub(db, artifacts, packs)


def count(db: Database, collection_id: str, ids: Collection[str] | None = None) -> tuple[int, int]:
    """(documents, chunks that answer) of a collection, or of some of its documents: what a deletion would take."""
    query = select(func.count(), func.sum(documents.c.live_chunks)).where(
        documents.c.collection_id == collection_id, documents.c.status != "deleted", documents.c.shadow_of == ""
    )
    if ids is not None:
        query = query.where(documents.c.id.in_(list(ids)))
    with db.read() as connection:
        number, chunks = connection.execute(query).one()
    return int(number), int(chunks or 0)
