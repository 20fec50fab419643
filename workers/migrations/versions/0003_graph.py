# pyright: basic
"""How a collection is searched and refuses; which version of a document stands in the graph, and up to which revision a graph is complete."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

BigId: sa.types.TypeEngine[int] = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("collections", sa.Column("search", sa.Text(), nullable=False, server_default="{}"))
    op.add_column("collections", sa.Column("calibrations", sa.Text(), nullable=False, server_default="{}"))
    op.create_table(
        "graphs",
        sa.Column("collection_id", sa.String(length=32), nullable=False),
        sa.Column("seen", sa.Text(), nullable=False, server_default=""),
        sa.Column("paused", sa.Integer(), nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("collection_id"),
    )
    op.create_table(
        "graphed",
        sa.Column("document_id", sa.String(length=32), nullable=False),
        sa.Column("collection_id", sa.String(length=32), nullable=False),
        sa.Column("version", BigId, nullable=False),
        sa.Column("extractor", sa.String(length=128), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("batch_id", BigId, nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("lost", sa.Integer(), nullable=False),
        sa.Column("next_at", sa.Double(), nullable=False),
        sa.Column("error_code", sa.String(length=64), nullable=False),
        sa.Column("error_detail", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("document_id"),
    )
    held = sa.text("batch_id IS NOT NULL")
    op.create_index("graphed_batch", "graphed", ["batch_id"], unique=False, sqlite_where=held, postgresql_where=held)
    again = sa.text("status = 'retry'")
    op.create_index("graphed_again", "graphed", ["collection_id", "next_at"], unique=False, sqlite_where=again, postgresql_where=again)


def downgrade() -> None:
    op.drop_table("graphed")
    op.drop_table("graphs")
    op.drop_column("collections", "calibrations")
    op.drop_column("collections", "search")
