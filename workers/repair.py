"""Mending what an audit finds. Safe to repeat, and to stop at any line."""

from __future__ import annotations

import time

from pipeline.identity import index_name
from workers import audit, deleting, generations, withdrawal
from workers.housekeeping import YOUNG_PACK_S
from workers.ledger import browse, catalog, consistency, refs
from workers.ledger.work import CollectionRow
from workers.runtime import Runtime
from workers.views import RepairView


def repair(runtime: Runtime, collection: str, *, tenant: str, deep: bool = False, dry_run: bool = False) -> RepairView:
    """Compare, then mend: write again what the store lacks, remove what it should not hold, begin again what is stuck or damaged.

    Where workers have something to do, the view names the runs. Raises NotFound, Unavailable.
    """
    rows = [catalog.find(runtime.db, tenant, collection)] if collection else catalog.every(runtime.db, tenant)
    if not dry_run:
        deleting.finish(runtime)
        generations.drop_surplus(runtime)
    runs: list[str] = []
    removed = begun = differences = 0
    for row in rows:
        _, found = audit.examine(runtime, row, deep=deep)
        differences += len(found.sentences)
        removed += len(found.foreign)
        begun += len(found.rebuild | found.reload | found.stuck)
        if not dry_run:
            runs += _mend(runtime, row, found)
    orphans = _orphans(runtime, dry_run=dry_run)
    return RepairView(dry_run, differences, begun, removed, orphans, tuple(runs))


def _mend(runtime: Runtime, row: CollectionRow, found: audit.Findings) -> list[str]:
    if found.foreign:
        withdrawal.out_of(runtime, [index_name(row.tenant, row.name, row.generation)], sorted(found.foreign))
    number = consistency.mend(runtime.db, row, found.rebuild, found.reload, found.stuck)
    if found.foreign or number is not None:
        catalog.bump(runtime.db, row.id)
        withdrawal.purge(runtime, row)
    return [browse.run_name(number)] if number is not None else []


def _orphans(runtime: Runtime, *, dry_run: bool) -> int:
    """Packs that nobody names and that are old enough to have been named."""
    old = [name for name, written_at in runtime.artifacts.packs() if time.time() - written_at > YOUNG_PACK_S]
    unneeded = refs.unreferenced(runtime.db, old)
    if not dry_run:
        runtime.artifacts.remove(unneeded)
    return len(unneeded)
