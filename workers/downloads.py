"""The load stage for a source's item: kept bytes, or a download, or the news that there is nothing to be had."""

from __future__ import annotations

from dataclasses import replace

from pipeline.contracts import SourceItem, Stage
from pipeline.errors import BrokenContract, Forbidden, Rejected, Unchanged
from workers.desk import Desk, Item
from workers.ledger import refs
from workers.ledger.scans import VALIDATORS


def download(desk: Desk, item: Item) -> bytes:
    """The item's bytes; what the source told beside them is in `item.detail`.

    An item that we may not read any more leaves the index at once. Raises what the connector raises.
    """
    work = item.work
    listed = SourceItem(work.key, work.revision, work.title, work.url, work.path, work.media_type, work.access, work.metadata)
    try:
        return _fetch(desk, item, listed)
    except Unchanged:
        if work.live_version is not None and work.fingerprint == work.live_fingerprint:
            raise
        # The bytes are the same, but not what is told of them: they are needed once more.
        return _live(desk, item) or _anew(desk, item, listed)
    except Forbidden:
        if work.live_version is not None:
            store, name = desk.tools.store(desk.batch.collection, 0)
            store.delete(name, [work.identity])
        raise


def _fetch(desk: Desk, item: Item, listed: SourceItem) -> bytes:
    raw, item.detail = desk.tools.fetch(item.work.source_id, listed)
    return raw.data


def _live(desk: Desk, item: Item) -> bytes | None:
    work = item.work
    if work.live_version is None:
        return None
    kept = refs.of(desk.tools.db, Stage.LOAD, {work.document_id: work.live_version}).get(work.document_id)
    try:
        return desk.tools.artifacts.read([kept])[0] if kept is not None else None
    except Rejected:
        return None


def _anew(desk: Desk, item: Item, listed: SourceItem) -> bytes:
    bare = {name: value for name, value in listed.metadata.items() if name not in VALIDATORS}
    try:
        return _fetch(desk, item, replace(listed, metadata=bare))
    except Unchanged as error:
        raise BrokenContract(f"the connector says that {item.work.key} is unchanged, and no bytes of it are kept") from error
