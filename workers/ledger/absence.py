"""Documents that leave: what a source no longer has, and what nobody may see for now."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, and_, func, select, update

from workers.ledger import balance
from workers.ledger.engine import Database
from workers.ledger.schema import ABSENT, OF_SOURCE, collections, documents, runs, sources

FEW, SHARE = 20, 0.1
"""A disappearance of more than so many documents and more than that share of the source is held back until a person approves."""


def too_many(gone: int, total: int) -> bool:
    """True when so many of so many may not go without a person's word."""
    return gone > max(FEW, SHARE * total)


def _there() -> ColumnElement[bool]:
    return and_(documents.c.status.not_in(("deleting", "deleted")), documents.c.shadow_of == "")


def _leaving() -> ColumnElement[bool]:
    # A deletion that was begun and broken off is taken up again.
    return and_(ABSENT, documents.c.status != "deleted", documents.c.shadow_of == "")


def counts(db: Database, source_id: str) -> tuple[int, int]:
    """(documents of a source, those that are to be deleted)."""
    with db.read() as connection:
        total = connection.scalar(select(func.count()).select_from(documents).where(documents.c.source_id == source_id, OF_SOURCE, _there()))
        absent = connection.scalar(select(func.count()).select_from(documents).where(documents.c.source_id == source_id, OF_SOURCE, _leaving()))
    return int(total or 0), int(absent or 0)


def tally(db: Database, source_id: str) -> dict[str, int]:
    """Status → documents of a source; those that a person deleted here are "deleted"."""
    query = select(documents.c.status, func.count()).where(documents.c.source_id == source_id, OF_SOURCE).group_by(documents.c.status)
    with db.read() as connection:
        return {row[0]: row[1] for row in connection.execute(query)}


def absent(db: Database, source_id: str, *, limit: int, after: str = "") -> list[tuple[str, str, str, str]]:
    """(id, key, title, evidence) of documents that are to be deleted, by id."""
    with db.read() as connection:
        rows = connection.execute(
            select(documents.c.id, documents.c.key, documents.c.title, documents.c.absence)
            .where(documents.c.source_id == source_id, OF_SOURCE, documents.c.id > after, _leaving())
            .order_by(documents.c.id)
            .limit(limit)
        ).all()
    return [(row.id, row.key, row.title, row.absence) for row in rows]


def still(db: Database, ids: Sequence[str]) -> list[str]:
    """Those that are still to be deleted: a source may have listed one again meanwhile."""
    with db.read() as connection:
        return list(connection.scalars(select(documents.c.id).where(documents.c.id.in_(ids), _leaving())))


def waiting(db: Database) -> list[str]:
    """Sources with something to delete that no listing is about to judge, and no person."""
    listing = select(runs.c.id).where(runs.c.source_id == sources.c.id, runs.c.finished_at.is_(None), runs.c.scan == "open").correlate(sources)
    query = (
        select(documents.c.source_id)
        .join(sources, sources.c.id == documents.c.source_id)
        .where(_leaving(), sources.c.held == 0, sources.c.claimed_by == "", ~listing.exists())
        .distinct()
    )
    with db.read() as connection:
        return list(connection.scalars(query))


def removed(db: Database, source_id: str, ids: Sequence[str], run_id: int | None) -> None:
    """Source's documents were deleted: they may come back when it lists them again. The run tells how many there were."""
    with db.write() as connection:
        connection.execute(
            update(documents)
            .where(documents.c.id.in_(ids), documents.c.source_id == source_id, OF_SOURCE)
            .values(source_id="", absence="", revision_mark="")
        )
        if run_id is not None:
            connection.execute(update(runs).where(runs.c.id == run_id).values(deleted=runs.c.deleted + len(ids)))


def deleted_in(db: Database, run_id: int) -> int:
    """How many documents a run has deleted so far."""
    with db.read() as connection:
        return int(connection.scalar(select(runs.c.deleted).where(runs.c.id == run_id)) or 0)


def hold(db: Database, source_id: str, number: int) -> None:
    """Remember how many wait for a person's word."""
    with db.write() as connection:
        connection.execute(update(sources).where(sources.c.id == source_id).values(held=number))


def begin_hiding(db: Database, ids: Sequence[str], detail: str) -> list[str]:
    """Take documents from whoever works on them; gives those that were there and visible or under way."""
    with db.write() as connection:
        now = db.now(connection)
        known = list(
            connection.execute(
                select(documents.c.id, documents.c.status).where(documents.c.id.in_(ids), _there(), documents.c.status.not_in(("hidden", "hiding")))
            )
        )
        at_rest = [row.id for row in known if row.status == "done"]
        others = [row.id for row in known if row.status != "done"]
        values: dict[str, object] = {"status": "hiding", "batch_id": None, "version": documents.c.version + 1, "updated_at": now}
        connection.execute(update(documents).where(documents.c.id.in_(at_rest)).values(**values))
        # What was under way may not have been fetched: its change mark says nothing of the bytes that are kept.
        connection.execute(update(documents).where(documents.c.id.in_(others)).values(**values, revision_mark=""))
        found = at_rest + others
        balance.settle(connection, [(document_id, "skipped", 0, detail) for document_id in found], now)
    return found


def hidden(db: Database, collection_id: str, ids: Sequence[str]) -> None:
    """They are out of the index. The ledger keeps the rows and the artifacts, so that access restored costs no fetch and no model call."""
    with db.write() as connection:
        now = db.now(connection)
        connection.execute(
            update(documents)
            .where(documents.c.id.in_(ids), documents.c.status == "hiding")
            .values(status="hidden", hidden_at=now, live_version=None, live_hash="", live_fingerprint="", live_chunks=0, updated_at=now)
        )
        connection.execute(update(collections).where(collections.c.id == collection_id).values(revision=collections.c.revision + 1))


def unfinished(db: Database, ids: Sequence[str]) -> list[str]:
    """Those whose hiding was begun, by whoever died over it."""
    with db.read() as connection:
        return list(connection.scalars(select(documents.c.id).where(documents.c.id.in_(ids), documents.c.status == "hiding")))


def forget_deleted(db: Database, source_id: str) -> int:
    """What people deleted here may come back with the next sync; returns how many documents."""
    with db.write() as connection:
        done = connection.execute(
            update(documents)
            .where(documents.c.source_id == source_id, OF_SOURCE, documents.c.status.in_(("deleting", "deleted")))
            .values(source_id="", absence="", revision_mark="")
        )
    return done.rowcount


def count(db: Database, source_id: str) -> tuple[int, int]:
    """(documents, chunks that answer) of a source: what its deletion would take."""
    query = select(func.count(), func.sum(documents.c.live_chunks)).where(documents.c.source_id == source_id, OF_SOURCE, _there())
    with db.read() as connection:
        number, chunks = connection.execute(query).one()
    return int(number), int(chunks or 0)


def of_source(db: Database, source_id: str, collection_id: str, *, limit: int) -> list[str]:
    """Some documents that a source has in a collection and that are not deleted yet."""
    mine = (documents.c.source_id == source_id, OF_SOURCE, documents.c.collection_id == collection_id, _there())
    with db.read() as connection:
        return list(connection.scalars(select(documents.c.id).where(*mine).limit(limit)))


def homes(db: Database, source_id: str) -> list[str]:
    """Ids of the collections in which a source has documents."""
    query = select(documents.c.collection_id).where(documents.c.source_id == source_id, OF_SOURCE, _there()).distinct()
    with db.read() as connection:
        return list(connection.scalars(query))
