# pyright: basic
"""The first schema: collections, runs, documents, batches, artifacts, attempts, usage, keys, remembered requests."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

BigId: sa.types.TypeEngine[int] = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("collections", sa.Text(), nullable=False),
        sa.Column("permissions", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("last_used_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("hash"),
    )
    op.create_table(
        "artifact_refs",
        sa.Column("document_id", sa.String(length=32), nullable=False),
        sa.Column("version", BigId, nullable=False),
        sa.Column("stage", sa.String(length=16), nullable=False),
        sa.Column("key", sa.String(length=32), nullable=False),
        sa.Column("pack", sa.String(length=128), nullable=False),
        sa.Column("start", BigId, nullable=False),
        sa.Column("length", BigId, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("document_id", "version", "stage"),
        sqlite_with_rowid=False,
    )
    op.create_index("artifact_refs_key", "artifact_refs", ["key"], unique=False)
    op.create_index("artifact_refs_pack", "artifact_refs", ["pack"], unique=False)
    op.create_table(
        "attempts",
        sa.Column("id", BigId, autoincrement=True, nullable=False),
        sa.Column("document_id", sa.String(length=32), nullable=False),
        sa.Column("run_id", BigId, nullable=False),
        sa.Column("version", BigId, nullable=False),
        sa.Column("stage", sa.String(length=16), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("code", sa.String(length=64), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("worker", sa.String(length=128), nullable=False),
        sa.Column("code_version", sa.String(length=32), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("attempts_document", "attempts", ["document_id"], unique=False)
    op.create_table(
        "batches",
        sa.Column("id", BigId, autoincrement=True, nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("collection_id", sa.String(length=32), nullable=False),
        sa.Column("stages", sa.String(length=64), nullable=False),
        sa.Column("lane", sa.String(length=16), nullable=False),
        sa.Column("queue", sa.String(length=64), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("token", sa.Integer(), nullable=False),
        sa.Column("owner", sa.String(length=128), nullable=False),
        sa.Column("lease_until", sa.Double(), nullable=True),
        sa.Column("deadline", sa.Double(), nullable=True),
        sa.Column("published_at", sa.Double(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("chunks", sa.Integer(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "batches_open",
        "batches",
        ["queue"],
        unique=False,
        sqlite_where=sa.text("status IN ('queued', 'leased')"),
        postgresql_where=sa.text("status IN ('queued', 'leased')"),
    )
    op.create_table(
        "collections",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("chunker", sa.String(length=128), nullable=False),
        sa.Column("chunk_options", sa.Text(), nullable=False),
        sa.Column("tokenizer", sa.String(length=32), nullable=False),
        sa.Column("embedder", sa.String(length=128), nullable=False),
        sa.Column("embedder_revision", sa.String(length=128), nullable=False),
        sa.Column("dimension", sa.Integer(), nullable=True),
        sa.Column("store_url", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("revision", BigId, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("tenant", "name"),
    )
    op.create_table(
        "documents",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("collection_id", sa.String(length=32), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("member", sa.Text(), nullable=False),
        sa.Column("media_type", sa.String(length=128), nullable=False),
        sa.Column("size", BigId, nullable=False),
        sa.Column("meta", sa.Text(), nullable=False),
        sa.Column("options", sa.Text(), nullable=False),
        sa.Column("access", sa.String(length=64), nullable=False),
        sa.Column("run_id", BigId, nullable=False),
        sa.Column("lane", sa.String(length=16), nullable=False),
        sa.Column("route", sa.String(length=16), nullable=False),
        sa.Column("stage", sa.String(length=16), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("next_at", sa.Double(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("waits", sa.Integer(), nullable=False),
        sa.Column("lost", sa.Integer(), nullable=False),
        sa.Column("batch_id", BigId, nullable=True),
        sa.Column("version", BigId, nullable=False),
        sa.Column("live_version", BigId, nullable=True),
        sa.Column("source_hash", sa.String(length=64), nullable=False),
        sa.Column("live_hash", sa.String(length=64), nullable=False),
        sa.Column("fingerprint", sa.String(length=32), nullable=False),
        sa.Column("live_fingerprint", sa.String(length=32), nullable=False),
        sa.Column("chunks", sa.Integer(), nullable=False),
        sa.Column("live_chunks", sa.Integer(), nullable=False),
        sa.Column("error_stage", sa.String(length=16), nullable=False),
        sa.Column("error_code", sa.String(length=64), nullable=False),
        sa.Column("error_detail", sa.Text(), nullable=False),
        sa.Column("error_hint", sa.Text(), nullable=False),
        sa.Column("error_trace", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "documents_batch",
        "documents",
        ["batch_id"],
        unique=False,
        sqlite_where=sa.text("batch_id IS NOT NULL"),
        postgresql_where=sa.text("batch_id IS NOT NULL"),
    )
    op.create_index("documents_collection", "documents", ["collection_id", "id"], unique=False)
    op.create_index(
        "documents_dead",
        "documents",
        ["collection_id", "updated_at"],
        unique=False,
        sqlite_where=sa.text("status = 'dead'"),
        postgresql_where=sa.text("status = 'dead'"),
    )
    op.create_index(
        "documents_waiting",
        "documents",
        ["run_id", "stage", "id"],
        unique=False,
        sqlite_where=sa.text("status IN ('ready', 'retry')"),
        postgresql_where=sa.text("status IN ('ready', 'retry')"),
    )
    op.create_table(
        "idempotency",
        sa.Column("principal", sa.String(length=64), nullable=False),
        sa.Column("route", sa.String(length=256), nullable=False),
        sa.Column("key", sa.String(length=256), nullable=False),
        sa.Column("payload_hash", sa.String(length=64), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("body", sa.Text(), nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("principal", "route", "key"),
    )
    op.create_table(
        "locks",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("owner", sa.String(length=128), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "meta",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "run_items",
        sa.Column("run_id", BigId, nullable=False),
        sa.Column("document_id", sa.String(length=32), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("chunks", sa.Integer(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "document_id"),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "run_items_pending",
        "run_items",
        ["document_id"],
        unique=False,
        sqlite_where=sa.text("outcome = 'pending'"),
        postgresql_where=sa.text("outcome = 'pending'"),
    )
    op.create_table(
        "runs",
        sa.Column("id", BigId, autoincrement=True, nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("collection_id", sa.String(length=32), nullable=False),
        sa.Column("collection", sa.String(length=128), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("lane", sa.String(length=16), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("scan", sa.String(length=16), nullable=False),
        sa.Column("deleted", sa.Integer(), nullable=False),
        sa.Column("warnings", sa.Text(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "runs_active",
        "runs",
        ["lane", "id"],
        unique=False,
        sqlite_where=sa.text("finished_at IS NULL"),
        postgresql_where=sa.text("finished_at IS NULL"),
    )
    op.create_table(
        "usage",
        sa.Column("id", BigId, autoincrement=True, nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("part", sa.String(length=16), nullable=False),
        sa.Column("model", sa.String(length=128), nullable=False),
        sa.Column("input_tokens", BigId, nullable=True),
        sa.Column("output_tokens", BigId, nullable=True),
        sa.Column("units", BigId, nullable=False),
        sa.Column("requests", sa.Integer(), nullable=False),
        sa.Column("retries", sa.Integer(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("usage_owner", "usage", ["owner"], unique=False)


def downgrade() -> None:
    for name in (
        "idempotency",
        "api_keys",
        "usage",
        "attempts",
        "artifact_refs",
        "batches",
        "documents",
        "run_items",
        "runs",
        "collections",
        "locks",
        "meta",
    ):
        op.drop_table(name)
