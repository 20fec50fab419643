"""Shares of tenants in the workers."""

from __future__ import annotations

from sqlalchemy import select

from workers.ledger.engine import Database, upsert
from workers.ledger.schema import collections, tenants
from workers.views import TenantView


def every(db: Database) -> tuple[TenantView, ...]:
    """Tenants that have a collection or a weight, by name; 1 where no weight was given."""
    with db.read() as connection:
        given = {row.name: TenantView(row.name, float(row.weight), row.most) for row in connection.execute(select(tenants))}
        known = set(connection.scalars(select(collections.c.tenant).distinct()))
    return tuple(given.get(name, TenantView(name, 1.0)) for name in sorted(known | set(given)))


def one(db: Database, tenant: str) -> TenantView:
    return next((view for view in every(db) if view.name == tenant), TenantView(tenant, 1.0))


def weigh(db: Database, tenant: str, weight: float, *, most: int = 0) -> None:
    """Give a tenant a share, and a bound on its batches of one stage at once where `most` is not 0."""
    with db.write() as connection:
        upsert(connection, tenants, [{"name": tenant, "weight": weight, "most": most}])
