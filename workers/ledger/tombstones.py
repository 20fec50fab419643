"""What was deleted, by ids that tell nothing: kept beside a backup, so that whoever restores it can delete the same again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import insert, select, update

from pipeline.contracts import Lane, Stage
from workers.ledger.engine import Database, upsert
from workers.ledger.schema import api_keys, collections, deletions, documents, runs, sources

GONE = ("deleting", "deleted")
DOCUMENT, SOURCE, COLLECTION, TENANT = "document", "source", "collection", "tenant"


@dataclass(frozen=True, slots=True)
class Tombstone:
    """One thing that was deleted. A tenant's id is a hash of its name."""

    kind: str
    """document, source, collection, tenant, or index: a collection's name in the store."""
    id: str
    number: int
    """Version of a document, highest generation of a collection: what comes later has a higher one."""
    at: float
    of: str = ""
    """A document's collection, by its id."""


def listed(db: Database, *, limit: int, after: str = "") -> list[Tombstone]:
    """Documents by id, behind the one named `after`, `limit` at most; without `after`, everything that is not a document before them."""
    query = select(documents.c.id, documents.c.version, documents.c.updated_at, documents.c.collection_id)
    query = query.where(documents.c.status.in_(GONE), documents.c.shadow_of == "", documents.c.id > after).order_by(documents.c.id).limit(limit)
    with db.read() as connection:
        found: list[Tombstone] = []
        if not after:
            others = select(deletions.c.kind, deletions.c.id, deletions.c.generation, deletions.c.at).order_by(deletions.c.kind, deletions.c.id)
            found = [Tombstone(*row) for row in connection.execute(others)]
        return found + [Tombstone(DOCUMENT, str(row[0]), int(row[1]), float(row[2]), str(row[3])) for row in connection.execute(query)]


def unknown(db: Database, stones: Sequence[Tombstone]) -> list[Tombstone]:
    """Those, other than documents, of which this ledger was never told, or before they were deleted once more."""
    with db.read() as connection:
        known = {(row.kind, row.id): row.at for row in connection.execute(select(deletions))}
    return [stone for stone in stones if stone.kind != DOCUMENT and known.get((stone.kind, stone.id), -1.0) < stone.at]


def remember(db: Database, stones: Sequence[Tombstone]) -> None:
    """Take over what `unknown` gave, so that generations are counted on and indices that come back are dropped."""
    with db.write() as connection:
        upsert(connection, deletions, [{"kind": one.kind, "id": one.id, "generation": one.number, "at": one.at} for one in stones])


def tenants(db: Database) -> set[str]:
    """Every tenant that this ledger has anything of."""
    with db.read() as connection:
        return {str(name) for table in (collections, runs, sources, api_keys) for name in connection.scalars(select(table.c.tenant).distinct())}


def revived(db: Database, stones: Mapping[str, Tombstone], homes: Mapping[str, str]) -> dict[str, list[str]]:
    """Collection id → documents that are there in a version not later than the one that was deleted.

    Args:
        stones: by document id.
        homes: collection id → tenant, of the collections that there are.
    """
    there = select(documents.c.id, documents.c.collection_id, documents.c.version, documents.c.status).where(documents.c.id.in_(list(stones)))
    found: dict[str, list[str]] = {}
    with db.read() as connection:
        for row in connection.execute(there.order_by(documents.c.id)):
            if row.status not in GONE and row.version <= stones[row.id].number and row.collection_id in homes:
                found.setdefault(row.collection_id, []).append(row.id)
    return found


def count_on(db: Database, stones: Mapping[str, Tombstone], homes: Mapping[str, str]) -> None:
    """Versions go on above what a store may have been told of them, also of documents that this ledger never knew."""
    with db.write() as connection:
        now = db.now(connection)
        known = set(connection.scalars(select(documents.c.id).where(documents.c.id.in_(list(stones)))))
        for document_id in known:
            number = stones[document_id].number
            lower = (documents.c.id == document_id, documents.c.status.in_(GONE), documents.c.version < number)
            connection.execute(update(documents).where(*lower).values(version=number))
        at = {"key": "", "run_id": 0, "lane": Lane.BULK.value, "route": "fused", "stage": Stage.LOAD.value, "status": "deleted", "updated_at": now}
        rows = [
            {"id": one.id, "tenant": homes[one.of], "collection_id": one.of, "version": one.number, **at}
            for one in stones.values()
            if one.id not in known and one.of in homes
        ]
        if rows:
            connection.execute(insert(documents), rows)
