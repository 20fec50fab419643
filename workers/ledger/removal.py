"""Deletion in the ledger. The row stays, scrubbed, so that its version numbers go on rising and no late worker can win."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, select, update

from pipeline.errors import NotFound
from workers.artifacts import Artifacts
from workers.ledger import balance, refs
from workers.ledger.engine import Database
from workers.ledger.schema import artifact_refs, attempts, documents

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
    """Delete packs that no document needs any more. A pack that others share is kept until they go too."""
    artifacts.remove(refs.unreferenced(db, list(packs)))
