"""What store and shelf really hold, beside what the ledger says they hold; every difference with whether a repair mends it."""

from __future__ import annotations

from pipeline.identity import index_name
from workers.audit import accounts, machine, shelf, stock
from workers.audit.findings import Finding, Findings
from workers.collecting import check_store
from workers.ledger import catalog
from workers.ledger.work import CollectionRow
from workers.runtime import Runtime
from workers.views import AuditCollection, AuditView, FindingView

__all__ = ["Finding", "Findings", "audit", "examine", "whole"]

SHOWN = 100
EMPTY_DIGEST = ""


def audit(runtime: Runtime, collection: str, *, tenant: str, deep: bool = False) -> AuditView:
    """Count, hash and compare every collection, or one; `deep` opens every kept output. Raises NotFound, Unavailable.

    Without a collection, also what belongs to none: deletions, packs, leases, Redis.
    """
    rows = [catalog.find(runtime.db, tenant, collection)] if collection else catalog.every(runtime.db, tenant)
    views = tuple(examine(runtime, row, deep=deep)[0] for row in rows)
    common = Findings() if collection else whole(runtime)
    ok = not common.items and all(not view.differences for view in views)
    return AuditView(ok, views, common.sentences(SHOWN), shown(common), tuple(common.notes))


def examine(runtime: Runtime, row: CollectionRow, *, deep: bool = False) -> tuple[AuditCollection, Findings]:
    """One collection: what it holds, and everything that is not as it should be."""
    check_store(runtime, row)
    found = Findings()
    held = stock.compare(runtime, row, found)
    shelf.compare(runtime, row, found, deep=deep)
    accounts.compare(runtime, row, found)
    elements, graph_digest = runtime.graph_audit(index_name(row.tenant, row.name, row.generation))
    view = AuditCollection(
        row.name,
        held.documents,
        held.chunks,
        held.vectors,
        elements,
        held.digest or EMPTY_DIGEST,
        graph_digest or EMPTY_DIGEST,
        found.sentences(SHOWN),
        len(found.items),
        shown(found),
        tuple(found.notes),
    )
    return view, found


def whole(runtime: Runtime) -> Findings:
    """What belongs to no collection, or to all."""
    found = Findings()
    machine.compare(runtime, found)
    return found


def shown(found: Findings) -> tuple[FindingView, ...]:
    """The first of them, as people see them."""
    return tuple(FindingView(item.kind, item.detail, item.mends, item.document_id) for item in found.items[:SHOWN])
