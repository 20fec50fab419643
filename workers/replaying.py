"""Deletions done again in a system that was restored from a backup older than they are."""

from __future__ import annotations

from collections.abc import Sequence, Set

from pipeline import identity
from workers import erasing
from workers.deleting import Deleting
from workers.ledger import catalog, sources, tombstones
from workers.ledger.tombstones import COLLECTION, DOCUMENT, SOURCE, TENANT, Tombstone
from workers.ledger.work import CollectionRow
from workers.runtime import Runtime
from workers.views import ReplayedView, TombstoneView

SLICE = 200


class Tombstones:
    """What was deleted, and the way to delete it again. Safe for threads, and to repeat."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._db = runtime.db

    def listed(self, *, limit: int = 1000, after: str = "") -> list[TombstoneView]:
        """By pages: `after` is the id of the last one; a page shorter than `limit` is the last. The first holds everything but documents, too."""
        found = tombstones.listed(self._db, limit=limit, after=after)
        return [TombstoneView(one.kind, one.id, one.number, one.at, one.of) for one in found]

    def replay(self, given: Sequence[TombstoneView], *, dry_run: bool = False) -> ReplayedView:
        """Delete what is there although it was deleted after this ledger was written; what came later stays. Raises Unavailable: then repeat it."""
        stones = [Tombstone(one.kind, one.id, one.number, one.at, one.of) for one in given]
        fresh = tombstones.unknown(self._db, stones)
        deleting = Deleting(self._runtime)
        names = [name for name in sorted(tombstones.tenants(self._db)) if _of_kind(fresh, TENANT, identity.fingerprint({"tenant": name}))]
        number = sum(deleting.tenant(name, dry_run=dry_run, erase=False).documents for name in names)
        made = [row for row in catalog.every(self._db) if row.tenant not in names and _outlived(row, fresh)]
        number += sum(deleting.collection(row.name, tenant=row.tenant, dry_run=dry_run, erase=False).documents for row in made)
        revived = [row for row in sources.of_all(self._db) if (one := _of_kind(fresh, SOURCE, row.id)) and row.created_at < one.at]
        for row in revived:
            # Which of its documents went with it, their own tombstones say.
            deleting.source(row.name, keep_documents=True, tenant=row.tenant, dry_run=dry_run, erase=False)
        left_out = {row.id for row in catalog.every(self._db) if row.tenant in names} | {row.id for row in made}
        number += self._documents([one for one in stones if one.kind == DOCUMENT], left_out, deleting, dry_run=dry_run)
        if not dry_run:
            tombstones.remember(self._db, fresh)
        left = () if dry_run else erasing.erase(self._runtime)
        return ReplayedView(dry_run, len(names), tuple(row.name for row in made), tuple(row.name for row in revived), number, left)

    def _documents(self, stones: Sequence[Tombstone], left_out: Set[str], deleting: Deleting, *, dry_run: bool) -> int:
        number = 0
        rows = {row.id: row for row in catalog.every(self._db) if row.id not in left_out}
        homes = {row.id: row.tenant for row in rows.values()}
        for start in range(0, len(stones), SLICE):
            part = {one.id: one for one in stones[start : start + SLICE]}
            for collection_id, ids in tombstones.revived(self._db, part, homes).items():
                row = rows[collection_id]
                number += deleting.documents(row.name, ids, tenant=row.tenant, dry_run=dry_run, erase=False).documents
            if not dry_run:
                tombstones.count_on(self._db, part, homes)
        return number


def _of_kind(stones: Sequence[Tombstone], kind: str, name: str) -> Tombstone | None:
    return next((one for one in stones if (one.kind, one.id) == (kind, name)), None)


def _outlived(row: CollectionRow, stones: Sequence[Tombstone]) -> bool:
    one = _of_kind(stones, COLLECTION, row.id)
    return one is not None and row.generation <= one.number and row.created_at < one.at
