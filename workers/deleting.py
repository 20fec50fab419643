"""Deletion of documents, a source, a collection, a tenant: noted first, then out of the store, the ledger's text, the caches, and down to the bytes.

Each part is a row of `outstanding` until it is done: killed at any line, or while a server is away, it is finished by the housekeeping.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from pipeline.errors import NotFound, PipelineError, Unavailable
from workers import erasing, withdrawal
from workers.collecting import check_store
from workers.ledger import absence, catalog, control, outstanding, removal, sources
from workers.ledger.work import CollectionRow
from workers.runtime import Runtime
from workers.views import DeletedView, OutstandingView


class Deleting:
    """Safe for threads. Nothing is visible any more when a call returns, unless the view says that the store could not be reached.

    Every call takes `dry_run`, to be told what it would take, and `erase`: False leaves the bytes in files to the housekeeping, so that
    many deletions cost one merge of the index.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._db = runtime.db

    def documents(self, collection: str, ids: Sequence[str], *, tenant: str = "default", dry_run: bool = False, erase: bool = True) -> DeletedView:
        """Remove documents. Raises NotFound when one of them is not there: then none is removed."""
        row = catalog.find(self._db, tenant, collection)
        check_store(self._runtime, row)
        lacking = sorted(set(ids) - removal.present(self._db, row.id, ids))
        if lacking:
            hint = "`dujiang documents list` shows those there are."
            raise NotFound(f"collection {collection!r} has no document {lacking[0]!r}", hint=hint, code="document_not_found")
        number, chunks = removal.count(self._db, row.id, ids)
        if not dry_run:
            with suppress(Unavailable):  # it is noted in the ledger, and the view says so
                withdrawal.remove(self._runtime, row, list(dict.fromkeys(ids)))
        return self._view((), number, chunks, dry_run=dry_run, erase=erase)

    def collection(self, name: str, *, tenant: str = "default", dry_run: bool = False, erase: bool = True) -> DeletedView:
        """Remove a collection with all its documents. Raises NotFound."""
        row = catalog.find(self._db, tenant, name)
        check_store(self._runtime, row)
        number, chunks = removal.count(self._db, row.id)
        if not dry_run:
            removal.begin(self._db, row)
            with suppress(Unavailable):
                _collections(self._runtime, removal.half_deleted(self._db, collection_id=row.id))
        return self._view((name,), number, chunks, dry_run=dry_run, erase=erase)

    def source(self, name: str, *, keep_documents: bool = False, tenant: str = "default", dry_run: bool = False, erase: bool = True) -> DeletedView:
        """Remove a source with its documents, or let these stay. What of it is under way is cancelled. Raises NotFound."""
        row = sources.find(self._db, tenant, name)
        for home in _homes(self._runtime, row.id):
            check_store(self._runtime, home)
        number, chunks = absence.count(self._db, row.id)
        if keep_documents:
            number, chunks, kept = 0, 0, number
            if not dry_run:
                control.stop_all(self._db, source_id=row.id)
                kept = removal.forget_source(self._db, row.id)
            return replace(self._view((), number, chunks, dry_run=dry_run, erase=erase), kept=kept)
        if not dry_run:
            removal.begin_source(self._db, row.id)
            with suppress(Unavailable):
                _source(self._runtime, row.id)
        return self._view((), number, chunks, dry_run=dry_run, erase=erase)

    def tenant(self, tenant: str, *, dry_run: bool = False, erase: bool = True) -> DeletedView:
        """Remove a tenant: collections, documents, sources, runs, keys, weight. Safe to repeat."""
        rows = catalog.every(self._db, tenant)
        for row in rows:
            check_store(self._runtime, row)
        counts = [removal.count(self._db, row.id) for row in rows]
        if not dry_run:
            removal.begin_tenant(self._db, tenant)
            with suppress(Unavailable):
                _tenant(self._runtime, tenant)
        names = tuple(row.name for row in rows)
        return self._view(names, sum(one for one, _ in counts), sum(chunks for _, chunks in counts), dry_run=dry_run, erase=erase)

    def outstanding(self) -> list[OutstandingView]:
        """What all deletions so far have left to be done, by kind; empty when nothing holds anything any more."""
        found = outstanding.listed(self._db)
        first = {kind: [chore.since for chore in found if chore.kind == kind] for kind in erasing.SAID}
        return [OutstandingView(text, len(first[kind]), catalog.moment(min(first[kind]))) for kind, text in erasing.SAID.items() if first[kind]]

    def _view(self, names: tuple[str, ...], documents: int, chunks: int, *, dry_run: bool, erase: bool) -> DeletedView:
        if dry_run:
            return DeletedView(names, documents, chunks, True)
        left = erasing.erase(self._runtime) if erase else erasing.left(self._runtime)
        return DeletedView(names, documents, chunks, False, left)


def finish(runtime: Runtime, *, patience_s: float = 0.0) -> int:
    """Go on with deletions that were begun, by whomever; returns how many were looked at. Raises Unavailable when the ledger is away.

    Args:
        patience_s: leave those alone that were begun within that time: somebody is at it.
    """
    with runtime.db.read() as connection:
        before = runtime.db.now(connection) - patience_s
    chores = [chore for chore in outstanding.listed(runtime.db, *_STEPS) if chore.since <= before]
    for chore in chores:
        try:
            _STEPS[chore.kind](runtime, chore.name)
        except PipelineError:
            continue  # it stays in the ledger, and comes again
    return len(chores)


def due(runtime: Runtime) -> bool:
    """A cheap look: is there a deletion that nobody has finished for a while?"""
    with runtime.db.read() as connection:
        now = runtime.db.now(connection)
    found = outstanding.listed(runtime.db)
    return any(chore.since <= now - (removal.PATIENCE_S if chore.kind in _STEPS else erasing.SETTLE_S) for chore in found)


def catch_up(runtime: Runtime) -> None:
    """Do what is `due`. A server that is away leaves it to the next call."""
    with suppress(Unavailable):
        finish(runtime, patience_s=removal.PATIENCE_S)
        with runtime.db.read() as connection:
            before = runtime.db.now(connection) - erasing.SETTLE_S
        erasing.erase(runtime, before=before)


def drop_late(runtime: Runtime) -> list[str]:
    """Remove indices of deleted collections that somebody who came late, or a backup, has made again. Raises Unavailable."""
    store = runtime.open_store(runtime.settings.store_url, writer=True)
    found = sorted(removal.dropped_indices(runtime.db) & set(store.collections()))
    for name in found:
        store.drop(name)
    return found


def _tenant(runtime: Runtime, tenant: str) -> None:
    for row in catalog.every(runtime.db, tenant):
        with suppress(NotFound):  # somebody else is deleting it
            removal.begin(runtime.db, row)
    _collections(runtime, removal.half_deleted(runtime.db, tenant=tenant))
    for chore in outstanding.listed(runtime.db, outstanding.TENANT):
        if chore.name == tenant:
            removal.forget_tenant(runtime.db, chore)


def _collection(runtime: Runtime, collection_id: str) -> None:
    found = removal.half_deleted(runtime.db, collection_id=collection_id)
    _collections(runtime, found)
    if not found:
        for chore in outstanding.listed(runtime.db, outstanding.COLLECTION):
            if chore.name == collection_id:
                outstanding.done(runtime.db, chore)


def _collections(runtime: Runtime, rows: Sequence[CollectionRow]) -> None:
    store = runtime.open_store(runtime.settings.store_url, writer=True)
    for row in rows:
        check_store(runtime, row)
        for index in removal.indices(runtime.db, row):
            store.drop(index)
        removal.forget_collection(runtime.db, row)


def _source(runtime: Runtime, source_id: str) -> None:
    control.stop_all(runtime.db, source_id=source_id)
    for row in _homes(runtime, source_id):
        check_store(runtime, row)
        while ids := absence.of_source(runtime.db, source_id, row.id, limit=withdrawal.SLICE):
            withdrawal.remove(runtime, row, ids)
            absence.removed(runtime.db, source_id, ids, None)
    removal.forget_source(runtime.db, source_id)


def _homes(runtime: Runtime, source_id: str) -> list[CollectionRow]:
    """Collections in which a source has documents. One that is deleted takes them with it."""
    ids = set(absence.homes(runtime.db, source_id))
    return [row for row in catalog.every(runtime.db) if row.id in ids]


def _documents(runtime: Runtime, collection_id: str) -> None:
    row = next((row for row in catalog.every(runtime.db) if row.id == collection_id), None)
    if row is not None:
        withdrawal.finish(runtime, row, removal.halves(runtime.db, collection_id))
    else:
        for chore in outstanding.listed(runtime.db, outstanding.DOCUMENTS):
            if chore.name == collection_id:
                outstanding.done(runtime.db, chore)


_STEPS: Mapping[str, Callable[[Runtime, str], None]] = {
    outstanding.TENANT: _tenant,
    outstanding.COLLECTION: _collection,
    outstanding.SOURCE: _source,
    outstanding.DOCUMENTS: _documents,
}
