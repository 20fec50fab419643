"""Text in the ledger that may tell of a deleted document: details of runs, names in warnings, replies that are kept for a repeated request."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from sqlalchemy import Connection, case, delete, or_, select, update

from workers.ledger import balance, tallies
from workers.ledger.notes import source_notes
from workers.ledger.schema import TOLD, api_keys, batches, documents, idempotency, run_items, runs, sources, tenants, usage

DELETED = "it was deleted"
NO_WARNINGS = "[]"
SLICE = 500
_ID = re.compile(r"\b[0-9a-f]{32}\b")
_GONE = {"type": "about:blank", "title": "Gone", "status": 410, "code": "deleted", "detail": "the reply was deleted with a document that it named"}
REPLY = json.dumps({"content-type": "application/problem+json"}) + "\n" + json.dumps(_GONE)
"""A kept reply as `api.guard` stores them: a line of headers, then the body."""


def texts(connection: Connection, collection_id: str, ids: Sequence[str]) -> None:
    """What runs say of documents that are about to be scrubbed."""
    for start in range(0, len(ids), SLICE):
        part = ids[start : start + SLICE]
        connection.execute(update(run_items).where(run_items.c.document_id.in_(part), TOLD, run_items.c.detail != DELETED).values(detail=""))
    told = connection.execute(
        select(runs.c.id, runs.c.warnings, runs.c.source).where(
            runs.c.collection_id == collection_id, or_(runs.c.warnings != NO_WARNINGS, runs.c.source != "")
        )
    ).all()
    if not told:
        return
    names = _names(connection, ids)
    for run in told:
        warnings = [line for line in json.loads(run.warnings) if not any(name in line for name in names)]
        source = "" if any(name in run.source for name in names) else run.source
        if source != run.source or len(warnings) != len(json.loads(run.warnings)):
            connection.execute(update(runs).where(runs.c.id == run.id).values(source=source, warnings=json.dumps(warnings, ensure_ascii=False)))


def _names(connection: Connection, ids: Sequence[str]) -> set[str]:
    """Everything by which people call these documents."""
    found: set[str] = set()
    for start in range(0, len(ids), SLICE):
        columns = (documents.c.key, documents.c.title, documents.c.url, documents.c.path, documents.c.member)
        for row in connection.execute(select(*columns).where(documents.c.id.in_(ids[start : start + SLICE]))):
            found.update((*row, PurePosixPath(str(row.path)).name))
    # A name of a letter or two would take half of all warnings with it.
    return {name for name in found if len(name) > 2}


def replies(connection: Connection, ids: frozenset[str]) -> None:
    """Replies that are kept for a repeated request and name one of these documents become a word that they are gone."""
    where = (idempotency.c.principal, idempotency.c.route, idempotency.c.key)
    for row in connection.execute(select(*where, idempotency.c.body).where(idempotency.c.body.is_not(None))).all():
        if not ids.isdisjoint(_ID.findall(str(row.body))):
            same = (where[0] == row.principal, where[1] == row.route, where[2] == row.key)
            connection.execute(update(idempotency).where(*same).values(status=410, body=REPLY))


def collection(connection: Connection, collection_id: str) -> None:
    """The same for all documents of a collection: its runs keep their numbers only."""
    mine = select(documents.c.id).where(documents.c.collection_id == collection_id)
    connection.execute(update(run_items).where(run_items.c.document_id.in_(mine), TOLD, run_items.c.detail != DELETED).values(detail=""))
    connection.execute(update(runs).where(runs.c.collection_id == collection_id).values(warnings=NO_WARNINGS, source=""))
    if connection.scalar(select(idempotency.c.key).where(idempotency.c.body.is_not(None)).limit(1)) is not None:
        replies(connection, frozenset(str(name) for name in connection.scalars(mine)))


def end_runs(connection: Connection, collection_ids: Sequence[str], now: float) -> None:
    """Runs of a collection that goes are cancelled: what they waited for is gone."""
    mine = (runs.c.collection_id.in_(collection_ids), runs.c.finished_at.is_(None))
    found = list(connection.scalars(select(runs.c.id).where(*mine)))
    connection.execute(
        update(run_items).where(run_items.c.run_id.in_(found), run_items.c.outcome == "pending").values(outcome="cancelled", detail=DELETED)
    )
    scan = case((runs.c.scan == "open", "complete"), else_=runs.c.scan)
    connection.execute(update(runs).where(*mine).values(status="cancelling", scan=scan))
    balance.finish(connection, found, now)


def tenant(connection: Connection, name: str) -> None:
    """Everything that the ledger still holds of a tenant whose collections are gone. What closed batches counted stays in the counters."""
    mine = select(runs.c.id).where(runs.c.tenant == name)
    connection.execute(delete(run_items).where(run_items.c.run_id.in_(mine)))
    owners = [f"run:{number}" for number in connection.scalars(mine)]
    for start in range(0, len(owners), SLICE):
        connection.execute(delete(usage).where(usage.c.owner.in_(owners[start : start + SLICE])))
    tallies.add(connection, tallies.closed(connection, batches.c.tenant == name))
    theirs = select(sources.c.id).where(sources.c.tenant == name)
    connection.execute(delete(source_notes).where(source_notes.c.source_id.in_(theirs)))
    for table in (runs, batches, api_keys, sources):
        connection.execute(delete(table).where(table.c.tenant == name))
    # The rows stay without the name, so that versions go on rising.
    connection.execute(update(documents).where(documents.c.tenant == name, documents.c.status == "deleted").values(tenant="", source_id=""))
    connection.execute(delete(idempotency).where(idempotency.c.principal.startswith(f"{name}/", autoescape=True)))
    connection.execute(delete(tenants).where(tenants.c.name == name))
