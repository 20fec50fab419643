"""The state machine: claim, renew, commit, expire. Every step names the token; a mismatch is a no-op."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, bindparam, case, func, insert, select, update

from pipeline import tuning
from pipeline.contracts import Lane, Stage
from workers import queues
from workers.ledger import balance
from workers.ledger.downloaded import after, downloaded, of_source
from workers.ledger.engine import Database, upsert
from workers.ledger.schema import OPEN, artifact_refs, attempts, batches, collections, documents, usage
from workers.ledger.work import Advance, Batch, CollectionRow, Issue, Outcome, Ref, Setback, Work

CODE_VERSION = "0.1.0"

# Statements of every batch are built once: putting one together costs SQLAlchemy as much as SQLite takes to run it.
_MINE = and_(batches.c.id == bindparam("batch"), batches.c.token == bindparam("lease"))
_CLAIM = (
    update(batches)
    .where(_MINE, batches.c.status == "queued")
    .values(status="leased", owner=bindparam("claimer"), lease_until=bindparam("until"), deadline=bindparam("latest"))
    .returning(batches.c.collection_id, batches.c.stages, batches.c.lane)
)
_STILL = select(batches.c.id).where(_MINE, batches.c.status == "leased")
_CLOSE = (
    update(batches)
    .where(_MINE, batches.c.status == "leased")
    .values(status="done", finished_at=bindparam("now"), seconds=bindparam("took"), members=bindparam("ids"))
)
_NEW = insert(batches).values(status="queued", token=1).returning(batches.c.id)
_HANGING = select(documents.c.id).where(documents.c.batch_id == bindparam("batch"))
_LOCKED = _HANGING.order_by(documents.c.id).with_for_update()
_COLLECTION = select(collections).where(collections.c.id == bindparam("collection"))
_ANSWERS_ANEW = (
    update(collections)
    .where(collections.c.id == bindparam("collection"), collections.c.generation == bindparam("answering"))
    .values(revision=collections.c.revision + 1)
)
_DONE = (
    update(documents)
    .values(
        status="done",
        batch_id=None,
        live_version=documents.c.version,
        live_hash=documents.c.source_hash,
        live_fingerprint=documents.c.fingerprint,
        live_chunks=documents.c.chunks,
        attempts=0,
        waits=0,
        lost=0,
        waiting_since=None,
        error_stage="",
        error_code="",
        error_detail="",
        error_hint="",
        error_trace="",
        hidden_at=None,
        updated_at=bindparam("now"),
    )
    .returning(documents.c.id, documents.c.chunks)
)

_WORK = (
    documents.c.id,
    documents.c.key,
    documents.c.title,
    documents.c.url,
    documents.c.path,
    documents.c.member,
    documents.c.media_type,
    documents.c.size,
    documents.c.meta,
    documents.c.options,
    documents.c.access,
    documents.c.run_id,
    documents.c.version,
    documents.c.live_version,
    documents.c.live_hash,
    documents.c.live_fingerprint,
    documents.c.source_hash,
    documents.c.fingerprint,
    documents.c.attempts,
    documents.c.waits,
    documents.c.chunks,
    documents.c.route,
    documents.c.shadow_of,
    documents.c.source_id,
    documents.c.revision_mark,
    documents.c.waiting_since,
)
_HELD_WORK = select(*_WORK).where(documents.c.batch_id == bindparam("batch")).order_by(documents.c.id)


def collection_row(row: Row[*tuple[Any, ...]]) -> CollectionRow:
    """A row of `collections` as the ledger's own type."""
    values: dict[str, Any] = dict(row._mapping)  # pyright: ignore[reportPrivateUsage]
    values["chunk_options"] = json.loads(values["chunk_options"])
    values["paused"] = bool(values["paused"])
    values |= {"search": tuning.load(values["search"]), "calibrations": tuning.load_calibrations(values["calibrations"])}
    return CollectionRow(**values)


def _work(row: Row[*tuple[Any, ...]]) -> Work:
    values: list[Any] = list(row)
    values[8] = json.loads(str(values[8]))
    values[9] = json.loads(str(values[9]))
    return Work(*values)


def stages_of(text: str) -> tuple[Stage, ...]:
    return tuple(Stage(name) for name in text.split(","))


def claim(db: Database, batch_id: int, token: int, owner: str, *, lease_s: float, deadline_s: float) -> Batch | None:
    """Lease a batch, or None when the message is stale, doubled, or names a batch that is done.

    A batch whose documents have all been cancelled or superseded closes at once and gives None too.
    """
    with db.write() as connection:
        now = db.now(connection)
        given = {"batch": batch_id, "lease": token, "claimer": owner, "until": now + lease_s, "latest": now + deadline_s}
        row = connection.execute(_CLAIM, given).first()
        if row is None:
            return None
        found = connection.execute(_HELD_WORK, {"batch": batch_id}).all()
        if not found:
            _close(connection, batch_id, "done", now)
            return None
        collection = connection.execute(_COLLECTION, {"collection": row.collection_id}).one()
    return Batch(batch_id, token, owner, Lane(row.lane), stages_of(row.stages), collection_row(collection), tuple(_work(item) for item in found))


def renew(db: Database, batch_id: int, token: int, *, lease_s: float) -> bool:
    """Prolong a lease, never past its deadline; False when it is no longer ours."""
    with db.write() as connection:
        until = db.now(connection) + lease_s
        done = connection.execute(
            update(batches)
            .where(batches.c.id == batch_id, batches.c.token == token, batches.c.status == "leased")
            .values(lease_until=case((batches.c.deadline < until, batches.c.deadline), else_=until))
        )
    return done.rowcount == 1


def held(db: Database, batch: Batch) -> frozenset[str]:
    """Documents that still belong to this lease: not cancelled, deleted or superseded meanwhile."""
    with db.read() as connection:
        if connection.scalar(_STILL, {"batch": batch.id, "lease": batch.token}) is None:
            return frozenset()
        return frozenset(connection.scalars(_HANGING, {"batch": batch.id}))


def commit(db: Database, batch: Batch, outcome: Outcome) -> list[Issue] | None:
    """Write what a batch came to, and make its successors, in one transaction.

    Returns the messages to publish now, or None when the lease was lost: then nothing was written.
    """
    with db.write() as connection:
        now = db.now(connection)
        ids = members(work.document_id for work in batch.documents)
        taken = connection.execute(_CLOSE, {"batch": batch.id, "lease": batch.token, "now": now, "took": outcome.seconds, "ids": ids})
        if taken.rowcount != 1:
            return None
        # Of a document that was taken from this batch meanwhile, by a deletion or by another generation, nothing is kept.
        mine = set(connection.scalars(_LOCKED, {"batch": batch.id}))
        write_refs(connection, [ref for ref in outcome.refs if ref.document_id in mine], now)
        _write_usage(connection, batch, outcome, now)
        if outcome.dimension is not None and batch.collection.dimension is None:
            connection.execute(update(collections).where(collections.c.id == batch.collection.id).values(dimension=outcome.dimension))
        # Setbacks first: what then still hangs on the batch has advanced, and one statement moves it.
        _set_back(connection, batch, outcome.setbacks, now)
        downloaded(connection, batch.id, outcome.advances)
        return _advance(connection, batch, outcome.advances, now)


def members(ids: Iterable[str]) -> str:
    """The documents of a batch that closes, for whoever asks later what its number stood for."""
    return "\n".join(ids)


def write_refs(connection: Connection, refs: Sequence[Ref], now: float) -> None:
    """Name artifacts in the ledger; the bytes are on disk already."""
    rows = [
        {
            "document_id": ref.document_id,
            "version": ref.version,
            "stage": ref.stage.value,
            "key": ref.key,
            "pack": ref.pack,
            "start": ref.start,
            "length": ref.length,
            "created_at": now,
        }
        for ref in refs
    ]
    # A retried stage replaces the reference; the pack it named before becomes an orphan for the sweep.
    upsert(connection, artifact_refs, rows)


def _write_usage(connection: Connection, batch: Batch, outcome: Outcome, now: float) -> None:
    owner = f"run:{batch.documents[0].run_id}"
    for spent in outcome.spent:
        connection.execute(
            insert(usage).values(
                owner=owner,
                part=spent.part,
                model=spent.model,
                input_tokens=spent.input_tokens,
                output_tokens=spent.output_tokens,
                units=spent.units,
                requests=spent.requests,
                at=now,
            )
        )


def _advance(connection: Connection, batch: Batch, advances: Iterable[Advance], now: float) -> list[Issue]:
    issues: list[Issue] = []
    ordered = sorted(advances, key=lambda advance: queues.ORDER.index(advance.stage))
    groups = [(stage, list(group)) for stage, group in groupby(ordered, key=lambda advance: advance.stage)]
    for stage, members in groups:
        mine: ColumnElement[bool] = documents.c.batch_id == batch.id
        if len(groups) > 1:
            mine = and_(mine, documents.c.id.in_([advance.document_id for advance in members]))
        following = queues.following(stage)
        if following is None:
            _finish(connection, batch, mine, {advance.document_id: advance.remark for advance in members}, now)
            continue
        values: dict[str, object] = {
            "stage": following.value,
            "status": "ready",
            "batch_id": None,
            "next_at": 0.0,
            "updated_at": now,
            "lost": 0,
            "waiting_since": None,
        }
        if following is not Stage.EMBED:
            issue = successor(connection, batch, (following,), len(members), sum(d.chunks for d in batch.documents), now)
            issues.append(issue)
            values |= {"status": "queued", "batch_id": issue.batch_id}
        if following in (Stage.PARSE, Stage.CHUNK, Stage.EMBED):
            connection.execute(
                update(documents)
                .where(documents.c.id == bindparam("d"), documents.c.batch_id == batch.id)
                .values(**values, source_hash=bindparam("h"), chunks=bindparam("n"), title=bindparam("t"), media_type=bindparam("m")),
                [{"d": a.document_id, "h": a.source_hash, "n": a.chunks, "t": a.title, "m": a.media_type} for a in members],
            )
        else:
            connection.execute(update(documents).where(mine).values(**values))
    return issues


def successor(connection: Connection, batch: Batch, stages: tuple[Stage, ...], size: int, chunks: int, now: float) -> Issue:
    """A batch of the same documents for the next stage, ready to be published once this transaction stands."""
    return new_batch(connection, batch.collection.tenant, batch.collection.id, stages, batch.lane, size=size, chunks=chunks, now=now)


def new_batch(
    connection: Connection, tenant: str, collection_id: str, stages: tuple[Stage, ...], lane: Lane, *, size: int, chunks: int, now: float
) -> Issue:
    """Insert a queued batch; whoever calls attaches documents to it in the same transaction."""
    queue = queues.home(stages, lane)
    given = {
        "tenant": tenant,
        "collection_id": collection_id,
        "stages": ",".join(stages),
        "lane": lane.value,
        "queue": queue,
        "created_at": now,
        "size": size,
        "chunks": chunks,
    }
    result = connection.execute(_NEW, given)
    return Issue(int(result.scalar_one()), 1, stages[0], queue)


def _finish(connection: Connection, batch: Batch, mine: ColumnElement[bool], remarks: Mapping[str, str], now: float) -> None:
    answering = connection.execute(_ANSWERS_ANEW, {"collection": batch.collection.id, "answering": batch.collection.generation})
    if answering.rowcount != 1:
        # Another generation answers by now: what was cut and embedded for the earlier one begins again.
        again = {"stage": Stage.CHUNK.value, "status": "ready", "batch_id": None, "next_at": 0.0, "updated_at": now}
        connection.execute(update(documents).where(mine).values(**again))
        return
    done = connection.execute(_DONE.where(mine), {"now": now}).all()
    balance.settle(connection, [(row.id, "indexed", row.chunks, remarks.get(row.id, "")) for row in done], now)


def _set_back(connection: Connection, batch: Batch, setbacks: Sequence[Setback], now: float) -> None:
    if not setbacks:
        return
    mine = set(
        connection.scalars(select(documents.c.id).where(documents.c.batch_id == batch.id, documents.c.id.in_([s.document_id for s in setbacks])))
    )
    runs = {work.document_id: work for work in batch.documents}
    settled: list[tuple[str, str, int, str]] = []
    for setback in setbacks:
        if setback.document_id not in mine:
            continue
        work = runs[setback.document_id]
        connection.execute(update(documents).where(documents.c.id == setback.document_id).values(**_setback_values(setback, work, now)))
        if setback.status != "skipped":
            record_attempt(
                connection, work.document_id, work.run_id, work.version, setback.stage, setback.status, setback.code, setback.detail, batch.owner, now
            )
        if setback.status == "skipped":
            settled.append((work.document_id, "unchanged" if setback.unchanged else "skipped", work.chunks, setback.detail))
        elif setback.status == "dead":
            settled.append((work.document_id, "failed", 0, setback.detail))
    if any(setback.hidden for setback in setbacks):
        connection.execute(update(collections).where(collections.c.id == batch.collection.id).values(revision=collections.c.revision + 1))
    balance.settle(connection, settled, now)


def _setback_values(setback: Setback, work: Work, now: float) -> dict[str, object]:
    values: dict[str, object] = {"batch_id": None, "stage": setback.stage.value, "updated_at": now}
    if setback.source_hash:
        values["source_hash"] = setback.source_hash
    values |= of_source(setback, now)
    if setback.status == "skipped":
        # Nothing was wrong, so the version that answers stays, and no error is left behind.
        return values | {"status": "done" if work.live_version is not None else "skipped", "attempts": 0, "waits": 0, "waiting_since": None}
    values |= {
        "status": setback.status,
        "error_stage": setback.stage.value,
        "error_code": setback.code,
        "error_detail": setback.detail,
        "error_hint": setback.hint,
        "error_trace": setback.trace,
    }
    if setback.costs_attempt:
        values["attempts"] = work.attempts + 1
    else:
        values["waits"] = work.waits + 1
    if setback.status == "retry":
        values["next_at"] = after(setback, now)
        values["waiting_since"] = None if setback.costs_attempt else func.coalesce(documents.c.waiting_since, now)
    return values


def record_attempt(
    connection: Connection, document_id: str, run_id: int, version: int, stage: Stage, outcome: str, code: str, detail: str, worker: str, now: float
) -> None:
    """Keep one attempt that did not succeed."""
    connection.execute(
        insert(attempts).values(
            document_id=document_id,
            run_id=run_id,
            version=version,
            stage=stage.value,
            outcome=outcome,
            code=code,
            detail=detail,
            worker=worker,
            code_version=CODE_VERSION,
            at=now,
        )
    )


def _close(connection: Connection, batch_id: int, status: str, now: float) -> None:
    connection.execute(update(batches).where(batches.c.id == batch_id).values(status=status, finished_at=now))


def counts_by_queue(connection: Connection) -> dict[str, dict[str, int]]:
    """Open batches of each queue: {"dujiang.parse.bulk": {"queued": 3, "leased": 1}}."""
    found: dict[str, dict[str, int]] = {}
    rows = connection.execute(select(batches.c.queue, batches.c.status, func.count()).where(OPEN).group_by(batches.c.queue, batches.c.status))
    for queue, status, number in rows:
        found.setdefault(queue, {})[status] = number
    return found
