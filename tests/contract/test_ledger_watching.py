"""What is shown of the ledger, on SQLite and on PostgreSQL alike: who works on it, where documents stand, counters that never fall."""

from __future__ import annotations

from collections import Counter

import pytest
from sqlalchemy import select, update

from pipeline.contracts import Lane, Stage
from pipeline.errors import NotFound
from tests.contract.test_ledger import begin, claim, collection, finish
from tests.contract.test_ledger import through as through_stage
from workers import queues
from workers.ledger import batches, forming, history, losses, metering, nodes, schema, standing, sweeping, tallies, watched
from workers.ledger.engine import Database
from workers.ledger.work import Outcome, Ref, Setback

WINDOWS = {stage: forming.Window(8) for stage in queues.ORDER}


def aged(db: Database, name: str, **seconds: float) -> None:
    """Move a node's times into the past."""
    with db.write() as connection:
        row = connection.execute(select(watched.nodes).where(watched.nodes.c.name == name)).one()
        values = {column: getattr(row, column) - by for column, by in seconds.items()}
        connection.execute(update(watched.nodes).where(watched.nodes.c.name == name).values(**values))


# ---------------------------------------------------------------- nodes


def test_a_node_is_known_while_it_announces_itself_and_not_longer(db: Database) -> None:
    nodes.announce(db, "compute@a-1", "worker", 1, ("dujiang.parse.bulk",))
    nodes.announce(db, "index@a-2", "worker", 2, ("dujiang.index.bulk",))
    assert [node.name for node in nodes.living(db)] == ["compute@a-1", "index@a-2"]
    aged(db, "index@a-2", seen_at=60.0)
    assert [node.name for node in nodes.living(db)] == ["compute@a-1"]
    counts = nodes.consumers(db)
    assert set(counts) == set(queues.all_queues())
    assert (counts["dujiang.parse.bulk"], counts["dujiang.index.bulk"]) == (1, 0)
    nodes.withdraw(db, "compute@a-1")
    assert nodes.living(db) == []


def test_only_progress_makes_a_node_younger_and_its_hosts_clock_is_compared(db: Database) -> None:
    nodes.announce(db, "compute@a-1", "worker", 1)
    aged(db, "compute@a-1", progress_at=100.0)
    nodes.announce(db, "compute@a-1", "worker", 1)
    assert nodes.living(db)[0].progress_s > 99
    nodes.progress(db, "compute@a-1")
    assert nodes.living(db)[0].progress_s < 50
    assert abs(nodes.living(db)[0].skew_s) < 3
    aged(db, "compute@a-1", clock=600.0)
    assert nodes.living(db)[0].skew_s < -590


# ---------------------------------------------------------------- where documents stand


def by_hand(db: Database) -> dict[str, int]:
    with db.read() as connection:
        query = select(schema.documents.c.status, schema.batches.c.status).outerjoin(
            schema.batches, schema.batches.c.id == schema.documents.c.batch_id
        )
        return dict(Counter("leased" if open_ == "leased" else status for status, open_ in connection.execute(query).all()))


def test_counts_from_indexes_are_the_counts_of_the_rows(db: Database) -> None:
    handbook, other = collection(db), collection(db, "other", "second")
    begin(db, handbook, "abcd")
    begin(db, other, "efg", route="staged", lane=Lane.INTERACTIVE)
    issues = forming.form(db, WINDOWS)
    begin(db, collection(db, "later"), "hij")
    first = claim(db, issues[0])
    assert first is not None
    dead = Setback(first.documents[0].document_id, Stage.LOAD, "dead", "unsupported", "no", "")
    waits = [Setback(work.document_id, Stage.LOAD, "retry", "rate_limited", "slow down", "", delay_s=60.0) for work in first.documents[1:]]
    batches.commit(db, first, Outcome(setbacks=(dead, *waits)))
    found = standing.look(db)
    assert found.by_status() == by_hand(db)
    assert found.dead == {("load", "unsupported"): 1}
    assert sum(one.documents for one in found.waiting) == 3 + len(waits)
    assert sum(one.retry for one in found.waiting) == len(waits)
    assert {one.queue for one in found.waiting} <= set(queues.all_queues())
    finish(db)
    assert standing.look(db).by_status() == by_hand(db)


def test_fused_documents_wait_for_the_queue_that_takes_them_and_staged_ones_for_their_own(db: Database) -> None:
    begin(db, collection(db), "ab")
    begin(db, collection(db, "staged"), "cde", route="staged", lane=Lane.INTERACTIVE)
    waits = {one.queue: one.documents for one in standing.look(db).waiting}
    assert waits == {"dujiang.parse.bulk": 2, "dujiang.load.interactive": 3}


def test_what_was_done_within_the_last_minute_is_counted_for_every_stage_that_a_batch_passed(db: Database) -> None:
    begin(db, collection(db), "abc")
    (issue,) = forming.form(db, WINDOWS)
    through_stage(db, issue, Stage.CHUNK)
    assert standing.per_minute(db) == {"load": 3, "parse": 3, "chunk": 3, "embed": 0, "index": 0}
    with db.write() as connection:
        connection.execute(update(schema.batches).values(finished_at=schema.batches.c.finished_at - 120.0))
    assert set(standing.per_minute(db).values()) == {0}


# ---------------------------------------------------------------- counters


def counted(db: Database) -> tallies.Tallies:
    with db.read() as connection:
        return tallies.total(connection)


def test_counters_do_not_fall_when_their_rows_are_tidied_away(db: Database) -> None:
    begin(db, collection(db), "abc")
    (issue,) = forming.form(db, WINDOWS)
    batch = claim(db, issue)
    assert batch is not None
    losses.expire(db, issue.batch_id, issue.token, reason="it died")
    sweeping.wiped(db)
    finish(db)
    with db.write() as connection:
        connection.execute(update(schema.batches).values(status="lost").where(schema.batches.c.status == "queued"))
        connection.execute(update(schema.batches).values(finished_at=1.0, seconds=0.2))
    before = counted(db)
    assert before[tallies.EXPIRED, ("load",)] >= 1 and before[tallies.REISSUED, ("load",)] == 2
    assert sweeping.tidy(db) > 0
    assert counted(db) == before
    with db.read() as connection:
        assert connection.execute(select(schema.batches)).all() == []
    sweeping.tidy(db)
    assert counted(db) == before


def test_a_histogram_counts_a_batch_in_every_bound_above_its_time(db: Database) -> None:
    begin(db, collection(db), "a")
    finish(db)
    with db.write() as connection:
        connection.execute(update(schema.batches).values(seconds=0.3))
    found = counted(db)
    reached = [found[tallies.WITHIN, ("load", f"{bound:g}")] for bound in tallies.SECONDS]
    assert reached == [1.0 if bound >= 0.3 else 0.0 for bound in tallies.SECONDS]


def test_two_that_add_to_a_tally_add_up(db: Database) -> None:
    for value in (1.5, 2.0):
        with db.write() as connection:
            tallies.add(connection, {("provider_wait_seconds", ("feishu",)): value})
            tallies.put(connection, "artifact_bytes", value)
    assert counted(db)["provider_wait_seconds", ("feishu",)] == 3.5
    assert counted(db)["artifact_bytes", ()] == 2.0


def test_attempts_are_counted_by_what_stopped_them(db: Database) -> None:
    begin(db, collection(db), "ab")
    (issue,) = forming.form(db, WINDOWS)
    batch = claim(db, issue)
    assert batch is not None
    setbacks = tuple(Setback(work.document_id, Stage.LOAD, "retry", "rate_limited", "slow down", "") for work in batch.documents)
    batches.commit(db, batch, Outcome(setbacks=setbacks))
    assert metering.totals(db).attempts == {("load", "retry", "rate_limited"): 2.0}


def test_the_packs_that_the_ledger_names_are_weighed_once_each(db: Database) -> None:
    spans = [("a", "parse/1-1.pack", 0, 100), ("b", "parse/1-1.pack", 100, 50), ("c", "parse/1-1.pack", 0, 100), ("d", "embed/2-1.pack", 0, 7)]
    with db.write() as connection:
        batches.write_refs(connection, [Ref(name, 1, Stage.PARSE, name, pack, start, length) for name, pack, start, length in spans], 1.0)
    assert metering.weigh(db) == 157.0
    assert counted(db)["artifact_bytes", ()] == 157.0


# ---------------------------------------------------------------- a batch's number


def test_a_batch_tells_its_documents_while_it_is_open_when_it_is_done_and_when_it_was_lost(db: Database) -> None:
    begin(db, collection(db), "abc")
    (issue,) = forming.form(db, WINDOWS)
    names = {"a", "b", "c"}
    opened = history.batch(db, issue.batch_id, tenant="default")
    assert (opened.status, {one.document for one in opened.documents}) == ("queued", names)
    assert claim(db, issue) is not None
    halves = losses.expire(db, issue.batch_id, issue.token, reason="it died")
    lost = history.batch(db, issue.batch_id, tenant="default")
    assert (lost.status, {one.document for one in lost.documents}) == ("lost", names)
    through_stage(db, halves[0], Stage.CHUNK)
    done = history.batch(db, halves[0].batch_id, tenant="default")
    assert (done.status, done.stages, done.collection) == ("done", ("load", "parse", "chunk"), "handbook")
    assert [(one.document, one.stage) for one in done.documents] == [("a", "embed"), ("b", "embed")]
    assert {one.run_id for one in done.documents} == {"run_1"}


def test_a_batch_of_another_tenant_and_one_that_never_was_are_not_found(db: Database) -> None:
    begin(db, collection(db), "a")
    (issue,) = forming.form(db, WINDOWS)
    for number, tenant in ((issue.batch_id, "other"), (999, "default")):
        with pytest.raises(NotFound) as missing:
            history.batch(db, number, tenant=tenant)
        assert missing.value.code == "batch_not_found"
