"""Whatever happens in whatever order, every run ends, and balances: on SQLite and on PostgreSQL alike."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select

from pipeline.contracts import Lane
from tests.contract.test_ledger import WINDOWS, claim, collection
from workers.ledger import batches, browse, control, failing, forming, intake, losses, removal, schema, sweeping
from workers.ledger.batches import Batch
from workers.ledger.engine import Database
from workers.ledger.intake import Submission
from workers.ledger.work import Advance, CollectionRow, Issue, Outcome, Setback
from workers.views import Selection

NAMES = "abcdef"
ENDS = ("advance", "advance", "advance", "retry", "wait", "dead", "skipped", "unchanged")
ROUNDS = 400
ACTIONS = ("submit", "form", "claim", "commit", "late_commit", "die", "lose_messages", "cancel", "pause", "delete", "replay", "discard")
LIKELY = ("submit", "form", "form", "claim", "claim", "claim", "commit", "commit", "commit")


class World:
    """A collection to which everything happens that can happen to one."""

    def __init__(self, db: Database, row: CollectionRow) -> None:
        self.db, self.row = db, row
        self.runs: list[int] = []
        self.issues: list[Issue] = []
        self.held: list[Batch] = []
        self.late: list[Batch] = []
        """Of workers that lost their lease and do not know it."""
        self.ended: dict[int, dict[str, str]] = {}

    def act(self, name: str, number: int) -> None:
        getattr(self, name)(number)
        self.look()

    def submit(self, number: int) -> None:
        names = [name for place, name in enumerate(NAMES) if number >> place & 1]
        lane = Lane.INTERACTIVE if number & 64 else Lane.BULK
        run = intake.open_run(self.db, self.row, source="test", lane=lane)
        mark, route = str(number & 1), "staged" if number & 2 else "fused"
        intake.submit(self.db, run, self.row, lane, [self.item(name, mark, route) for name in names])
        self.runs.append(run)
        if number & 4:
            control.stop(self.db, run)
        intake.close_scan(self.db, run, complete=number % 5 != 0)

    def item(self, name: str, mark: str, route: str) -> Submission:
        error = ("malformed", "cannot be listed", "Repair it.", mark == "1") if name == "f" else None
        return Submission(f"{self.row.id}-{name}"[:32], name, path=f"/{name}", size=9, source_hash=mark, fingerprint="f", route=route, error=error)

    def form(self, _: int) -> None:
        self.issues += forming.form(self.db, WINDOWS)

    def claim(self, number: int) -> None:
        if self.issues:
            batch = claim(self.db, self.issues.pop(number % len(self.issues)))
            self.held += [batch] if batch is not None else []

    def commit(self, number: int) -> None:
        if self.held:
            batch = self.held.pop(number % len(self.held))
            self.issues += batches.commit(self.db, batch, outcome(batch, number)) or []

    def late_commit(self, number: int) -> None:
        if self.late:
            batch = self.late[number % len(self.late)]
            assert batches.commit(self.db, batch, outcome(batch, number)) is None

    def die(self, number: int) -> None:
        if self.held:
            batch = self.held.pop(number % len(self.held))
            self.late.append(batch)
            self.issues += losses.expire(self.db, batch.id, batch.token, reason="it died")

    def lose_messages(self, _: int) -> None:
        self.issues = sweeping.wiped(self.db)

    def cancel(self, number: int) -> None:
        if self.runs:
            control.stop(self.db, self.runs[number % len(self.runs)])

    def pause(self, number: int) -> None:
        if self.runs:
            control.hold(self.db, self.runs[number // 2 % len(self.runs)], paused=bool(number % 2))

    def delete(self, number: int) -> None:
        fence = removal.detach(self.db, self.row, [self.item(NAMES[number % 6], "0", "fused").document_id])
        if fence:
            removal.forget(self.db, self.row, fence)

    def replay(self, number: int) -> None:
        self.runs += failing.replay(self.db, Selection("default", collections=(self.row.name,), stage=("", "load", "embed")[number % 3]))

    def discard(self, number: int) -> None:
        failing.discard(self.db, Selection("default", collections=(self.row.name,), code=("malformed", "odd", "")[number % 3]))

    def look(self) -> None:
        """A run ends with its last document, and what ended stays as it is."""
        items = schema.run_items
        with self.db.read() as connection:
            ended = dict(connection.execute(select(schema.runs.c.id, schema.runs.c.finished_at).where(schema.runs.c.id.in_(self.runs))).all())
            found: dict[int, dict[str, str]] = {run: {} for run in self.runs}
            for run, document, now in connection.execute(
                select(items.c.run_id, items.c.document_id, items.c.outcome).where(items.c.run_id.in_(self.runs))
            ):
                found[run][document] = now
        for run, outcomes in found.items():
            assert (ended[run] is None) == ("pending" in outcomes.values())
            if ended[run] is not None:
                assert self.ended.setdefault(run, outcomes) == outcomes

    def balanced(self) -> None:
        for run in self.runs:
            view = browse.run(self.db, browse.run_name(run))
            assert view.finished and view.status in ("done", "failed", "cancelled")
            total = view.indexed + view.unchanged + view.skipped + view.failed + view.cancelled
            assert view.discovered == total == sum(sum(one.values()) for one in view.balance.values()) == len(self.ended[run])
            for stage, outcomes in view.balance.items():
                for name, number in outcomes.items():
                    assert len(browse.items(self.db, view.run_id, outcome=name, stage=stage, limit=100, after="").data) == number

    def to_the_end(self) -> None:
        """Everybody works well from now on."""
        for run in self.runs:
            control.hold(self.db, run, paused=False)
        while self.held:
            batch = self.held.pop()
            batches.commit(self.db, batch, Outcome(advanced(batch)))
        self.issues = sweeping.wiped(self.db)
        for _ in range(ROUNDS):
            self.issues += forming.form(self.db, WINDOWS)
            if not self.issues and all(browse.run(self.db, browse.run_name(run)).finished for run in self.runs):
                break
            while self.issues:
                batch = claim(self.db, self.issues.pop())
                if batch is not None:
                    self.issues += batches.commit(self.db, batch, Outcome(advanced(batch))) or []
        self.look()


def advanced(batch: Batch) -> tuple[Advance, ...]:
    return tuple(Advance(work.document_id, batch.stages[-1], work.source_hash, 3) for work in batch.documents)


def outcome(batch: Batch, number: int) -> Outcome:
    """Another end for each document."""
    advances: list[Advance] = []
    setbacks: list[Setback] = []
    for place, work in enumerate(batch.documents):
        end, stage = ENDS[(number + 3 * place) % len(ENDS)], batch.stages[-1]
        if end == "advance":
            advances.append(Advance(work.document_id, stage, work.source_hash, 3))
        else:
            status = {"wait": "retry", "unchanged": "skipped"}.get(end, end)
            setback = Setback(work.document_id, stage, status, "odd", "odd", "Wait.", costs_attempt=end != "wait", unchanged=end == "unchanged")
            setbacks.append(setback)
    return Outcome(tuple(advances), tuple(setbacks))


@settings(
    max_examples=40,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=st.lists(st.tuples(st.sampled_from(ACTIONS + LIKELY), st.integers(0, 127)), min_size=10, max_size=60))
def test_every_run_ends_and_balances_whatever_happens_to_it(db: Database, steps: list[tuple[str, int]]) -> None:
    with db.read() as connection:
        number = connection.scalar(select(func.count()).select_from(schema.collections)) or 0
    world = World(db, collection(db, f"c{number}"))
    for name, chosen in steps:
        world.act(name, chosen)
    world.to_the_end()
    world.balanced()
    with db.read() as connection:
        open_batches = connection.scalar(select(func.count()).where(schema.OPEN, schema.batches.c.collection_id == world.row.id))
        waiting = connection.scalar(select(func.count()).where(schema.WAITING, schema.documents.c.collection_id == world.row.id))
    assert (open_batches, waiting) == (0, 0)


def test_a_run_that_waits_for_a_document_ends_when_a_later_listing_cannot_read_it(db: Database) -> None:
    world = World(db, collection(db))
    first = intake.open_run(db, world.row, source="test", lane=Lane.BULK)
    good = world.item("a", "0", "fused")
    intake.submit(db, first, world.row, Lane.BULK, [good])
    intake.close_scan(db, first, complete=True)
    second = intake.open_run(db, world.row, source="test", lane=Lane.BULK)
    intake.submit(db, second, world.row, Lane.BULK, [replace(good, error=("malformed", "cannot be listed", "Repair it.", False))])
    intake.close_scan(db, second, complete=True)
    for run in (first, second):
        view = browse.run(db, browse.run_name(run))
        assert (view.status, view.discovered, view.failed, view.balance) == ("done", 1, 1, {"load": {"failed": 1}})
