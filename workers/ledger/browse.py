"""What people are shown: every number is a COUNT over rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from sqlalchemy import Connection, Row, Select, and_, case, func, select

from pipeline.contracts import Lane, Stage
from pipeline.errors import NotFound
from workers import queues
from workers.ledger import position
from workers.ledger.catalog import moment
from workers.ledger.engine import Database
from workers.ledger.schema import attempts, batches, documents, run_items, runs, sources, usage
from workers.views import AttemptView, DocumentView, FailureView, ItemView, Page, RunView, UsageView

T = TypeVar("T")
RUN = "run_"
LISTED = Stage.LOAD.value
"""Where a document ended that no stage ever saw."""


def run_name(number: int) -> str:
    """``run_42``."""
    return f"{RUN}{number}"


def run_number(name: str) -> int:
    """Raises NotFound when it is no run id."""
    digits = name.removeprefix(RUN)
    if not digits.isdigit() or len(digits) > 15:
        raise NotFound(f"there is no run {name!r}", hint="`dujiang runs list` shows those there are.", code="run_not_found")
    return int(digits)


def run(db: Database, name: str, *, tenant: str | None = None, failures: int = 100) -> RunView:
    """Raises NotFound."""
    with db.read() as connection:
        row = connection.execute(select(runs).where(runs.c.id == run_number(name))).first()
        if row is None or (tenant is not None and row.tenant != tenant):
            raise NotFound(f"there is no run {name!r}", hint="`dujiang runs list` shows those there are.", code="run_not_found")
        return _run(connection, row, db.now(connection), failures)


def run_list(db: Database, *, tenant: str, collection: str, limit: int, after: str, source: str = "") -> Page[RunView]:
    """Newest first."""
    query = select(runs).where(runs.c.tenant == tenant).order_by(runs.c.id.desc()).limit(limit + 1)
    if collection:
        query = query.where(runs.c.collection == collection)
    if source:
        named = select(sources.c.id).where(sources.c.tenant == tenant, sources.c.name == source)
        query = query.where(runs.c.source_id != "", runs.c.source_id.in_(named))
    if after:
        query = query.where(runs.c.id < run_number(after))
    with db.read() as connection:
        rows = connection.execute(query).all()
        views = tuple(_run(connection, row, db.now(connection), 0) for row in rows[:limit])
    return _page(views, [view.run_id for view in views], len(rows) > limit)


def _page(views: Sequence[T], ids: Sequence[str], more: bool) -> Page[T]:
    return Page(tuple(views), ids[0] if ids else None, ids[-1] if ids else None, more)


def _run(connection: Connection, row: Row[*tuple[Any, ...]], now: float, failures: int) -> RunView:
    counts, balance, chunks = _balance(connection, row.id)
    spent, calls = _usage(connection, f"run:{row.id}")
    failed: tuple[FailureView, ...] = ()
    if failures and counts.get("failed"):
        failed = tuple(_failed(connection, row.id, failures))
    ended = row.finished_at
    return RunView(
        run_id=run_name(row.id),
        collection=row.collection,
        status="running" if row.status == "cancelling" else row.status,
        discovered=sum(counts.values()),
        indexed=counts.get("indexed", 0),
        unchanged=counts.get("unchanged", 0),
        skipped=counts.get("skipped", 0),
        failed=counts.get("failed", 0),
        cancelled=counts.get("cancelled", 0),
        deleted=row.deleted,
        chunks=chunks,
        started_at=moment(row.started_at),
        finished_at=moment(ended) if ended else None,
        duration_s=round((ended or now) - row.started_at, 3),
        usage={"build": spent},
        model_calls=calls,
        failures=failed,
        lane=row.lane,
        source=row.source,
        stages=_positions(connection, row.id, counts) if not ended else {},
        warnings=tuple(json.loads(row.warnings)),
        ahead=0 if ended else position.ahead(connection, row.id, Lane(row.lane)),
        balance=balance,
    )


def _balance(connection: Connection, run_id: int) -> tuple[dict[str, int], dict[str, dict[str, int]], int]:
    """Outcome → documents, stage → outcome → documents of those that ended, and chunks."""
    counts: dict[str, int] = {}
    stages: dict[str, dict[str, int]] = {}
    chunks = 0
    columns = (run_items.c.stage, run_items.c.outcome)
    for stage, outcome, number, size in connection.execute(
        select(*columns, func.count(), func.sum(run_items.c.chunks)).where(run_items.c.run_id == run_id).group_by(*columns)
    ):
        counts[outcome] = counts.get(outcome, 0) + number
        chunks += int(size or 0)
        if outcome != "pending":
            of_stage = stages.setdefault(stage or LISTED, {})
            of_stage[outcome] = of_stage.get(outcome, 0) + number
    return counts, {stage.value: stages[stage.value] for stage in queues.ORDER if stage.value in stages}, chunks


def _positions(connection: Connection, run_id: int, counts: Mapping[str, int]) -> dict[str, int]:
    found = {stage.value: 0 for stage in queues.ORDER}
    if counts.get("pending"):
        rows = connection.execute(
            select(documents.c.stage, func.count())
            .where(documents.c.run_id == run_id, documents.c.status.in_(("ready", "queued", "retry")))
            .group_by(documents.c.stage)
        )
        for stage, number in rows:
            found[stage] = number
    return found | {"done": sum(number for outcome, number in counts.items() if outcome != "pending")}


def _usage(connection: Connection, owner: str) -> tuple[UsageView, dict[str, int]]:
    row = connection.execute(
        select(func.sum(usage.c.input_tokens), func.sum(usage.c.output_tokens), func.sum(usage.c.requests), func.sum(usage.c.retries)).where(
            usage.c.owner == owner
        )
    ).one()
    prompt, completion, requests, retries = (int(value) if value is not None else None for value in row)
    total = None if prompt is None else prompt + (completion or 0)
    return UsageView(prompt, completion, total, requests or 0, retries or 0), {"embed": requests or 0, "llm": 0}


def items(db: Database, name: str, *, outcome: str, limit: int, after: str, stage: str = "") -> Page[ItemView]:
    """The list behind each number of a run; of documents that are under way, `stage` is where they are."""
    pending = run_items.c.outcome == "pending"
    where = case((pending, documents.c.stage), (run_items.c.stage == "", LISTED), else_=run_items.c.stage)
    query = (
        select(run_items.c.document_id, run_items.c.outcome, run_items.c.detail, documents.c.key, where.label("stage"))
        .outerjoin(documents, documents.c.id == run_items.c.document_id)
        .where(run_items.c.run_id == run_number(name), run_items.c.document_id > after)
        .order_by(run_items.c.document_id)
        .limit(limit + 1)
    )
    if outcome:
        query = query.where(run_items.c.outcome == outcome)
    if stage:
        query = query.where(where == stage)
    with db.read() as connection:
        rows = connection.execute(query).all()
    views = [ItemView(row.document_id, row.key or "", row.outcome, row.detail, row.stage or "") for row in rows[:limit]]
    return _page(views, [view.document_id for view in views], len(rows) > limit)


def _failures() -> Select[*tuple[Any, ...]]:
    return select(
        documents.c.id,
        documents.c.key,
        documents.c.error_stage,
        documents.c.error_code,
        documents.c.error_detail,
        documents.c.error_hint,
        documents.c.error_trace,
        documents.c.attempts,
        documents.c.updated_at,
        documents.c.run_id,
        runs.c.collection,
    ).join(runs, runs.c.id == documents.c.run_id)


def _failure(row: Row[*tuple[Any, ...]], *, trace: bool = False) -> FailureView:
    return FailureView(
        document_id=row.id,
        document=row.key,
        stage=row.error_stage,
        code=row.error_code,
        detail=row.error_detail,
        hint=row.error_hint,
        attempts=max(1, row.attempts),
        at=moment(row.updated_at),
        collection=row.collection,
        run_id=run_name(row.run_id),
        traceback=(row.error_trace or None) if trace else None,
    )


def _failed(connection: Connection, run_id: int, limit: int) -> Iterator[FailureView]:
    """What failed in a run, also where a later run took it up again."""
    mine = and_(attempts.c.document_id == documents.c.id, attempts.c.run_id == run_id)
    last = select(attempts.c.code).where(mine).order_by(attempts.c.id.desc()).limit(1).scalar_subquery()
    query = (
        _failures()
        .add_columns(run_items.c.stage.label("item_stage"), run_items.c.detail.label("item_detail"), last.label("item_code"))
        .join(run_items, run_items.c.document_id == documents.c.id)
        .where(run_items.c.run_id == run_id, run_items.c.outcome == "failed")
    )
    for row in connection.execute(query.order_by(documents.c.key).limit(limit)):
        view = _failure(row)
        # A listing may find a document still dead of an earlier run: then what stopped it there is the reason here, too.
        own = row.run_id == run_id or (row.run_id < run_id and row.item_detail == row.error_detail)
        if own and row.error_code:
            yield view
        else:
            told = {"stage": row.item_stage or LISTED, "code": row.item_code or "failed", "detail": row.item_detail}
            hint = f"{view.run_id} took it up again." if row.run_id > run_id else view.hint
            yield replace(view, **told, hint=hint, run_id=run_name(run_id))


def failures(db: Database, *, tenant: str, collection: str, run_id: str, code: str, limit: int, after: str, stage: str = "") -> Page[FailureView]:
    """Dead letters: a view on the ledger."""
    query = (
        _failures()
        .where(documents.c.status == "dead", documents.c.tenant == tenant, documents.c.id > after)
        .order_by(documents.c.id)
        .limit(limit + 1)
    )
    if collection:
        query = query.where(runs.c.collection == collection)
    if run_id:
        query = query.where(documents.c.run_id == run_number(run_id))
    if code:
        query = query.where(documents.c.error_code == code)
    if stage:
        query = query.where(documents.c.error_stage == stage)
    with db.read() as connection:
        rows = connection.execute(query).all()
    views = [_failure(row) for row in rows[:limit]]
    return _page(views, [view.document_id for view in views], len(rows) > limit)


def failure(db: Database, document_id: str, *, tenant: str) -> FailureView:
    """One dead letter with its traceback and every attempt. Raises NotFound."""
    with db.read() as connection:
        tried = connection.execute(select(attempts).where(attempts.c.document_id == document_id).order_by(attempts.c.id)).all()
        row = connection.execute(_failures().where(documents.c.id == document_id, documents.c.tenant == tenant, documents.c.status == "dead")).first()
    if row is None:
        raise NotFound(
            f"no failed document has the id {document_id!r}", hint="`dujiang failures list` shows those there are.", code="failure_not_found"
        )
    history = tuple(
        AttemptView(moment(one.at), run_name(one.run_id), one.stage, one.outcome, one.code, one.detail, one.worker, one.code_version) for one in tried
    )
    return replace(_failure(row, trace=True), history=history)


def _status() -> Select[*tuple[Any, ...]]:
    return select(documents, batches.c.status.label("batch_status")).outerjoin(batches, batches.c.id == documents.c.batch_id)


def _document(row: Row[*tuple[Any, ...]], collection: str) -> DocumentView:
    status = "leased" if row.status == "queued" and row.batch_status == "leased" else row.status
    stopped = None
    if row.error_code and row.status in ("dead", "retry"):
        stopped = FailureView(
            row.id,
            row.key,
            row.error_stage,
            row.error_code,
            row.error_detail,
            row.error_hint,
            max(1, row.attempts),
            moment(row.updated_at),
            collection,
            run_name(row.run_id),
        )
    return DocumentView(
        document_id=row.id,
        collection=collection,
        document=row.key,
        title=row.title,
        url=row.url,
        media_type=row.media_type,
        stage=row.stage,
        status=status,
        version=row.live_version,
        chunks=row.live_chunks,
        bytes=row.size,
        metadata=json.loads(row.meta),
        updated_at=moment(row.updated_at),
        failure=stopped,
    )


def document_list(db: Database, collection_id: str, collection: str, *, status: str, limit: int, after: str) -> Page[DocumentView]:
    """Documents by id, deleted ones left out."""
    query = _status().where(documents.c.collection_id == collection_id, documents.c.id > after).order_by(documents.c.id).limit(limit + 1)
    if status == "leased":
        query = query.where(batches.c.status == "leased")
    elif status:
        query = query.where(documents.c.status == status)
    else:
        query = query.where(documents.c.status != "deleted")
    with db.read() as connection:
        rows = connection.execute(query).all()
    views = [_document(row, collection) for row in rows[:limit]]
    return _page(views, [view.document_id for view in views], len(rows) > limit)


def document(db: Database, collection_id: str, collection: str, document_id: str) -> DocumentView:
    """Raises NotFound."""
    with db.read() as connection:
        row = connection.execute(
            _status().where(documents.c.collection_id == collection_id, documents.c.id == document_id, documents.c.status != "deleted")
        ).first()
    if row is None:
        raise NotFound(
            f"collection {collection!r} has no document {document_id!r}",
            hint="`dujiang documents list` shows those there are.",
            code="document_not_found",
        )
    return _document(row, collection)


def totals(db: Database, collection_id: str) -> tuple[int, int]:
    """(documents, chunks) that answer now."""
    with db.read() as connection:
        row = connection.execute(
            select(func.count(), func.sum(documents.c.live_chunks)).where(
                documents.c.collection_id == collection_id, documents.c.live_version.is_not(None)
            )
        ).one()
    return int(row[0]), int(row[1] or 0)


def live(db: Database, collection_id: str) -> dict[str, tuple[int, str]]:
    """Document id → (version that answers, key)."""
    with db.read() as connection:
        rows = connection.execute(
            select(documents.c.id, documents.c.live_version, documents.c.key).where(
                documents.c.collection_id == collection_id, documents.c.live_version.is_not(None)
            )
        )
        return {row.id: (row.live_version, row.key) for row in rows}
