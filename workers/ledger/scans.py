"""A listing going in, slice by slice: what is new, what is unchanged, what a person deleted here, and how far the scan has come."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection, case, func, select, update

from pipeline.contracts import Lane, Stage
from workers.ledger import balance, refs
from workers.ledger.batches import write_refs
from workers.ledger.engine import Database, upsert
from workers.ledger.intake import Known, Submission, row_of, write_rows
from workers.ledger.schema import OF_SOURCE, documents, run_items, runs, sources
from workers.ledger.sources import Claim, Progress, renew
from workers.ledger.work import Ref

VALIDATORS = ("etag", "last_modified")
"""Facts of the last fetch that the next one may want for a conditional request."""
SIZE = 500_000
"""Bytes that an item is taken for until it is fetched: some eight travel together, so that one slow download does not hold up many."""
NOTES = 100


@dataclass(frozen=True, slots=True)
class Found:
    """One listed item, ready for the ledger."""

    submission: Submission
    revision: str
    scope: str
    kept: Ref | None = None
    """Its bytes, where the listing gave them; the version is filled in here."""


@dataclass(frozen=True, slots=True)
class Before:
    """What the ledger knew of an item."""

    known: Known
    source_id: str
    revision: str
    seen_run: int | None
    error_detail: str
    meta: str


def take(db: Database, claim: Claim, found: Sequence[Found], gone: Mapping[str, str], state: Progress, *, lease_s: float) -> bool:
    """Write one slice and the progress that includes it, in one transaction; False when the claim was lost, then nothing was written.

    Items may repeat within a run: they count once, and are begun again only when their change mark differs. `gone` is document id → evidence.
    """
    items = list({item.submission.document_id: item for item in found}.values())
    ids = [item.submission.document_id for item in items]
    with db.write() as connection:
        now = db.now(connection)
        if not renew(connection, claim, now + lease_s):
            return False
        before = _before(connection, ids)
        kept = refs.latest(connection, Stage.LOAD, [key for key, old in before.items() if old.revision])
        slice_ = _Slice(claim, state, now)
        for item in items:
            slice_.judge(item, before.get(item.submission.document_id), kept.get(item.submission.document_id))
        upsert(connection, run_items, slice_.outcomes)
        write_rows(connection, slice_.new, slice_.again)
        write_refs(connection, slice_.refs, now)
        _touch(connection, ids, state.run)
        _gone(connection, claim.source.id, gone)
        connection.execute(update(sources).where(sources.c.id == claim.source.id).values(checkpoint=state.dump()))
    return True


def _before(connection: Connection, ids: Sequence[str]) -> dict[str, Before]:
    columns = (documents.c.version, documents.c.live_version, documents.c.live_hash, documents.c.live_fingerprint, documents.c.source_hash)
    columns += (documents.c.fingerprint, documents.c.status, documents.c.live_chunks)
    more = (documents.c.source_id, documents.c.revision_mark, documents.c.seen_run, documents.c.error_detail, documents.c.meta)
    rows = connection.execute(select(documents.c.id, *columns, *more).where(documents.c.id.in_(list(ids)))).all()
    return {row[0]: Before(Known(*row[1:9]), *row[9:]) for row in rows}


class _Slice:
    """Sorts items into outcomes and rows."""

    def __init__(self, claim: Claim, state: Progress, now: float) -> None:
        self._claim, self._state, self._now = claim, state, now
        self.outcomes: list[dict[str, object]] = []
        self.new: list[dict[str, object]] = []
        self.again: list[dict[str, object]] = []
        self.refs: list[Ref] = []

    def judge(self, item: Found, old: Before | None, kept: Ref | None) -> None:
        state = self._state
        repeated = old is not None and old.seen_run == state.run
        if not repeated:
            state.open[item.scope] = state.open.get(item.scope, 0) + 1
        elif old is not None and item.revision == old.revision:
            return
        if old is None:
            self._begin(item, None, item.kept)
            return
        settled = self._settled(item, old)
        if settled is None:
            self._begin(item, old, item.kept or (kept if self._has_bytes(item, old, kept) else None))
        else:
            self._note(item, *settled)

    def _settled(self, item: Found, old: Before) -> tuple[str, int, str] | None:
        """(outcome, chunks, detail) of an item that needs no work."""
        known, submission = old.known, item.submission
        if submission.error is not None:
            return ("failed", 0, submission.error[1])
        if known.status in ("deleting", "deleted"):
            if old.source_id:
                return ("skipped", 0, "it was deleted here; `dujiang sources update --forget-deleted` lets it come back")
            return None
        if self._state.full or not item.revision or item.revision != old.revision or submission.fingerprint != known.fingerprint:
            return None
        if known.status in ("ready", "queued", "retry"):
            return ("pending", 0, "")
        if known.status == "done" and known.live_version is not None and known.live_fingerprint == known.fingerprint:
            return ("unchanged", known.live_chunks, "")
        if known.status in ("dead", "skipped"):
            return ("failed" if known.status == "dead" else "skipped", 0, old.error_detail)
        return None

    def _has_bytes(self, item: Found, old: Before, kept: Ref | None) -> bool:
        """Whether the kept bytes are what the source would give for the listed revision."""
        if kept is None or self._state.full or not item.revision or item.revision != old.revision:
            return False
        return old.known.status in ("done", "hidden") or kept.version == old.known.version

    def _note(self, item: Found, outcome: str, chunks: int, detail: str) -> None:
        document_id = item.submission.document_id
        self.outcomes.append({"run_id": self._state.run, "document_id": document_id, "outcome": outcome, "chunks": chunks, "detail": detail})

    def _begin(self, item: Found, old: Before | None, kept: Ref | None) -> None:
        submission = item.submission
        if old is not None and old.known.live_version is not None:
            remembered: dict[str, str] = {name: value for name, value in json.loads(old.meta).items() if name in VALIDATORS}
            submission = replace(submission, metadata={**remembered, **submission.metadata})
        claim = self._claim
        row = row_of(submission, old.known if old is not None else None, claim.collection, self._state.run, Lane.BULK, self._now)
        row |= {"source_id": claim.source.id, "revision_mark": item.revision, "seen_run": self._state.run, "absence": ""}
        outcome, detail = "pending", ""
        if submission.error is not None:
            code, detail, hint, _ = submission.error
            outcome = "failed"
            row |= {"status": "dead", "error_stage": Stage.LOAD.value, "error_code": code, "error_detail": detail, "error_hint": hint}
        (self.new if old is None else self.again).append(row)
        self._note(item, outcome, 0, detail)
        if kept is not None:
            self.refs.append(replace(kept, version=int(str(row["version"]))))


def _touch(connection: Connection, ids: Sequence[str], run_id: int) -> None:
    if ids:
        connection.execute(update(documents).where(documents.c.id.in_(ids)).values(seen_run=run_id, absence=""))


def _gone(connection: Connection, source_id: str, gone: Mapping[str, str]) -> None:
    for evidence in set(gone.values()):
        mark_absent(connection, source_id, [key for key, value in gone.items() if value == evidence], evidence)


def mark_absent(connection: Connection, source_id: str, ids: Sequence[str], evidence: str) -> None:
    """Note why documents are to be deleted."""
    for start in range(0, len(ids), 500):
        connection.execute(
            update(documents)
            .where(
                documents.c.id.in_(ids[start : start + 500]), documents.c.source_id == source_id, documents.c.status.not_in(("deleting", "deleted"))
            )
            .values(absence=evidence)
        )


def marks(db: Database, ids: Sequence[str]) -> dict[str, str]:
    """Document id → change mark of its last listing."""
    with db.read() as connection:
        rows = connection.execute(select(documents.c.id, documents.c.revision_mark).where(documents.c.id.in_(list(ids)))).all()
    return {row.id: row.revision_mark for row in rows}


def unseen(db: Database, claim: Claim) -> list[tuple[str, str, int | None, str]]:
    """(id, key, last run that listed it, evidence so far) of documents that this run's listing did not hold."""
    with db.read() as connection:
        rows = connection.execute(
            select(documents.c.id, documents.c.key, documents.c.seen_run, documents.c.absence).where(
                documents.c.source_id == claim.source.id,
                OF_SOURCE,
                func.coalesce(documents.c.seen_run, 0) != claim.run_id,
                documents.c.status.not_in(("deleting", "deleted")),
                documents.c.shadow_of == "",
            )
        ).all()
    return [(row.id, row.key, row.seen_run, row.absence) for row in rows]


def seen(db: Database, claim: Claim, ids: Iterable[str], *, detail: str = "") -> None:
    """Note documents that exist although no listing gives their bytes; with a `detail` they are in the run's balance as skipped."""
    wanted = list(ids)
    with db.write() as connection:
        _touch(connection, wanted, claim.run_id)
        if detail:
            there = connection.scalars(select(documents.c.id).where(documents.c.id.in_(wanted)))
            rows = [{"run_id": claim.run_id, "document_id": key, "outcome": "skipped", "chunks": 0, "detail": detail} for key in there]
            upsert(connection, run_items, rows)


def mark_missing(db: Database, claim: Claim, gone: Mapping[str, str]) -> None:
    """Note the evidence that the end of a listing brought."""
    with db.write() as connection:
        _gone(connection, claim.source.id, gone)


def close(db: Database, claim: Claim, state: Progress, *, finished: bool, error: str = "", held: int | None = None) -> bool:
    """The listing is over: write its notes into the run and hand the claim back; False when it was lost.

    `finished` False makes the run a failed one: nothing could be listed at all.
    """
    shown = state.notes[:NOTES]
    if len(state.notes) > NOTES:
        shown.append(f"and {len(state.notes) - NOTES} more")
    with db.write() as connection:
        now = db.now(connection)
        if not renew(connection, claim, now):
            return False
        kept = replace(state, open={}, ended=0, whole=True, notes=[], tries=0)
        values: dict[str, object] = {"checkpoint": kept.dump(), "claimed_by": "", "claimed_until": None, "last_error": error}
        if held is not None:
            values["held"] = held
        connection.execute(update(sources).where(sources.c.id == claim.source.id).values(**values))
        connection.execute(
            update(runs)
            .where(runs.c.id == claim.run_id)
            .values(
                scan=case((runs.c.status == "cancelling", "complete"), else_="complete" if finished else "incomplete"),
                warnings=json.dumps(shown, ensure_ascii=False),
            )
        )
        balance.finish(connection, [claim.run_id], now)
    return True
