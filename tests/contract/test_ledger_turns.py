"""Whose turn it is, and how many are ahead, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

from sqlalchemy import func, select, update

from pipeline.contracts import Lane, Stage
from tests.contract.test_ledger import WINDOWS, collection, through
from workers import queues
from workers.ledger import batches, browse, control, forming, intake, schema, shares, sweeping
from workers.ledger.engine import Database
from workers.ledger.intake import Submission
from workers.ledger.work import CollectionRow, Issue

ONE = {stage: forming.Window(1) for stage in queues.ORDER}


def submit(db: Database, row: CollectionRow, number: int, *, route: str = "fused", lane: Lane = Lane.BULK) -> str:
    """A run over so many documents of its own."""
    run_id = intake.open_run(db, row, source="test", lane=lane)
    names = [f"{row.tenant[:4]}-{run_id:03}-{place:05}" for place in range(number)]
    intake.submit(
        db, run_id, row, lane, [Submission(name, name, path="/x", size=10, source_hash="a", fingerprint="f", route=route) for name in names]
    )
    intake.close_scan(db, run_id, complete=True)
    return browse.run_name(run_id)


def tenant_of(db: Database, issue: Issue) -> str:
    with db.read() as connection:
        return str(connection.scalar(select(schema.batches.c.tenant).where(schema.batches.c.id == issue.batch_id)))


def run_of(db: Database, issue: Issue) -> str:
    with db.read() as connection:
        found = connection.scalar(select(schema.documents.c.run_id).where(schema.documents.c.batch_id == issue.batch_id).limit(1))
    assert found is not None
    return browse.run_name(found)


def done(db: Database, issue: Issue) -> None:
    """As if somebody had worked on it: it takes no place any more."""
    with db.write() as connection:
        connection.execute(update(schema.batches).where(schema.batches.c.id == issue.batch_id).values(status="done"))


def form_one(db: Database) -> Issue:
    (issue,) = forming.form(db, ONE)
    return issue


def served(db: Database, turns: int) -> list[str]:
    """Tenants in the order of their turns, one place alone."""
    found: list[str] = []
    for _ in range(turns):
        issue = form_one(db)
        found.append(tenant_of(db, issue))
        done(db, issue)
    return found


def ahead(db: Database, run: str) -> int | None:
    return browse.run(db, run).ahead


def test_where_there_is_one_place_tenants_still_get_turns_by_their_weight(db: Database) -> None:
    heavy, light = collection(db, "h", "heavy"), collection(db, "l", "light")
    shares.weigh(db, "heavy", 3.0)
    submit(db, light, 1000)
    submit(db, heavy, 1000)
    turns = served(db, 12)
    assert turns.count("heavy") == 9 and set(turns[:4]) == {"heavy", "light"}


def test_who_comes_late_neither_waits_for_all_others_nor_catches_up_on_them(db: Database) -> None:
    old, new = collection(db, "o", "old"), collection(db, "n", "new")
    submit(db, old, 2000)
    submit(db, old, 2000)
    served(db, 10)
    submit(db, new, 2000)
    turns = served(db, 10)
    assert turns.count("new") == 5 and "new" in turns[:2]


def test_a_small_run_is_not_behind_a_large_one_of_the_same_tenant(db: Database) -> None:
    row = collection(db)
    large = submit(db, row, 2000)
    first = form_one(db)
    assert run_of(db, first) == large
    done(db, first)
    small = submit(db, row, 3)
    turns: list[str] = []
    for _ in range(2):
        issue = form_one(db)
        turns.append(run_of(db, issue))
        done(db, issue)
    assert small in turns


def test_slow_batches_of_one_tenant_leave_places_to_others(db: Database) -> None:
    slow, quick = collection(db, "s", "slow"), collection(db, "q", "quick")
    submit(db, slow, 2000)
    submit(db, quick, 2000)
    for _ in range(6):
        for issue in forming.form(db, WINDOWS):
            if tenant_of(db, issue) == "quick":
                done(db, issue)
    with db.read() as connection:
        held = connection.scalar(select(func.count()).where(schema.OPEN, schema.batches.c.tenant == "slow"))
    assert held == 4


def test_a_tenant_never_has_more_batches_under_way_than_it_is_allowed_even_alone(db: Database) -> None:
    row = collection(db, "m", "many")
    shares.weigh(db, "many", 1.0, most=2)
    submit(db, row, 1000)
    assert len(forming.form(db, WINDOWS)) == 2
    assert forming.form(db, WINDOWS) == []
    shares.weigh(db, "many", 1.0)
    assert len(forming.form(db, WINDOWS)) == 6


def test_documents_of_a_full_queue_do_not_hold_up_those_of_another(db: Database) -> None:
    row = collection(db)
    submit(db, row, 1000, route="staged")
    submit(db, row, 10)
    formed = [issue.queue for issue in forming.form(db, ONE)]
    assert sorted(formed) == ["dujiang.load.bulk", "dujiang.parse.bulk"]


def test_so_many_are_ahead_as_are_really_begun_before(db: Database) -> None:
    first, second = collection(db, "a", "first"), collection(db, "b", "second")
    shares.weigh(db, "first", 3.0)
    submit(db, first, 1000)
    submit(db, first, 1000)
    served(db, 5)
    mine = submit(db, second, 1000)
    form_one(db)
    told = ahead(db, mine)
    assert told is not None
    begun = 0
    for _ in range(50):
        with db.write() as connection:
            connection.execute(update(schema.batches).values(status="done"))
        issue = form_one(db)
        if run_of(db, issue) == mine:
            break
        begun += 64
    assert begun == told > 0


def test_the_number_ahead_only_falls_down_to_nothing_while_nobody_else_comes(db: Database) -> None:
    row, other = collection(db), collection(db, "o", "other")
    submit(db, row, 640)
    submit(db, other, 640)
    submit(db, row, 640)
    mine = submit(db, row, 64)
    told = [ahead(db, mine)]
    while browse.run(db, mine).stages["load"] and browse.run(db, mine).status == "queued":
        done(db, form_one(db))
        told.append(ahead(db, mine))
    assert told[0] and told == sorted(told, reverse=True, key=lambda number: number or 0)
    assert told[-1] == 0


def test_what_was_cancelled_or_is_paused_is_ahead_of_nobody(db: Database) -> None:
    row = collection(db)
    runs = [submit(db, row, 64) for _ in range(4)]
    assert [ahead(db, run) for run in runs] == [0, 64, 128, 192]
    control.stop(db, browse.run_number(runs[0]))
    assert [ahead(db, run) for run in runs[1:]] == [0, 64, 128]
    control.hold(db, browse.run_number(runs[1]), paused=True)
    assert [ahead(db, run) for run in runs[1:]] == [None, 0, 64]
    control.hold(db, browse.run_number(runs[1]), paused=False)
    assert [ahead(db, run) for run in runs] == [0, 0, 64, 128]


def test_what_other_lanes_and_queues_hold_is_not_ahead(db: Database) -> None:
    row = collection(db)
    submit(db, row, 500, lane=Lane.INTERACTIVE)
    submit(db, row, 500, route="staged")
    assert ahead(db, submit(db, row, 1)) == 0


def test_clocks_of_runs_that_ended_are_forgotten(db: Database) -> None:
    row = collection(db)
    runs = [submit(db, row, 64) for _ in range(2)]
    forming.form(db, WINDOWS)
    for run in runs:
        control.stop(db, browse.run_number(run))
    sweeping.tidy(db)
    with db.read() as connection:
        assert connection.scalar(select(func.count()).where(schema.turns.c.run_id != 0)) == 0


def test_the_balance_is_told_by_stage_with_the_list_behind_each_number(db: Database) -> None:
    row = collection(db)
    run = submit(db, row, 6)
    (issue,) = forming.form(db, WINDOWS)
    batch = batches.claim(db, issue.batch_id, issue.token, "n:1:1", lease_s=60, deadline_s=60)
    assert batch is not None
    ids = [work.document_id for work in batch.documents]
    stopped = [
        batches.Setback(ids[0], Stage.PARSE, "dead", "malformed", "cannot be read", "Repair it."),
        batches.Setback(ids[1], Stage.LOAD, "skipped", "gone", "gone", ""),
        batches.Setback(ids[2], Stage.LOAD, "skipped", "unchanged", "same", "", unchanged=True),
        batches.Setback(ids[5], Stage.CHUNK, "retry", "bug", "odd", "", delay_s=1000.0),
    ]
    batches.commit(db, batch, batches.Outcome(tuple(batches.Advance(one, Stage.CHUNK, "a", 3) for one in ids[3:5]), tuple(stopped)))
    (issue,) = forming.form(db, WINDOWS)
    (issue,) = through(db, issue, Stage.EMBED)
    through(db, issue, Stage.INDEX)
    control.stop(db, browse.run_number(run))
    view = browse.run(db, run)
    assert view.balance == {
        "load": {"skipped": 1, "unchanged": 1},
        "parse": {"failed": 1},
        "chunk": {"cancelled": 1},
        "index": {"indexed": 2},
    }
    for stage, outcomes in view.balance.items():
        for outcome, number in outcomes.items():
            page = browse.items(db, run, outcome=outcome, stage=stage, limit=100, after="")
            assert len(page.data) == number and {item.stage for item in page.data} == {stage}
    assert sum(sum(outcomes.values()) for outcomes in view.balance.values()) == view.discovered == 6
