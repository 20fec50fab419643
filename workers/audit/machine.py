"""What belongs to no collection: deletions that are not finished, packs and indices that nobody names, leases, keys in Redis."""

from __future__ import annotations

import time

from pipeline.errors import Unavailable
from workers import erasing
from workers.audit.findings import DELETION, ENDLESS, INDEX, LEASE, ORPHAN, Finding, Findings
from workers.broker import keys
from workers.ledger import consistency, outstanding, refs, removal
from workers.runtime import Runtime

YOUNG_PACK_S = 3600.0
"""A pack may be on disk before its batch is committed; younger ones are never taken for orphans."""


def compare(runtime: Runtime, found: Findings) -> None:
    """Note what is wrong. What another server keeps us from looking at is a note."""
    _deletions(runtime, found)
    _indices(runtime, found)
    _leases(runtime, found)
    for name in orphans(runtime):
        found.add(Finding(ORPHAN, f"{name}: no document has an output in this pack", name=name))
    try:
        endless = keys.endless(runtime.settings)
    except Unavailable as error:
        found.notes.append(f"Redis was not looked at: {error.detail}")
        return
    for database, name in endless:
        found.add(Finding(ENDLESS, f"{name}: a key in database {database} of Redis that never expires", name=f"{database} {name}"))


def orphans(runtime: Runtime) -> list[str]:
    """Packs that nobody names and that are old enough to have been named."""
    old = [name for name, written_at in runtime.artifacts.packs() if time.time() - written_at > YOUNG_PACK_S]
    return refs.unreferenced(runtime.db, old)


def _deletions(runtime: Runtime, found: Findings) -> None:
    with runtime.db.read() as connection:
        before = runtime.db.now(connection) - removal.PATIENCE_S
    for chore in outstanding.listed(runtime.db):
        text = f"a deletion is not finished: {erasing.SAID[chore.kind]}"
        if chore.since <= before:
            found.add(Finding(DELETION, text, name=f"{chore.kind} {chore.name}"))
        else:
            found.notes.append(text)


def _indices(runtime: Runtime, found: Findings) -> None:
    dropped, known = removal.dropped_indices(runtime.db), consistency.indices(runtime.db)
    for name in runtime.reader_store.collections():
        if name in dropped and name not in known:
            found.add(Finding(INDEX, f"{name}: the index of a deleted collection is in the store again", name=name))
        elif name not in known:
            found.notes.append(f"{name}: an index in the store that this ledger does not know; it may be another installation's")


def _leases(runtime: Runtime, found: Findings) -> None:
    for batch_id, owner, late_s in consistency.overdue(runtime.db):
        found.add(Finding(LEASE, f"batch {batch_id}: the lease of {owner} ran out {late_s:.0f} s ago, and nobody took it over", name=str(batch_id)))
