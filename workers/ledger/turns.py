"""Whose turn it is: tenants by their weight, and the runs of one tenant one like the other.

Start-time fair queueing: what a tenant was served moves its own clock on by documents ÷ weight, and the clock that is furthest behind is next.
Who comes new, or comes again after a pause, begins at the time of the one served last: nobody saves up turns, nobody has to catch up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from sqlalchemy import Connection, exists, select

from pipeline.contracts import Lane, Stage
from workers.ledger.engine import upsert
from workers.ledger.schema import runs, turns

EVERYBODY = ""
"""The row that holds the clock of the tenants among each other."""
LEAST_WEIGHT = 0.01


@dataclass(frozen=True, slots=True)
class Group:
    """One active run of a lane."""

    run_id: int
    tenant: str
    collection_id: str


@dataclass(frozen=True, slots=True)
class Share:
    """What a tenant may take beside others."""

    weight: float = 1.0
    most: int = 0
    """Batches of one stage at once; 0: any number."""


@dataclass(slots=True)
class _Tenant:
    at: float
    clock: float
    groups: list[Group]


class Line:
    """The runs that wait for one stage of one lane, in the order of their turns.

    Args:
        stored: (tenant, run id) → (its time, the clock of those below it); run id 0 is the tenant itself.
        under_way: tenant → its open batches of this stage and lane.
        places: batches that may be under way at once, to be shared; 0: any number.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        stored: Mapping[tuple[str, int], tuple[float, float]],
        shares: Mapping[str, Share],
        *,
        under_way: Mapping[str, int],
        places: int = 0,
    ) -> None:
        self._shares, self._places = shares, places
        self._under_way = dict(under_way)
        self._clock = stored.get((EVERYBODY, 0), (0.0, 0.0))[1]
        self._tenants: dict[str, _Tenant] = {}
        self._runs: dict[int, float] = {}
        self._touched: set[tuple[str, int]] = set()
        for group in groups:
            at, clock = stored.get((group.tenant, 0), (self._clock, 0.0))
            tenant = self._tenants.setdefault(group.tenant, _Tenant(max(at, self._clock), clock, []))
            tenant.groups.append(group)
            self._runs[group.run_id] = max(stored.get((group.tenant, group.run_id), (tenant.clock, 0.0))[0], tenant.clock)
        self._waiting = dict(self._tenants)

    def first(self) -> Group | None:
        """Who is next; None when nobody is left.

        A tenant that has its share of the places under way lets others go before it; where all have theirs, what is free is given out all the same.
        """
        for name in [name for name in self._waiting if self._sated(name)]:
            del self._waiting[name]
        if not self._waiting:
            return None
        total = sum(self._weight(name) for name in self._waiting)
        hungry = [name for name in self._waiting if self._under_way.get(name, 0) < self._part(name, total)]
        name = min(hungry or self._waiting, key=lambda one: (self._waiting[one].at, self._waiting[one].groups[0].run_id))
        return min(self._waiting[name].groups, key=lambda group: (self._runs[group.run_id], group.run_id))

    def _weight(self, tenant: str) -> float:
        return max(LEAST_WEIGHT, self._shares.get(tenant, Share()).weight)

    def _part(self, tenant: str, total: float) -> float:
        return max(1, ceil(self._places * self._weight(tenant) / total)) if self._places else float("inf")

    def _sated(self, tenant: str) -> bool:
        most = self._shares.get(tenant, Share()).most
        return 0 < most <= self._under_way.get(tenant, 0)

    def leave(self, group: Group) -> None:
        """Nothing of this run can go now."""
        groups = self._waiting[group.tenant].groups
        groups.remove(group)
        if not groups:
            del self._waiting[group.tenant]

    def served(self, group: Group, amount: float) -> None:
        """One batch of this run was formed; `amount` is what it takes, in documents or chunks."""
        tenant = self._tenants[group.tenant]
        self._clock, tenant.clock = tenant.at, self._runs[group.run_id]
        tenant.at += amount / self._weight(group.tenant)
        self._runs[group.run_id] += amount
        self._under_way[group.tenant] = self._under_way.get(group.tenant, 0) + 1
        self._touched |= {(EVERYBODY, 0), (group.tenant, 0), (group.tenant, group.run_id)}

    def changed(self) -> dict[tuple[str, int], tuple[float, float]]:
        """What to keep, in the form of `stored`."""
        found: dict[tuple[str, int], tuple[float, float]] = {}
        for name, run_id in self._touched:
            if run_id:
                found[name, run_id] = (self._runs[run_id], 0.0)
            elif name == EVERYBODY:
                found[name, 0] = (0.0, self._clock)
            else:
                found[name, 0] = (self._tenants[name].at, self._tenants[name].clock)
        return found


def stored(connection: Connection, stage: Stage, lane: Lane) -> dict[tuple[str, int], tuple[float, float]]:
    """The clocks of one stage and lane."""
    rows = connection.execute(select(turns).where(turns.c.stage == stage.value, turns.c.lane == lane.value))
    return {(row.tenant, row.run_id): (row.at, row.clock) for row in rows}


def store(connection: Connection, stage: Stage, lane: Lane, changed: Mapping[tuple[str, int], tuple[float, float]]) -> None:
    upsert(
        connection,
        turns,
        [
            {"stage": stage.value, "lane": lane.value, "tenant": tenant, "run_id": run_id, "at": at, "clock": clock}
            for (tenant, run_id), (at, clock) in sorted(changed.items())
        ],
    )


def tidy(connection: Connection) -> None:
    """Forget the times of runs that ended, and of tenants that have none any more."""
    active = exists().where(runs.c.id == turns.c.run_id, runs.c.finished_at.is_(None))
    known = exists().where(runs.c.tenant == turns.c.tenant)
    connection.execute(turns.delete().where(turns.c.run_id != 0, ~active))
    connection.execute(turns.delete().where(turns.c.run_id == 0, turns.c.tenant != EVERYBODY, ~known))
