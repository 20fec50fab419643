"""Taking documents out of the index: for good, or until they may be seen again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.errors import NotFound, PipelineError
from pipeline.packs import cache_group
from workers.ledger import absence, generations, outstanding, removal, tallies
from workers.ledger.sources import SourceRow
from workers.ledger.work import CollectionRow
from workers.runtime import Runtime

SLICE = 200


def hide(runtime: Runtime, row: CollectionRow, ids: Sequence[str], detail: str) -> int:
    """Nobody finds these documents from now on; returns how many there were. Safe to repeat after a crash. Raises Unavailable."""
    number = 0
    for start in range(0, len(ids), SLICE):
        part = list(ids[start : start + SLICE])
        leaving = absence.unfinished(runtime.db, part) + absence.begin_hiding(runtime.db, part, detail)
        if leaving:
            _out_of_store(runtime, row, leaving)
            absence.hidden(runtime.db, row.id, leaving)
            purge(runtime, row)
            number += len(leaving)
    return number


def remove(runtime: Runtime, row: CollectionRow, ids: Sequence[str]) -> list[str]:
    """Delete documents from index, artifacts and ledger text; gives those that were there. Raises Unavailable: then ask again."""
    gone: list[str] = []
    for start in range(0, len(ids), SLICE):
        fence = removal.detach(runtime.db, row, ids[start : start + SLICE])
        if fence:
            finish(runtime, row, fence)
            gone += fence
    return gone


def finish(runtime: Runtime, row: CollectionRow, fence: Mapping[str, int]) -> None:
    """Go on with the deletion of detached documents: out of the store and the ledger's text. `erasing` does the rest. Raises Unavailable."""
    ids = list(fence)
    for start in range(0, len(ids), SLICE):
        part = {document_id: fence[document_id] for document_id in ids[start : start + SLICE]}
        _out_of_store(runtime, row, list(part))
        removal.forget(runtime.db, row, part)
    for chore in outstanding.listed(runtime.db, outstanding.DOCUMENTS):
        if chore.name == row.id:
            removal.settle_documents(runtime.db, chore)


def prune(runtime: Runtime, source: SourceRow, row: CollectionRow, run_id: int | None, *, approved: bool = False) -> tuple[int, int]:
    """Delete what the ledger has evidence for; gives (deleted, held back). Only a person's word lets very many go at once."""
    total, absent = absence.counts(runtime.db, source.id)
    before = absence.deleted_in(runtime.db, run_id) if run_id is not None else 0
    if not approved and absence.too_many(absent + before, total + before):
        absence.hold(runtime.db, source.id, absent)
        return 0, absent
    deleted = 0
    after = ""
    while part := absence.absent(runtime.db, source.id, limit=SLICE, after=after):
        after = part[-1][0]
        gone = remove(runtime, row, absence.still(runtime.db, [document_id for document_id, *_ in part]))
        absence.removed(runtime.db, source.id, gone, run_id)
        deleted += len(gone)
    absence.hold(runtime.db, source.id, 0)
    return deleted, 0


def _out_of_store(runtime: Runtime, row: CollectionRow, ids: Sequence[str]) -> None:
    if row.dimension is not None:
        # A worker may be about to write the first documents of an index that is not there yet: it must find the fence.
        runtime.store(row, row.dimension)
    out_of(runtime, generations.indices(runtime.db, row), ids)


def out_of(runtime: Runtime, indices: Sequence[str], ids: Sequence[str]) -> None:
    """Remove documents from indices; one that is not there holds none of them. Raises Unavailable.

    Of those that the ledger says are not to be seen, no version that is under way comes back.
    """
    store = runtime.open_store(runtime.settings.store_url, writer=True)
    fence = removal.fences(runtime.db, ids)
    for name in indices:
        try:
            store.delete(name, list(ids), fence=fence)
            runtime.leave_graph(store, name, fence)
        except NotFound:
            continue


def purge(runtime: Runtime, row: CollectionRow) -> None:
    """Forget cached answers. Those of an older revision are never served, so a cache that is away keeps nothing wrong."""
    if runtime.cache is not None:
        try:
            runtime.cache.purge(cache_group(row.tenant, row.name))
        except PipelineError:
            tallies.one_more(runtime.db, tallies.UNPURGED)
