"""The ledger's tables about graphs: what of a collection stands in its graph, and what is on its way there."""

from __future__ import annotations

from sqlalchemy import Column, Double, Index, Integer, String, Table, Text, literal_column, text

from workers.ledger.schema import BigId, metadata

graphs = Table(
    "graphs",
    metadata,
    Column("collection_id", String(32), primary_key=True),
    Column("seen", Text, nullable=False, default=""),
    Column("paused", Integer, nullable=False, default=0),
)
"""`seen`: generation, revision and extractor up to which everything of the collection is in its graph, or has failed for good."""

graphed = Table(
    "graphed",
    metadata,
    Column("document_id", String(32), primary_key=True),
    Column("collection_id", String(32), nullable=False),
    Column("version", BigId, nullable=False),
    Column("extractor", String(128), nullable=False),
    Column("status", String(16), nullable=False),
    Column("batch_id", BigId),
    Column("attempts", Integer, nullable=False, default=0),
    Column("lost", Integer, nullable=False, default=0),
    Column("next_at", Double, nullable=False, default=0.0),
    Column("error_code", String(64), nullable=False, default=""),
    Column("error_detail", Text, nullable=False, default=""),
    Column("updated_at", Double, nullable=False),
    Index("graphed_batch", "batch_id", sqlite_where=text("batch_id IS NOT NULL"), postgresql_where=text("batch_id IS NOT NULL")),
    Index("graphed_again", "collection_id", "next_at", sqlite_where=text("status = 'retry'"), postgresql_where=text("status = 'retry'")),
)
"""What of a document stands in the graph, or is on its way there: `status` is queued, done, retry or dead."""

AGAIN = graphed.c.status == literal_column("'retry'")
"""The condition of the partial index, word for word."""
