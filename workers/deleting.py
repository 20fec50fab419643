"""Deletion of a document, a collection, a tenant: first from sight, then from the store, the caches, the shelf and the ledger's text.

Killed at any line, it is finished by the housekeeping.
"""

from __future__ import annotations

from pipeline.errors import NotFound
from workers import withdrawal
from workers.ledger import catalog, generations, removal
from workers.ledger.work import CollectionRow
from workers.runtime import Runtime
from workers.views import DeletedView


class Deleting:
    """Safe for threads."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._db = runtime.db

    def collection(self, name: str, *, tenant: str = "default") -> int:
        """Remove a collection with all its documents; returns how many there were.

        Raises NotFound; Unavailable, when it is gone from sight already and the rest is done later.
        """
        row = catalog.find(self._db, tenant, name)
        removal.begin(self._db, row.id)
        number = removal.detach_collection(self._db, row.id)
        finish_collection(self._runtime, row)
        return number

    def planned(self, tenant: str) -> DeletedView:
        """What a deletion of a tenant would take. Raises NotFound."""
        rows = catalog.every(self._db, tenant)
        return DeletedView(tuple(row.name for row in rows), sum(len(removal.present(self._db, row.id)) for row in rows))

    def tenant(self, tenant: str) -> DeletedView:
        """Remove a tenant: collections, documents, sources, runs, keys, weight. Safe to repeat. Raises Unavailable: then ask again."""
        rows = catalog.every(self._db, tenant)
        documents = sum(self.collection(row.name, tenant=tenant) for row in rows)
        for row in self._half_done(tenant):
            finish_collection(self._runtime, row)
        removal.forget_tenant(self._db, tenant)
        return DeletedView(tuple(row.name for row in rows), documents)

    def _half_done(self, tenant: str) -> list[CollectionRow]:
        return [row for row in removal.unfinished(self._db)[0] if row.tenant == tenant]


def finish_collection(runtime: Runtime, row: CollectionRow) -> None:
    """What is left to do once nobody sees a collection any more. Safe to repeat. Raises Unavailable."""
    store = runtime.open_store(runtime.settings.store_url, writer=True)
    for index in generations.indices(runtime.db, row):
        try:
            store.drop(index)
        except NotFound:
            continue
    withdrawal.purge(runtime, row)
    packs = removal.packs_of(runtime.db, row.id)
    removal.forget_collection(runtime.db, row.id)
    removal.drop_packs(runtime.db, runtime.artifacts, packs)
    catalog.remove(runtime.db, row.id)


def finish(runtime: Runtime) -> int:
    """Go on with deletions whose begetter is gone; returns how many collections and documents. Raises Unavailable."""
    rows, documents = removal.unfinished(runtime.db)
    for row in rows:
        finish_collection(runtime, row)
    by_collection: dict[str, list[str]] = {}
    for collection_id, document_id in documents:
        by_collection.setdefault(collection_id, []).append(document_id)
    known = {row.id: row for row in catalog.every(runtime.db)}
    for collection_id, ids in by_collection.items():
        withdrawal.finish(runtime, known[collection_id], ids)
    return len(rows) + len(documents)
