"""Deletion in the ledger. The row stays, scrubbed, so that its version numbers go on rising and no late worker can win."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from sqlalchemy import delete, select, update

from pipeline.errors import Malformed, NotFound
from workers.artifacts import Artifacts
from workers.ledger import balance, refs
from workers.ledger.batches import collection_row
from workers.ledger.engine import Database
from workers.ledger.schema import api_keys, artifact_refs, attempts, batches, collections, documents, run_items, runs, sources, tenants, usage
from workers.ledger.work import CollectionRow

PATIENCE_S = 60.0
"""How long whoever began a deletion is left alone with it."""

SCRUBBED: dict[str, object] = {
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
    "live_fingerprint": "",
    "live_chunks": 0,
    "chunks": 0,
}


def detach(db: Database, collection_id: str, document_id: str) -> None:
    """Take a document from whoever works on it. Raises NotFound."""
    with db.write() as connection:
        now = db.now(connection)
        done = connection.execute(
            update(documents)
            .where(documents.c.id == document_id, documents.c.collection_id == collection_id, documents.c.status != "deleted")
            .values(status="deleting", batch_id=None, version=documents.c.version + 1, updated_at=now)
        )
        if done.rowcount != 1:
            raise NotFound(f"there is no document {document_id!r}", hint="`dujiang documents list` shows those there are.", code="document_not_found")
        balance.settle(connection, [(document_id, "cancelled", 0, "the document was deleted")], now)


def forget(db: Database, document_id: str) -> list[str]:
    """Scrub a detached document; returns the packs that may now be unreferenced."""
    with db.write() as connection:
        packs = list(connection.scalars(select(artifact_refs.c.pack).where(artifact_refs.c.document_id == document_id).distinct()))
        connection.execute(delete(artifact_refs).where(artifact_refs.c.document_id == document_id))
        connection.execute(delete(attempts).where(attempts.c.document_id == document_id))
        connection.execute(
            update(documents)
            .where(documents.c.id == document_id)
            .values(status="deleted", live_version=None, updated_at=db.now(connection), **SCRUBBED)
        )
    return packs


def detach_collection(db: Database, collection_id: str) -> int:
    """Take all documents of a collection from whoever works on them; returns how many there were."""
    with db.write() as connection:
        now = db.now(connection)
        ids = list(connection.scalars(select(documents.c.id).where(documents.c.collection_id == collection_id, documents.c.status != "deleted")))
        connection.execute(
            update(documents)
            .where(documents.c.collection_id == collection_id)
            .values(status="deleting", batch_id=None, version=documents.c.version + 1, updated_at=now)
        )
        for start in range(0, len(ids), 500):
            balance.settle(connection, [(item, "cancelled", 0, "the collection was deleted") for item in ids[start : start + 500]], now)
    return len(ids)


def forget_collection(db: Database, collection_id: str) -> None:
    """Scrub all documents of a detached collection; their packs are left to the sweep."""
    mine = select(documents.c.id).where(documents.c.collection_id == collection_id)
    with db.write() as connection:
        connection.execute(delete(artifact_refs).where(artifact_refs.c.document_id.in_(mine)))
        connection.execute(delete(attempts).where(attempts.c.document_id.in_(mine)))
        connection.execute(
            update(documents)
            .where(documents.c.collection_id == collection_id)
            .values(status="deleted", live_version=None, updated_at=db.now(connection), **SCRUBBED)
        )


def drop_packs(db: Database, artifacts: Artifacts, packs: Sequence[str]) -> None:
    """Take the bytes of deleted documents off the shelf: packs that nobody needs go, those that others share are written anew without them.

    The copy is written before the ledger names it, and the old pack goes last. Raises Unavailable: then the sweep finds what is left.
    """
    unneeded = set(refs.unreferenced(db, list(packs)))
    for pack in packs:
        if pack in unneeded:
            continue
        kept = {ref.start: ref for ref in refs.of_pack(db, pack)}
        try:
            copies = artifacts.rewrite(pack, list(kept.values()), _fresh(pack))
        except (NotFound, Malformed):
            continue  # gone or damaged: whoever needs it starts from load
        refs.moved(db, pack, dict(zip(kept, copies, strict=True)))
    artifacts.remove(refs.unreferenced(db, list(packs)))


def _fresh(pack: str) -> str:
    """Another name in the same folder; never one that was used before."""
    return f"{pack.removesuffix('.pack').partition('~')[0]}~{secrets.token_hex(4)}"


def begin(db: Database, collection_id: str) -> None:
    """The collection is gone for everybody; what belongs to it goes next."""
    with db.write() as connection:
        connection.execute(update(collections).where(collections.c.id == collection_id).values(status="deleting"))


def present(db: Database, collection_id: str) -> list[str]:
    """Documents of a collection that are not deleted."""
    with db.read() as connection:
        return list(connection.scalars(select(documents.c.id).where(documents.c.collection_id == collection_id, documents.c.status != "deleted")))


def packs_of(db: Database, collection_id: str) -> list[str]:
    """Every pack in which a document of the collection has an output."""
    mine = select(documents.c.id).where(documents.c.collection_id == collection_id)
    with db.read() as connection:
        return list(connection.scalars(select(artifact_refs.c.pack).where(artifact_refs.c.document_id.in_(mine)).distinct()))


def unfinished(db: Database) -> tuple[list[CollectionRow], list[tuple[str, str]]]:
    """(collections, (collection id, document id) of documents in collections that stay) whose deletion was begun by somebody who is gone."""
    with db.read() as connection:
        now = db.now(connection)
        rows = connection.execute(select(collections).where(collections.c.status == "deleting")).all()
        old = documents.c.updated_at < now - PATIENCE_S
        left = connection.execute(
            select(documents.c.collection_id, documents.c.id)
            .join(collections, collections.c.id == documents.c.collection_id)
            .where(documents.c.status == "deleting", collections.c.status == "live", old)
            .limit(500)
        ).all()
    return [collection_row(row) for row in rows], [(row.collection_id, row.id) for row in left]


def forget_tenant(db: Database, tenant: str) -> None:
    """Everything that the ledger still holds of a tenant whose collections and sources are gone."""
    mine = select(runs.c.id).where(runs.c.tenant == tenant)
    with db.write() as connection:
        connection.execute(delete(run_items).where(run_items.c.run_id.in_(mine)))
        numbers = [f"run:{number}" for number in connection.scalars(mine)]
        for start in range(0, len(numbers), 500):
            connection.execute(delete(usage).where(usage.c.owner.in_(numbers[start : start + 500])))
        for table in (runs, documents, batches, api_keys, sources):
            connection.execute(delete(table).where(table.c.tenant == tenant))
        connection.execute(delete(tenants).where(tenants.c.name == tenant))
