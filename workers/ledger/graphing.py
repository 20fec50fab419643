"""Documents on their way into the graph: behind the index, in batches of their own, which no run waits for.

What is to be done is derived, not written: a document whose live version, or whose extractor, is not the one in `graphed`. A batch that is lost
leaves its documents to be formed anew, each of them alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, delete, func, or_, select, update

from pipeline.contracts import Lane, Stage
from workers.ledger.batches import collection_row, new_batch
from workers.ledger.engine import Database, upsert
from workers.ledger.graph_schema import AGAIN, graphed, graphs
from workers.ledger.losses import POISON_AFTER
from workers.ledger.schema import OPEN, batches, collections, documents
from workers.ledger.work import Batch, CollectionRow, Issue

MOST_CHUNKS = 512
"""Of a batch: about two seconds of extraction without a model."""
MOST_DOCUMENTS = 64
WINDOW = 2
"""Batches of one collection under way."""

ANSWERS = and_(
    documents.c.shadow_of == "", documents.c.live_version.is_not(None), documents.c.status.not_in(("deleting", "deleted", "hiding", "hidden"))
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A document of a claimed batch that still answers in the version that is wanted."""

    document_id: str
    version: int
    key: str
    title: str
    attempts: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """A batch that is ours. An empty one has nothing to extract: what is dirty is folded after each."""

    batch: Batch
    documents: tuple[Wanted, ...]


@dataclass(frozen=True, slots=True)
class Stopped:
    """A document that did not get into the graph this time. `delay_s` None: for good."""

    document_id: str
    code: str
    detail: str
    delay_s: float | None
    costs_attempt: bool = True


@dataclass(frozen=True, slots=True)
class Progress:
    """How a collection's graph stands, in documents that answer."""

    documents: int
    done: int
    waiting: int
    failed: int
    paused: bool


def mark(row: CollectionRow, extractor: str) -> str:
    """Up to where a look through a collection went."""
    return f"{row.generation}:{row.revision}:{extractor}"


def pending(db: Database, extractor: str) -> list[CollectionRow]:
    """Live collections that have changed since they were last looked through, or in which something is to be tried again. Raises Unavailable."""
    with db.read() as connection:
        now = db.now(connection)
        rows = [
            collection_row(row) for row in connection.execute(select(collections).where(collections.c.status == "live", collections.c.paused == 0))
        ]
        known = {row.collection_id: row for row in connection.execute(select(graphs))}
        due = set(connection.scalars(select(graphed.c.collection_id).where(AGAIN, graphed.c.next_at <= now).distinct()))
    return [
        row
        for row in rows
        if not (row.id in known and known[row.id].paused) and (row.id in due or row.id not in known or known[row.id].seen != mark(row, extractor))
    ]


def form(db: Database, row: CollectionRow, extractor: str, *, most_chunks: int = MOST_CHUNKS) -> list[Issue]:
    """The next batch of a collection, where there is room for one. The last one of a look is empty, or notes how far the look went."""
    with db.write() as connection:
        now = db.now(connection)
        mine = and_(batches.c.collection_id == row.id, batches.c.stages == Stage.GRAPH.value)
        opened = int(connection.scalar(select(func.count()).select_from(batches).where(OPEN, mine)) or 0)
        _give_back(connection, row.id, now)
        if opened >= WINDOW:
            return []
        found = _pick(connection, row.id, extractor, now)
        picked = _fill(found, most_chunks)
        if not picked and opened:
            return []
        chunks = sum(one.live_chunks for one in picked)
        issue = new_batch(connection, row.tenant, row.id, (Stage.GRAPH,), Lane.BULK, size=len(picked), chunks=chunks, now=now)
        if not picked:
            connection.execute(update(batches).where(batches.c.id == issue.batch_id).values(members=mark(row, extractor)))
        upsert(connection, graphed, [_queued(one, row.id, extractor, issue.batch_id, now) for one in picked])
    return [issue]


def _give_back(connection: Connection, collection_id: str, now: float) -> None:
    """Documents of batches that are no longer open: whoever had them died, or lost its lease."""
    opened = select(batches.c.id).where(OPEN, batches.c.stages == Stage.GRAPH.value)
    lost = and_(graphed.c.collection_id == collection_id, graphed.c.batch_id.is_not(None), graphed.c.batch_id.not_in(opened))
    dead = graphed.c.lost + 1 >= POISON_AFTER
    detail = f"the graph stage broke {POISON_AFTER} times on this document alone"
    connection.execute(
        update(graphed).where(lost, dead).values(status="dead", batch_id=None, error_code="poison", error_detail=detail, updated_at=now)
    )
    connection.execute(update(graphed).where(lost).values(status="retry", batch_id=None, lost=graphed.c.lost + 1, next_at=now, updated_at=now))


def _pick(connection: Connection, collection_id: str, extractor: str, now: float) -> list[Any]:
    stale = or_(graphed.c.version != documents.c.live_version, graphed.c.extractor != extractor)
    wanted: ColumnElement[bool] = or_(
        graphed.c.document_id.is_(None),
        and_(stale, graphed.c.status != "queued"),
        and_(AGAIN, graphed.c.next_at <= now),
    )
    before = graphed.c.version.label("before")
    rows = connection.execute(
        select(documents.c.id, documents.c.live_version, documents.c.live_chunks, graphed.c.attempts, graphed.c.lost, before)
        .outerjoin(graphed, graphed.c.document_id == documents.c.id)
        .where(documents.c.collection_id == collection_id, ANSWERS, wanted)
        .order_by(documents.c.id)
        .limit(MOST_DOCUMENTS)
    )
    return list(rows)


def _fill(found: Sequence[Any], most_chunks: int) -> list[Any]:
    """What fits into one batch; who was in a lost one goes alone, so that the culprit is found."""
    picked: list[Any] = []
    chunks = 0
    for row in found:
        if row.lost and row.before == row.live_version:
            return picked or [row]
        if picked and chunks + row.live_chunks > most_chunks:
            break
        picked.append(row)
        chunks += row.live_chunks
    return picked


def _queued(row: Any, collection_id: str, extractor: str, batch_id: int, now: float) -> dict[str, object]:
    same = row.before == row.live_version
    return {
        "document_id": row.id,
        "collection_id": collection_id,
        "version": row.live_version,
        "extractor": extractor,
        "status": "queued",
        "batch_id": batch_id,
        "attempts": row.attempts if same else 0,
        "lost": row.lost if same else 0,
        "next_at": 0.0,
        "error_code": "",
        "error_detail": "",
        "updated_at": now,
    }


def claim(db: Database, batch_id: int, token: int, owner: str, *, lease_s: float, deadline_s: float) -> Claimed | None:
    """Lease a batch, or None when the message is stale or doubled."""
    with db.write() as connection:
        now = db.now(connection)
        row = connection.execute(
            update(batches)
            .where(batches.c.id == batch_id, batches.c.token == token, batches.c.status == "queued")
            .values(status="leased", owner=owner, lease_until=now + lease_s, deadline=now + deadline_s)
            .returning(batches.c.collection_id)
        ).first()
        if row is None:
            return None
        held = connection.execute(select(collections).where(collections.c.id == row.collection_id, collections.c.status == "live")).first()
        if held is None:
            connection.execute(update(batches).where(batches.c.id == batch_id).values(status="done", finished_at=now))
            return None
        found = connection.execute(
            select(graphed.c.document_id, graphed.c.version, graphed.c.attempts, documents.c.key, documents.c.title)
            .join(documents, documents.c.id == graphed.c.document_id)
            .where(graphed.c.batch_id == batch_id, ANSWERS, documents.c.live_version == graphed.c.version)
            .order_by(graphed.c.document_id)
        ).all()
    batch = Batch(batch_id, token, owner, Lane.BULK, (Stage.GRAPH,), collection_row(held), ())
    return Claimed(batch, tuple(Wanted(one.document_id, one.version, one.key, one.title, one.attempts) for one in found))


def commit(db: Database, claimed: Claimed, stopped: Sequence[Stopped], seconds: float) -> bool:
    """Write what a batch came to; False when the lease was lost: then nothing was written, and the graph has lost nothing either."""
    batch = claimed.batch
    with db.write() as connection:
        now = db.now(connection)
        row = connection.execute(
            update(batches)
            .where(batches.c.id == batch.id, batches.c.token == batch.token, batches.c.status == "leased")
            .values(status="done", finished_at=now, seconds=seconds)
            .returning(batches.c.members)
        ).first()
        if row is None:
            return False
        for one in stopped:
            final = {"status": "dead"} if one.delay_s is None else {"status": "retry", "next_at": now + one.delay_s}
            told = {"error_code": one.code, "error_detail": one.detail, "attempts": graphed.c.attempts + int(one.costs_attempt)}
            connection.execute(
                update(graphed)
                .where(graphed.c.document_id == one.document_id, graphed.c.batch_id == batch.id)
                .values(batch_id=None, updated_at=now, **final, **told)
            )
        did = [one.document_id for one in claimed.documents]
        rest = graphed.c.batch_id == batch.id
        connection.execute(
            update(graphed)
            .where(rest, graphed.c.document_id.in_(did))
            .values(status="done", batch_id=None, attempts=0, lost=0, error_code="", error_detail="", updated_at=now)
        )
        # What was changed, hidden or deleted meanwhile: looked at again, if it answers.
        connection.execute(delete(graphed).where(rest))
        if row.members:
            upsert(connection, graphs, [{"collection_id": batch.collection.id, "seen": row.members}])
    return True


def pause(db: Database, collection_id: str, *, paused: bool) -> None:
    """Form no more batches of a collection's graph, or form them again."""
    with db.write() as connection:
        upsert(connection, graphs, [{"collection_id": collection_id, "paused": int(paused)}])


def again(db: Database, collection_id: str, *, everything: bool = False) -> int:
    """Look through the collection anew: what failed for good is tried again, and with `everything` all is extracted again. Returns how many."""
    with db.write() as connection:
        which = graphed.c.collection_id == collection_id
        gone = connection.execute(delete(graphed).where(which, graphed.c.status != "queued" if everything else graphed.c.status == "dead"))
        upsert(connection, graphs, [{"collection_id": collection_id, "seen": ""}])
    return gone.rowcount


def forget(connection: Connection, which: ColumnElement[bool]) -> None:
    """Rows of documents or of a collection that go."""
    connection.execute(delete(graphed).where(which))


def progress(db: Database, row: CollectionRow, extractor: str) -> Progress:
    """Raises Unavailable."""
    with db.read() as connection:
        fresh = and_(graphed.c.version == documents.c.live_version, graphed.c.extractor == extractor)
        found = connection.execute(
            select(
                func.count(),
                func.count().filter(and_(fresh, graphed.c.status == "done")),
                func.count().filter(and_(fresh, graphed.c.status == "dead")),
            )
            .select_from(documents)
            .outerjoin(graphed, graphed.c.document_id == documents.c.id)
            .where(documents.c.collection_id == row.id, ANSWERS)
        ).one()
        held = connection.scalar(select(graphs.c.paused).where(graphs.c.collection_id == row.id))
    total, done, failed = (int(number) for number in found)
    return Progress(total, done, total - done - failed, failed, bool(held))


def failures(db: Database, collection_id: str, *, limit: int = 100) -> list[tuple[str, str, str, str]]:
    """(document id, key, code, detail) of documents that are not in the graph for good, or wait to be tried again."""
    with db.read() as connection:
        rows = connection.execute(
            select(graphed.c.document_id, documents.c.key, graphed.c.error_code, graphed.c.error_detail)
            .join(documents, documents.c.id == graphed.c.document_id)
            .where(graphed.c.collection_id == collection_id, graphed.c.error_code != "")
            .order_by(graphed.c.document_id)
            .limit(limit)
        ).all()
    return [(row[0], row[1], row[2], row[3]) for row in rows]
