"""The ledger's tables. Stages and statuses are text without a CHECK, so that one can be added.

Times are seconds since the epoch by the database's own clock; ids of documents derive from identity.
"""

from __future__ import annotations

from sqlalchemy import Column, ColumnElement, Double, Index, Integer, MetaData, String, Table, Text, UniqueConstraint, literal_column, text
from sqlalchemy.types import BigInteger, TypeEngine

metadata = MetaData()
BigId: TypeEngine[int] = BigInteger().with_variant(Integer, "sqlite")

meta = Table("meta", metadata, Column("name", String(64), primary_key=True), Column("value", Text, nullable=False))

locks = Table("locks", metadata, Column("name", String(64), primary_key=True), Column("owner", String(128), nullable=False, default=""))

collections = Table(
    "collections",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("name", String(128), nullable=False),
    Column("chunker", String(128), nullable=False),
    Column("chunk_options", Text, nullable=False, default="{}"),
    Column("tokenizer", String(32), nullable=False),
    Column("embedder", String(128), nullable=False),
    Column("embedder_revision", String(128), nullable=False),
    Column("dimension", Integer),
    Column("store_url", Text, nullable=False),
    Column("generation", Integer, nullable=False, default=1),
    Column("revision", BigId, nullable=False, default=0),
    Column("created_at", Double, nullable=False),
    Column("status", String(16), nullable=False, default="live"),
    Column("paused", Integer, nullable=False, default=0),
    Column("search", Text, nullable=False, default="{}"),
    Column("calibrations", Text, nullable=False, default="{}"),
    UniqueConstraint("tenant", "name", "generation"),
)
"""`status` is "live" for the row that people mean by the name, "building" for the next generation while it is made. `search` and
`calibrations` are written by `pipeline.tuning`; only the live row has any."""

generations = Table(
    "generations",
    metadata,
    Column("collection_id", String(32), primary_key=True),
    Column("generation", Integer, primary_key=True),
    Column("chunker", String(128), nullable=False),
    Column("chunk_options", Text, nullable=False, default="{}"),
    Column("tokenizer", String(32), nullable=False),
    Column("embedder", String(128), nullable=False),
    Column("embedder_revision", String(128), nullable=False),
    Column("dimension", Integer),
    Column("status", String(16), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("live_at", Double),
    Column("retired_at", Double),
    Column("waves", Integer, nullable=False, default=0),
)
"""Every build of a collection that the store may still hold: building, live, retained or dropping; and the newest that it held, dropped, so that
its number is not given again. `waves` counts how often a build ran after what changed meanwhile."""

retained = Table(
    "retained",
    metadata,
    Column("collection_id", String(32), primary_key=True),
    Column("generation", Integer, primary_key=True),
    Column("document_id", String(32), primary_key=True),
    Column("version", BigId, nullable=False),
    Column("chunks", Integer, nullable=False, default=0),
    sqlite_with_rowid=False,
)
"""What an earlier generation held when it stopped answering: the way back needs no work for documents that did not change."""

sources = Table(
    "sources",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("collection_id", String(32), nullable=False),
    Column("collection", String(128), nullable=False),
    Column("name", String(128), nullable=False),
    Column("kind", String(32), nullable=False),
    Column("options", Text, nullable=False, default="{}"),
    Column("secrets", Text, nullable=False, default=""),
    Column("checkpoint", Text, nullable=False, default="{}"),
    Column("cron", String(128), nullable=False, default=""),
    Column("timezone", String(64), nullable=False, default="UTC"),
    Column("jitter_s", Double, nullable=False, default=0.0),
    Column("next_at", Double),
    Column("paused", Integer, nullable=False, default=0),
    Column("claimed_by", String(128), nullable=False, default=""),
    Column("claimed_until", Double),
    Column("last_run_id", BigId),
    Column("last_at", Double),
    Column("last_error", Text, nullable=False, default=""),
    Column("held", Integer, nullable=False, default=0),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    UniqueConstraint("tenant", "name"),
    Index("sources_due", "next_at", sqlite_where=text("next_at IS NOT NULL"), postgresql_where=text("next_at IS NOT NULL")),
)
"""Where documents come from again and again. `secrets` is sealed; `claimed_*` is the lease of whoever lists it now,
and without an owner the time before which nobody may. `paused` is 2 where a refusal of its credentials stopped it. `held` counts what a mass
disappearance would delete, until a person approves."""

tenants = Table(
    "tenants",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("weight", Double, nullable=False, default=1.0),
    Column("most", Integer, nullable=False, default=0),
)
"""Shares of the workers; a tenant without a row has weight 1. `most` bounds its batches of one stage at once; 0 does not."""

turns = Table(
    "turns",
    metadata,
    Column("stage", String(16), primary_key=True),
    Column("lane", String(16), primary_key=True),
    Column("tenant", String(64), primary_key=True),
    Column("run_id", BigId, primary_key=True, autoincrement=False),
    Column("at", Double, nullable=False),
    Column("clock", Double, nullable=False),
    sqlite_with_rowid=False,
)
"""How much was served so far, in documents ÷ weight: of a tenant where `run_id` is 0, else of one run. `clock` is that of those below: the tenant's
runs, and for the empty name the tenants. See `workers.ledger.turns`."""

runs = Table(
    "runs",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("tenant", String(64), nullable=False),
    Column("collection_id", String(32), nullable=False),
    Column("collection", String(128), nullable=False),
    Column("source", Text, nullable=False, default=""),
    Column("source_id", String(32), nullable=False, default=""),
    Column("kind", String(16), nullable=False, default="ingest"),
    Column("lane", String(16), nullable=False),
    Column("status", String(16), nullable=False),
    Column("scan", String(16), nullable=False, default="open"),
    Column("deleted", Integer, nullable=False, default=0),
    Column("warnings", Text, nullable=False, default="[]"),
    Column("started_at", Double, nullable=False),
    Column("finished_at", Double),
    Index("runs_active", "lane", "id", sqlite_where=text("finished_at IS NULL"), postgresql_where=text("finished_at IS NULL")),
)
"""`kind` is ingest, sync, replay or reindex. `scan` is "open" while items are still being added, then "complete" or "incomplete"."""

run_items = Table(
    "run_items",
    metadata,
    Column("run_id", BigId, primary_key=True),
    Column("document_id", String(32), primary_key=True),
    Column("outcome", String(16), nullable=False),
    Column("stage", String(16), nullable=False, default=""),
    Column("chunks", Integer, nullable=False, default=0),
    Column("detail", Text, nullable=False, default=""),
    Index(
        "run_items_pending",
        "document_id",
        sqlite_where=text("outcome = 'pending'"),
        postgresql_where=text("outcome = 'pending'"),
    ),
    Index("run_items_told", "document_id", sqlite_where=text("detail <> ''"), postgresql_where=text("detail <> ''")),
    sqlite_with_rowid=False,
)

documents = Table(
    "documents",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("collection_id", String(32), nullable=False),
    Column("key", Text, nullable=False),
    Column("title", Text, nullable=False, default=""),
    Column("url", Text, nullable=False, default=""),
    Column("path", Text, nullable=False, default=""),
    Column("member", Text, nullable=False, default=""),
    Column("media_type", String(128), nullable=False, default=""),
    Column("size", BigId, nullable=False, default=0),
    Column("meta", Text, nullable=False, default="{}"),
    Column("options", Text, nullable=False, default="{}"),
    Column("access", String(64), nullable=False, default=""),
    Column("run_id", BigId, nullable=False),
    Column("source_id", String(32), nullable=False, default=""),
    Column("shadow_of", String(32), nullable=False, default=""),
    Column("revision_mark", Text, nullable=False, default=""),
    Column("seen_run", BigId),
    Column("absence", String(16), nullable=False, default=""),
    Column("hidden_at", Double),
    Column("waiting_since", Double),
    Column("lane", String(16), nullable=False),
    Column("route", String(16), nullable=False),
    Column("stage", String(16), nullable=False),
    Column("status", String(16), nullable=False),
    Column("next_at", Double, nullable=False, default=0.0),
    Column("attempts", Integer, nullable=False, default=0),
    Column("waits", Integer, nullable=False, default=0),
    Column("lost", Integer, nullable=False, default=0),
    Column("batch_id", BigId),
    Column("version", BigId, nullable=False, default=0),
    Column("live_version", BigId),
    Column("source_hash", String(64), nullable=False, default=""),
    Column("live_hash", String(64), nullable=False, default=""),
    Column("fingerprint", String(32), nullable=False, default=""),
    Column("live_fingerprint", String(32), nullable=False, default=""),
    Column("chunks", Integer, nullable=False, default=0),
    Column("live_chunks", Integer, nullable=False, default=0),
    Column("error_stage", String(16), nullable=False, default=""),
    Column("error_code", String(64), nullable=False, default=""),
    Column("error_detail", Text, nullable=False, default=""),
    Column("error_hint", Text, nullable=False, default=""),
    Column("error_trace", Text, nullable=False, default=""),
    Column("updated_at", Double, nullable=False),
    Index("documents_collection", "collection_id", "id"),
    Index(
        "documents_waiting",
        "run_id",
        "stage",
        "id",
        "status",
        "route",
        "updated_at",
        sqlite_where=text("status IN ('ready', 'retry')"),
        postgresql_where=text("status IN ('ready', 'retry')"),
    ),
    Index("documents_source", "source_id", "seen_run", sqlite_where=text("source_id <> ''"), postgresql_where=text("source_id <> ''")),
    Index("documents_absent", "source_id", "absence", sqlite_where=text("absence <> ''"), postgresql_where=text("absence <> ''")),
    Index("documents_batch", "batch_id", sqlite_where=text("batch_id IS NOT NULL"), postgresql_where=text("batch_id IS NOT NULL")),
    Index(
        "documents_finished",
        "status",
        sqlite_where=text("status IN ('done', 'skipped', 'cancelled')"),
        postgresql_where=text("status IN ('done', 'skipped', 'cancelled')"),
    ),
    Index("documents_shadow", "shadow_of", sqlite_where=text("shadow_of != ''"), postgresql_where=text("shadow_of != ''")),
    Index("documents_dead", "collection_id", "updated_at", sqlite_where=text("status = 'dead'"), postgresql_where=text("status = 'dead'")),
)
"""`version` is the one under way or done; `live_version` the one that answers.
`shadow_of` names the document that a row of the next generation is built for. `revision_mark` is the source's own word for what it last gave,
`seen_run` the last run whose listing held it, `absence` why it is to be deleted, `hidden_at` since when nobody may see it, `waiting_since` the
first failure since it last moved.
`route` is "fused" (load, parse and chunk in one task) or "staged" (from queue to queue)."""

batches = Table(
    "batches",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("tenant", String(64), nullable=False),
    Column("collection_id", String(32), nullable=False),
    Column("stages", String(64), nullable=False),
    Column("lane", String(16), nullable=False),
    Column("queue", String(64), nullable=False),
    Column("status", String(16), nullable=False),
    Column("token", Integer, nullable=False, default=1),
    Column("owner", String(128), nullable=False, default=""),
    Column("lease_until", Double),
    Column("deadline", Double),
    Column("published_at", Double),
    Column("created_at", Double, nullable=False),
    Column("finished_at", Double),
    Column("size", Integer, nullable=False, default=0),
    Column("chunks", Integer, nullable=False, default=0),
    Column("seconds", Double, nullable=False, default=0.0),
    Column("members", Text, nullable=False, default=""),
    Index(
        "batches_open",
        "queue",
        sqlite_where=text("status IN ('queued', 'leased')"),
        postgresql_where=text("status IN ('queued', 'leased')"),
    ),
)
"""Lease and token belong here; a retry, a split and a re-formed batch are new rows. `members`: the documents of a closed one, an id a line."""

artifact_refs = Table(
    "artifact_refs",
    metadata,
    Column("document_id", String(32), primary_key=True),
    Column("version", BigId, primary_key=True),
    Column("stage", String(16), primary_key=True),
    Column("key", String(32), nullable=False),
    Column("pack", String(128), nullable=False),
    Column("start", BigId, nullable=False),
    Column("length", BigId, nullable=False),
    Column("created_at", Double, nullable=False),
    Index("artifact_refs_key", "key"),
    Index("artifact_refs_pack", "pack"),
    sqlite_with_rowid=False,
)

attempts = Table(
    "attempts",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("document_id", String(32), nullable=False),
    Column("run_id", BigId, nullable=False),
    Column("version", BigId, nullable=False),
    Column("stage", String(16), nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("code", String(64), nullable=False),
    Column("detail", Text, nullable=False),
    Column("worker", String(128), nullable=False),
    Column("code_version", String(32), nullable=False),
    Column("at", Double, nullable=False),
    Index("attempts_document", "document_id"),
)
"""One row for every attempt that did not succeed."""

usage = Table(
    "usage",
    metadata,
    Column("id", BigId, primary_key=True, autoincrement=True),
    Column("owner", String(64), nullable=False),
    Column("part", String(16), nullable=False),
    Column("model", String(128), nullable=False),
    Column("input_tokens", BigId),
    Column("output_tokens", BigId),
    Column("units", BigId, nullable=False, default=0),
    Column("requests", Integer, nullable=False, default=0),
    Column("retries", Integer, nullable=False, default=0),
    Column("at", Double, nullable=False),
    Index("usage_owner", "owner"),
)
"""Unreported token counts are NULL, never 0. `owner` is ``run:<id>`` or ``question``."""

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("name", String(128), nullable=False),
    Column("hash", String(64), nullable=False, unique=True),
    Column("collections", Text, nullable=False, default="[]"),
    Column("permissions", Text, nullable=False, default="[]"),
    Column("created_at", Double, nullable=False),
    Column("last_used_at", Double),
    Column("revoked_at", Double),
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("principal", String(64), primary_key=True),
    Column("route", String(256), primary_key=True),
    Column("key", String(256), primary_key=True),
    Column("payload_hash", String(64), nullable=False),
    Column("status", Integer),
    Column("body", Text),
    Column("at", Double, nullable=False),
)
"""`status` NULL means the first request is still in flight."""

outstanding = Table(
    "outstanding",
    metadata,
    Column("kind", String(16), primary_key=True),
    Column("name", String(255), primary_key=True),
    Column("asked", Integer, nullable=False, default=1),
    Column("since", Double, nullable=False),
)
"""What of a deletion is still to be done, each row once: whoever did it removes the row, if nobody has asked again meanwhile.
`kind` is tenant, collection, source, documents (of a collection), cache, pack, index, ledger or redis; see `workers.erasing`."""

deletions = Table(
    "deletions",
    metadata,
    Column("kind", String(16), primary_key=True),
    Column("id", String(64), primary_key=True),
    Column("generation", Integer, nullable=False, default=0),
    Column("at", Double, nullable=False),
)
"""What was deleted as a whole and is not to come back with a backup: collections and tenants by their id, indices by their name, no content.
`generation` is the highest one a collection had; one of the same name begins above it. Single documents have rows of their own."""


def _one_of(column: Column[str], *names: str) -> ColumnElement[bool]:
    # SQLite matches a query to a partial index by its text: with bound values it would read every row.
    return column.in_([literal_column(f"'{name}'") for name in names])


SOURCE_STOPPED = 2
"""`sources.paused` where the credentials were refused."""
WAITING = _one_of(documents.c.status, "ready", "retry")
FINISHED = _one_of(documents.c.status, "done", "skipped", "cancelled")
OPEN = _one_of(batches.c.status, "queued", "leased")
OF_SOURCE = documents.c.source_id != literal_column("''")
ABSENT = documents.c.absence != literal_column("''")
TOLD = run_items.c.detail != literal_column("''")
"""The conditions of the partial indexes, word for word; a query that asks otherwise does not use them."""
