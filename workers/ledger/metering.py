"""Sums for metrics over rows that stay: failed attempts and what models were asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import func, select

from pipeline.contracts import Usage
from workers.ledger import browse, tallies
from workers.ledger.engine import Database
from workers.ledger.schema import artifact_refs, attempts, collections, documents, sources, usage
from workers.ledger.tallies import Tallies


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums since the ledger began."""

    tallies: Tallies
    attempts: Mapping[tuple[str, ...], float]
    """(stage, outcome, code)."""
    tokens: Mapping[tuple[str, ...], float]
    """(part, direction, model); what was not reported is not counted."""
    requests: Mapping[tuple[str, ...], float]
    """(part, model)."""
    retries: Mapping[tuple[str, ...], float]


def served_since(db: Database, moment: float | None) -> bool:
    """True when a model has answered for some document since then."""
    if moment is None:
        return False
    newest = select(usage.c.at).where(usage.c.part == "build").order_by(usage.c.id.desc()).limit(1)
    with db.read() as connection:
        at = connection.scalar(newest)
    return at is not None and at > moment


def totals(db: Database) -> Totals:
    """Raises Unavailable."""
    tokens: dict[tuple[str, ...], float] = {}
    requests: dict[tuple[str, ...], float] = {}
    retries: dict[tuple[str, ...], float] = {}
    with db.read() as connection:
        counted = tallies.total(connection)
        rows = connection.execute(
            select(attempts.c.stage, attempts.c.outcome, attempts.c.code, func.count()).group_by(
                attempts.c.stage, attempts.c.outcome, attempts.c.code
            )
        ).all()
        spending = connection.execute(
            select(
                usage.c.part,
                usage.c.model,
                func.sum(usage.c.input_tokens),
                func.sum(usage.c.output_tokens),
                func.sum(usage.c.requests),
                func.sum(usage.c.retries),
            ).group_by(usage.c.part, usage.c.model)
        ).all()
    for part, model, given, made, asked, again in spending:
        for direction, number in (("input", given), ("output", made)):
            if number is not None:
                tokens[part, direction, model] = float(number)
        requests[part, model], retries[part, model] = float(asked or 0), float(again or 0)
    return Totals(counted, {(stage, outcome, code): float(number) for stage, outcome, code, number in rows}, tokens, requests, retries)


def spent(db: Database, run_id: str) -> dict[str, Usage]:
    """Model → what a run asked of it. Raises Unavailable, NotFound for what is no run's name."""
    query = (
        select(usage.c.model, func.sum(usage.c.input_tokens), func.sum(usage.c.output_tokens), func.sum(usage.c.requests))
        .where(usage.c.owner == f"run:{browse.run_number(run_id)}")
        .group_by(usage.c.model)
    )
    with db.read() as connection:
        rows = connection.execute(query).all()
    return {model: Usage(given and int(given), made and int(made), requests=int(asked or 0)) for model, given, made, asked in rows}


def lateness(db: Database) -> tuple[float, int]:
    """(seconds that the most overdue schedule is late, schedules that are due). Raises Unavailable."""
    with db.read() as connection:
        now = db.now(connection)
        row = connection.execute(
            select(func.min(sources.c.next_at), func.count()).where(sources.c.next_at.is_not(None), sources.c.next_at <= now, sources.c.paused == 0)
        ).one()
    return (0.0 if row[0] is None else now - float(row[0])), int(row[1])


def by_collection(db: Database) -> dict[tuple[str, ...], float]:
    """(tenant, collection) → documents that answer. Walks the documents: only for who asks for it. Raises Unavailable."""
    with db.read() as connection:
        rows = connection.execute(
            select(collections.c.tenant, collections.c.name, func.count(documents.c.id))
            .select_from(collections.outerjoin(documents, (documents.c.collection_id == collections.c.id) & documents.c.live_version.is_not(None)))
            .group_by(collections.c.tenant, collections.c.name)
        ).all()
    return {(tenant, name): float(number) for tenant, name, number in rows}


def weigh(db: Database) -> float:
    """Bytes of the packs that the ledger names, noted for the metrics. Walks all references: for now and then. Raises Unavailable."""
    with db.read() as connection:
        ends = select(func.max(artifact_refs.c.start + artifact_refs.c.length).label("bytes")).group_by(artifact_refs.c.pack).subquery()
        total = float(connection.scalar(select(func.sum(ends.c.bytes))) or 0)
    with db.write() as connection:
        tallies.put(connection, "artifact_bytes", total)
    return total
