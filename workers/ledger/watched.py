"""The ledger's tables for whoever watches: who works, and what was counted."""

from __future__ import annotations

from sqlalchemy import Column, Double, Integer, String, Table, Text

from workers.ledger.schema import metadata

nodes = Table(
    "nodes",
    metadata,
    Column("name", String(128), primary_key=True),
    Column("role", String(16), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("queues", Text, nullable=False, default="[]"),
    Column("code_version", String(32), nullable=False),
    Column("clock", Double, nullable=False),
    Column("seen_at", Double, nullable=False),
    Column("progress_at", Double, nullable=False),
)
"""Processes that work on this ledger, as they announce themselves every few seconds. `clock` is what their own host's clock said at `seen_at`;
`progress_at` is when a worker last took a batch, and when a supervisor or beat last swept."""

tallies = Table(
    "tallies",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("labels", String(255), primary_key=True),
    Column("value", Double, nullable=False),
)
"""What rows that were tidied away had counted, so that the counters of the metrics never fall. `labels` is a JSON list."""
