"""Bringing the ledger's rows back into a state that work can go on from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from pipeline.contracts import Lane, Stage
from workers import queues
from workers.ledger import balance
from workers.ledger.engine import Database, upsert
from workers.ledger.schema import artifact_refs, documents, run_items, runs
from workers.ledger.work import CollectionRow, Ref

SLICE = 500
AT_REST = ("done", "dead", "skipped", "cancelled")
COMMON: Mapping[str, object] = {"status": "ready", "batch_id": None, "next_at": 0.0, "attempts": 0, "waits": 0, "lost": 0, "waiting_since": None}


@dataclass(frozen=True, slots=True)
class Anew:
    """A document whose version that answers is made again, as a newer one."""

    document_id: str
    stage: Stage
    """Where it begins: what earlier stages made is used as it is."""
    above: int = 0
    """The version that the store has; the new one is higher."""


def forget_lost(db: Database, lost: Sequence[Ref]) -> None:
    """Drop references to outputs that cannot be read, whoever's they are: nobody may be pointed at them again."""
    with db.write() as connection:
        for pack, start in sorted({(ref.pack, ref.start) for ref in lost}):
            connection.execute(delete(artifact_refs).where(artifact_refs.c.pack == pack, artifact_refs.c.start == start))


def begin_again(db: Database, row: CollectionRow, anew: Sequence[Anew], stuck: Collection[str]) -> int | None:
    """One run for documents that are made again, and for those that are stuck and go on where they stood; None when there is nothing to do.

    What the store shows of them goes on answering until the newer version takes its place. Called twice, the second call finds them at work.
    """
    if not anew and not stuck:
        return None
    with db.write() as connection:
        now = db.now(connection)
        wanted = {one.document_id: one for one in anew}
        ids = sorted(wanted.keys() | set(stuck))
        found: list[Row[*tuple[Any, ...]]] = []
        for start in range(0, len(ids), SLICE):
            query = select(documents).where(documents.c.id.in_(ids[start : start + SLICE]), documents.c.collection_id == row.id)
            found += connection.execute(query.with_for_update()).all()
        free = [one for one in found if one.status in AT_REST and one.live_version is not None and one.id in wanted]
        held = [one for one in found if one.id in stuck and one.status in ("ready", "retry", "queued")]
        if not free and not held:
            return None
        run_id = _open(connection, row, now)
        items = [{"run_id": run_id, "document_id": one.id, "outcome": "pending"} for one in (*free, *held)]
        connection.execute(insert(run_items), items)
        for one in free:
            _anew(connection, one, wanted[one.id], run_id, now)
        go_on = {"status": "ready", "batch_id": None, "next_at": 0.0, "run_id": run_id, "updated_at": now}
        for start in range(0, len(held), SLICE):
            part = [one.id for one in held[start : start + SLICE]]
            connection.execute(update(documents).where(documents.c.id.in_(part)).values(**go_on))
    return run_id


def _open(connection: Connection, row: CollectionRow, now: float) -> int:
    of = {"tenant": row.tenant, "collection_id": row.id, "collection": row.name, "source": "audit --repair", "kind": "repair"}
    return balance.open_run(connection, now, **of, lane=Lane.BULK, scan="complete")


def _anew(connection: Connection, one: Row[*tuple[Any, ...]], how: Anew, run_id: int, now: float) -> None:
    version = max(int(one.version), how.above) + 1
    earlier = [stage.value for stage in queues.ORDER[: queues.ORDER.index(how.stage)]]
    # The bytes come along even where they are not asked for: later stages may fail and begin from them.
    kept = connection.execute(
        select(artifact_refs).where(
            artifact_refs.c.document_id == one.id,
            artifact_refs.c.version == one.live_version,
            artifact_refs.c.stage.in_([*earlier, Stage.LOAD.value]),
        )
    )
    upsert(connection, artifact_refs, [{**ref._mapping, "version": version, "created_at": now} for ref in kept])  # pyright: ignore[reportPrivateUsage]
    values: dict[str, object] = {"version": version, "stage": how.stage.value, "run_id": run_id, "updated_at": now, "chunks": one.live_chunks}
    # What failed after the version that answers gives way to it. Without a hash to compare with, load does not call it unchanged.
    values |= {"source_hash": one.live_hash, "fingerprint": one.live_fingerprint, "live_hash": "", "error_stage": "", "error_code": ""}
    values |= {"error_detail": "", "error_hint": "", "error_trace": ""}
    connection.execute(update(documents).where(documents.c.id == one.id).values(**dict(COMMON) | values))


def settle_runs(db: Database, run_ids: Sequence[int]) -> None:
    """End runs that wait for nobody, and give documents of ended runs the outcome that they have come to. Those still at work keep their run open."""
    with db.write() as connection:
        now = db.now(connection)
        for run_id in run_ids:
            rows = connection.execute(
                select(documents.c.id, documents.c.status, documents.c.live_chunks, documents.c.error_detail, run_items.c.document_id)
                .select_from(run_items)
                .outerjoin(documents, documents.c.id == run_items.c.document_id)
                .where(run_items.c.run_id == run_id, run_items.c.outcome == "pending")
            ).all()
            ended = [(row.document_id, *_outcome(row)) for row in rows if row.status not in ("ready", "retry", "queued")]
            if len(ended) < len(rows):
                # A run that was closed too early goes on: its documents are waited for.
                connection.execute(update(runs).where(runs.c.id == run_id).values(finished_at=None, status="running"))
            balance.settle(connection, ended, now)
            balance.finish(connection, [run_id], now)


def _outcome(row: Row[*tuple[Any, ...]]) -> tuple[str, int, str]:
    if row.status == "done":
        return "indexed", row.live_chunks, ""
    if row.status == "dead":
        return "failed", 0, row.error_detail
    if row.status == "skipped":
        return "skipped", 0, row.error_detail
    return "cancelled", 0, "it was found without an outcome"
