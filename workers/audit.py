"""What the store really holds, beside what the ledger says it holds."""

from __future__ import annotations

from pipeline.errors import NotFound
from pipeline.identity import index_name
from workers.collecting import check_store
from workers.ledger import browse, catalog
from workers.ledger.work import CollectionRow
from workers.runtime import Runtime
from workers.views import AuditCollection, AuditView

SHOWN = 100
EMPTY_DIGEST = ""


def audit(runtime: Runtime, collection: str, *, tenant: str) -> AuditView:
    """Count and hash every collection, or one. Raises NotFound, Unavailable."""
    rows = [catalog.find(runtime.db, tenant, collection)] if collection else catalog.every(runtime.db, tenant)
    views = tuple(_one(runtime, row) for row in rows)
    return AuditView(all(not view.differences for view in views), views)


def _one(runtime: Runtime, row: CollectionRow) -> AuditCollection:
    check_store(runtime, row)
    ledger = browse.live(runtime.db, row.id)
    try:
        held = runtime.reader_store.audit(index_name(row.tenant, row.name, row.generation))
    except NotFound:
        missing = tuple(f"{key}: answers according to the ledger, is not in the store" for _, key in ledger.values())
        return AuditCollection(row.name, 0, 0, 0, 0, EMPTY_DIGEST, EMPTY_DIGEST, missing[:SHOWN])
    differences: list[str] = []
    for document_id, (version, key) in ledger.items():
        if document_id not in held.versions:
            differences.append(f"{key}: answers according to the ledger, is not in the store")
        elif held.versions[document_id] != version:
            differences.append(f"{key}: version {version} according to the ledger, {held.versions[document_id]} in the store")
    differences += [f"{document_id}: in the store, unknown to the ledger" for document_id in held.versions if document_id not in ledger]
    if not differences:
        _, chunks = browse.totals(runtime.db, row.id)
        if chunks != held.chunks:
            differences.append(f"{chunks} chunks according to the ledger, {held.chunks} in the store")
        if held.chunks != held.vectors:
            differences.append(f"{held.chunks} chunks, but {held.vectors} vectors")
    return AuditCollection(row.name, held.documents, held.chunks, held.vectors, 0, held.digest, EMPTY_DIGEST, tuple(differences[:SHOWN]))
