"""Shares of tenants in the workers."""

from __future__ import annotations

from sqlalchemy import select

from workers.ledger.engine import Database, upsert
from workers.ledger.schema import collections, tenants
from workers.views import TenantView


def every(db: Database) -> tuple[TenantView, ...]:
    """Tenants that have a collection or a weight, by name; 1 where no weight was given."""
    with db.read() as connection:
        given = {row.name: float(row.weight) for row in connection.execute(select(tenants))}
        known = set(connection.scalars(select(collections.c.tenant).distinct()))
    return tuple(TenantView(name, given.get(name, 1.0)) for name in sorted(known | set(given)))


def weigh(db: Database, tenant: str, weight: float) -> None:
    with db.write() as connection:
        upsert(connection, tenants, [{"name": tenant, "weight": weight}])
