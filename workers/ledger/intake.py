"""Runs and their documents going in: what is new, what is unchanged, what cannot be taken."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from sqlalchemy import Connection, bindparam, insert, select, update

from pipeline.contracts import Lane, Scalar, Stage
from pipeline.errors import NotFound
from workers.ledger import balance
from workers.ledger.batches import write_refs
from workers.ledger.engine import Database
from workers.ledger.schema import collections, documents, run_items, runs
from workers.ledger.work import CollectionRow, Ref


@dataclass(frozen=True, slots=True)
class Submission:
    """One document as dispatch saw it. `error` (code, detail, hint, skipped) is set when it cannot be taken."""

    document_id: str
    key: str
    title: str = ""
    url: str = ""
    path: str = ""
    member: str = ""
    media_type: str = ""
    size: int = 0
    metadata: Mapping[str, Scalar | list[str]] = field(default_factory=dict[str, Scalar | list[str]])
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    access: str = ""
    source_hash: str = ""
    fingerprint: str = ""
    route: str = "staged"
    error: tuple[str, str, str, bool] | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """What the ledger knew of a document before."""

    version: int
    live_version: int | None
    live_hash: str
    live_fingerprint: str
    source_hash: str
    fingerprint: str
    status: str
    live_chunks: int


def open_run(db: Database, collection: CollectionRow, *, source: str, lane: Lane) -> int:
    """A run whose listing is still open."""
    with db.write() as connection:
        of = {"tenant": collection.tenant, "collection_id": collection.id, "collection": collection.name}
        return balance.open_run(connection, db.now(connection), **of, source=source, lane=lane)


def close_scan(db: Database, run_id: int, *, complete: bool, warnings: Sequence[str] = ()) -> None:
    """The listing is over; a run that waits for no document ends here."""
    with db.write() as connection:
        connection.execute(
            update(runs).where(runs.c.id == run_id).values(scan="complete" if complete else "incomplete", warnings=json.dumps(list(warnings)))
        )
        balance.finish(connection, [run_id], db.now(connection))


def known(db: Database, ids: Sequence[str]) -> dict[str, Known]:
    """What the ledger knows of these documents."""
    with db.read() as connection:
        return _known(connection, ids)


def _known(connection: Connection, ids: Sequence[str]) -> dict[str, Known]:
    columns = (documents.c.version, documents.c.live_version, documents.c.live_hash, documents.c.live_fingerprint, documents.c.source_hash)
    columns += (documents.c.fingerprint, documents.c.status, documents.c.live_chunks)
    rows = connection.execute(select(documents.c.id, *columns).where(documents.c.id.in_(list(ids)))).all()
    return {row[0]: Known(*row[1:]) for row in rows}


def submit(
    db: Database, run_id: int, collection: CollectionRow, lane: Lane, items: Sequence[Submission], uploads: Mapping[str, Ref] = MappingProxyType({})
) -> int:
    """Write one slice of a run's documents in one transaction; returns how many have work to be done.

    `uploads` names the bytes of documents that came with the request; their version is filled in here.

    Unchanged ones only enter the balance. A document that is under way with the same bytes is waited for, not begun again;
    with other bytes it begins again as a newer version, and whoever works on the older one can no longer commit it.
    """
    with db.write() as connection:
        now = db.now(connection)
        before = _known(connection, [item.document_id for item in items])
        present = set(
            connection.scalars(
                select(run_items.c.document_id).where(run_items.c.run_id == run_id, run_items.c.document_id.in_([i.document_id for i in items]))
            )
        )
        fresh = list({item.document_id: item for item in items if item.document_id not in present}.values())
        outcomes: list[dict[str, object]] = []
        new: list[dict[str, object]] = []
        again: list[dict[str, object]] = []
        for item in fresh:
            old = before.get(item.document_id)
            outcome, row = _judge(item, old, collection, run_id, lane, now)
            outcomes.append({"run_id": run_id, "document_id": item.document_id, **outcome})
            if row is not None:
                (again if old is not None else new).append(row)
        if outcomes:
            connection.execute(insert(run_items), outcomes)
        write_rows(connection, new, again)
        # An earlier run may wait for what this one found to be unreadable.
        ended = [(str(row["id"]), "failed", 0, str(row["error_detail"])) for row in again if row["status"] == "dead"]
        balance.settle(connection, ended, now)
        begun = {str(row["id"]): row["version"] for row in (*new, *again) if row["status"] == "ready"}
        write_refs(connection, [replace(ref, version=begun[key]) for key, ref in uploads.items() if key in begun], now)
        return len(begun)


def _judge(
    item: Submission, old: Known | None, collection: CollectionRow, run_id: int, lane: Lane, now: float
) -> tuple[dict[str, object], dict[str, object] | None]:
    if item.error is not None:
        code, detail, hint, skipped = item.error
        outcome: dict[str, object] = {"outcome": "skipped" if skipped else "failed", "chunks": 0, "detail": detail}
        if skipped and old is not None:
            return outcome, None
        row = row_of(item, old, collection, run_id, lane, now)
        row |= {"status": "skipped" if skipped else "dead"}
        if not skipped:
            row |= {"error_stage": Stage.LOAD.value, "error_code": code, "error_detail": detail, "error_hint": hint}
        return outcome, row
    if old is not None:
        if (
            old.live_version is not None
            and old.live_hash == item.source_hash
            and old.live_fingerprint == item.fingerprint
            and old.status in ("done", "dead", "cancelled", "skipped")
        ):
            return {"outcome": "unchanged", "chunks": old.live_chunks, "detail": ""}, None
        if old.source_hash == item.source_hash and old.fingerprint == item.fingerprint and old.status in ("ready", "queued", "retry"):
            return {"outcome": "pending", "chunks": 0, "detail": ""}, None
    return {"outcome": "pending", "chunks": 0, "detail": ""}, row_of(item, old, collection, run_id, lane, now)


def row_of(item: Submission, old: Known | None, collection: CollectionRow, run_id: int, lane: Lane, now: float) -> dict[str, object]:
    """A document that begins at load, as a version above the last one."""
    return {
        "id": item.document_id,
        "tenant": collection.tenant,
        "collection_id": collection.id,
        "key": item.key,
        "title": item.title,
        "url": item.url,
        "path": item.path,
        "member": item.member,
        "media_type": item.media_type,
        "size": item.size,
        "meta": json.dumps(dict(item.metadata), ensure_ascii=False, sort_keys=True),
        "options": json.dumps(dict(item.options), sort_keys=True),
        "access": item.access,
        "run_id": run_id,
        "lane": lane.value,
        "route": item.route,
        "stage": Stage.LOAD.value,
        "status": "ready",
        "next_at": 0.0,
        "attempts": 0,
        "waits": 0,
        "waiting_since": None,
        "lost": 0,
        "batch_id": None,
        "version": (old.version if old is not None else 0) + 1,
        "source_hash": item.source_hash,
        "fingerprint": item.fingerprint,
        "chunks": 0,
        "error_stage": "",
        "error_code": "",
        "error_detail": "",
        "error_hint": "",
        "error_trace": "",
        "updated_at": now,
    }


def _there(connection: Connection, ids: Sequence[str]) -> None:
    """Hold the collections, so that a deletion comes before or after this transaction."""
    for collection_id in ids:
        held = select(collections.c.id).where(collections.c.id == collection_id, collections.c.status != "deleting")
        if connection.scalar(held.with_for_update(read=True, key_share=True)) is None:
            raise NotFound("the collection was deleted meanwhile", hint="Make it anew, and try again.", code="collection_not_found")


def write_rows(connection: Connection, new: list[dict[str, object]], again: list[dict[str, object]]) -> None:
    """Insert and overwrite documents; the rows of each list have the same columns. Raises NotFound when their collection is deleted meanwhile."""
    _there(connection, sorted({str(row["collection_id"]) for row in (*new, *again)}))
    if new:
        connection.execute(insert(documents), new)
    if again:
        names = [name for name in again[0] if name != "id"]
        statement = update(documents).where(documents.c.id == bindparam("b_id")).values({name: bindparam(f"b_{name}") for name in names})
        connection.execute(statement, [{f"b_{name}": value for name, value in row.items()} for row in again])
