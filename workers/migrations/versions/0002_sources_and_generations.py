# pyright: basic
"""Sources with schedules, generations of a collection, weights of tenants, and what documents remember of their source."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

BigId: sa.types.TypeEngine[int] = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
NAMING = {"uq": "%(table_name)s_%(column_0_name)s_%(column_1_name)s"}


def upgrade() -> None:
    with op.batch_alter_table("collections", naming_convention=NAMING) as table:
        table.add_column(sa.Column("status", sa.String(length=16), nullable=False, server_default="live"))
        table.add_column(sa.Column("paused", sa.Integer(), nullable=False, server_default="0"))
        postgres = op.get_bind().dialect.name == "postgresql"
        table.drop_constraint("collections_tenant_name_key" if postgres else "collections_tenant_name", type_="unique")
        table.create_unique_constraint("collections_tenant_name_generation_key", ["tenant", "name", "generation"])
    op.add_column("runs", sa.Column("source_id", sa.String(length=32), nullable=False, server_default=""))
    op.add_column("runs", sa.Column("kind", sa.String(length=16), nullable=False, server_default="ingest"))
    op.add_column("run_items", sa.Column("stage", sa.String(length=16), nullable=False, server_default=""))
    op.add_column("documents", sa.Column("source_id", sa.String(length=32), nullable=False, server_default=""))
    op.add_column("documents", sa.Column("shadow_of", sa.String(length=32), nullable=False, server_default=""))
    op.add_column("documents", sa.Column("revision_mark", sa.Text(), nullable=False, server_default=""))
    op.add_column("documents", sa.Column("seen_run", BigId, nullable=True))
    op.add_column("documents", sa.Column("absence", sa.String(length=16), nullable=False, server_default=""))
    op.add_column("documents", sa.Column("hidden_at", sa.Double(), nullable=True))
    op.add_column("documents", sa.Column("waiting_since", sa.Double(), nullable=True))
    _tables()
    _watching()
    _removal()


def _waiting(*columns: str) -> None:
    op.drop_index("documents_waiting", "documents")
    where = sa.text("status IN ('ready', 'retry')")
    op.create_index("documents_waiting", "documents", list(columns), unique=False, sqlite_where=where, postgresql_where=where)


def _watching() -> None:
    """What status and metrics count goes into indexes; who works here, and what was counted before rows were tidied away, into tables."""
    _waiting("run_id", "stage", "id", "status", "route", "updated_at")
    op.add_column("batches", sa.Column("members", sa.Text(), nullable=False, server_default=""))
    where = sa.text("status IN ('done', 'skipped', 'cancelled')")
    op.create_index("documents_finished", "documents", ["status"], unique=False, sqlite_where=where, postgresql_where=where)
    op.create_table(
        "nodes",
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("queues", sa.Text(), nullable=False),
        sa.Column("code_version", sa.String(length=32), nullable=False),
        sa.Column("clock", sa.Double(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.Column("progress_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "tallies",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("labels", sa.String(length=255), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", "labels"),
    )


def _removal() -> None:
    """What of a deletion is still to be done, and what is not to come back with a backup."""
    told = sa.text("detail <> ''")
    op.create_index("run_items_told", "run_items", ["document_id"], unique=False, sqlite_where=told, postgresql_where=told)
    op.create_table(
        "outstanding",
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("asked", sa.Integer(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "name"),
    )
    op.create_table(
        "deletions",
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "id"),
    )


def _tables() -> None:
    op.create_table(
        "generations",
        sa.Column("collection_id", sa.String(length=32), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("chunker", sa.String(length=128), nullable=False),
        sa.Column("chunk_options", sa.Text(), nullable=False),
        sa.Column("tokenizer", sa.String(length=32), nullable=False),
        sa.Column("embedder", sa.String(length=128), nullable=False),
        sa.Column("embedder_revision", sa.String(length=128), nullable=False),
        sa.Column("dimension", sa.Integer(), nullable=True),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("live_at", sa.Double(), nullable=True),
        sa.Column("retired_at", sa.Double(), nullable=True),
        sa.Column("waves", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("collection_id", "generation"),
    )
    op.create_table(
        "retained",
        sa.Column("collection_id", sa.String(length=32), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("document_id", sa.String(length=32), nullable=False),
        sa.Column("version", BigId, nullable=False),
        sa.Column("chunks", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("collection_id", "generation", "document_id"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "tenants",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("most", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "turns",
        sa.Column("stage", sa.String(length=16), nullable=False),
        sa.Column("lane", sa.String(length=16), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("run_id", BigId, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("clock", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("stage", "lane", "tenant", "run_id"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "sources",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("collection_id", sa.String(length=32), nullable=False),
        sa.Column("collection", sa.String(length=128), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("options", sa.Text(), nullable=False),
        sa.Column("secrets", sa.Text(), nullable=False),
        sa.Column("checkpoint", sa.Text(), nullable=False),
        sa.Column("cron", sa.String(length=128), nullable=False),
        sa.Column("timezone", sa.String(length=64), nullable=False),
        sa.Column("jitter_s", sa.Double(), nullable=False),
        sa.Column("next_at", sa.Double(), nullable=True),
        sa.Column("paused", sa.Integer(), nullable=False),
        sa.Column("claimed_by", sa.String(length=128), nullable=False),
        sa.Column("claimed_until", sa.Double(), nullable=True),
        sa.Column("last_run_id", BigId, nullable=True),
        sa.Column("last_at", sa.Double(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=False),
        sa.Column("held", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("tenant", "name"),
    )
    op.create_table(
        "source_notes",
        sa.Column("source_id", sa.String(length=32), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("source_id", "key"),
        sqlite_with_rowid=False,
    )
    due = sa.text("next_at IS NOT NULL")
    op.create_index("sources_due", "sources", ["next_at"], unique=False, sqlite_where=due, postgresql_where=due)
    of_source, absent = sa.text("source_id <> ''"), sa.text("absence <> ''")
    op.create_index("documents_source", "documents", ["source_id", "seen_run"], unique=False, sqlite_where=of_source, postgresql_where=of_source)
    op.create_index("documents_absent", "documents", ["source_id", "absence"], unique=False, sqlite_where=absent, postgresql_where=absent)
    shadows = sa.text("shadow_of <> ''")
    op.create_index("documents_shadow", "documents", ["shadow_of"], unique=False, sqlite_where=shadows, postgresql_where=shadows)


def downgrade() -> None:
    for name in ("documents_finished", "documents_source", "documents_absent", "documents_shadow"):
        op.drop_index(name, "documents")
    _waiting("run_id", "stage", "id")
    op.drop_column("batches", "members")
    op.drop_index("run_items_told", "run_items")
    for name in ("deletions", "outstanding", "tallies", "nodes", "source_notes", "sources", "turns", "tenants", "retained", "generations"):
        op.drop_table(name)
    for column in ("waiting_since", "hidden_at", "absence", "seen_run", "revision_mark", "shadow_of", "source_id"):
        op.drop_column("documents", column)
    op.drop_column("run_items", "stage")
    for column in ("kind", "source_id"):
        op.drop_column("runs", column)
    with op.batch_alter_table("collections", naming_convention=NAMING) as table:
        table.drop_constraint("collections_tenant_name_generation_key", type_="unique")
        table.create_unique_constraint("collections_tenant_name_key", ["tenant", "name"])
        table.drop_column("paused")
        table.drop_column("status")
