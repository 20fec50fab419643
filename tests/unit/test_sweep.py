"""The sweep: what the broker lost, and what it must leave alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select, update

from pipeline.errors import Unavailable
from tests.system import markdown, settings_for
from workers.dispatch import Platform, open_platform
from workers.feeder import Feeder, windows
from workers.ledger import batches as machine
from workers.ledger import sweeping
from workers.ledger.schema import batches
from workers.ledger.work import Issue
from workers.sweep import sweep
from workers.views import Incoming


class Redis:
    """Redis, as far as the sweep asks it."""

    def __init__(self) -> None:
        self.mark: str | None = None
        self.waiting: int | None = 0
        self.away = False

    def _answer(self) -> None:
        if self.away:
            raise Unavailable("Redis does not answer", dependency=True)

    def depth(self, queue: str) -> int | None:
        self._answer()
        return self.waiting

    def epoch(self) -> str | None:
        self._answer()
        return self.mark

    def set_epoch(self, value: str) -> None:
        self._answer()
        self.mark = value


class Outbox:
    """Where the feeder publishes."""

    def __init__(self) -> None:
        self.sent: list[Issue] = []
        self.away = False

    def __call__(self, issues: list[Issue]) -> None:
        if self.away:
            raise Unavailable("the broker does not answer", dependency=True)
        self.sent += issues


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    with open_platform(settings_for(tmp_path)) as opened:
        opened.ingest("docs", [Incoming(f"{number}.md", data=markdown(number).encode()) for number in range(3)])
        yield opened


@pytest.fixture
def outbox() -> Outbox:
    return Outbox()


@pytest.fixture
def feeder(platform: Platform, outbox: Outbox) -> Feeder:
    return Feeder(platform.db, windows(platform.runtime.profile, processes=1, threads=1), outbox)


@pytest.fixture
def redis(feeder: Feeder) -> Redis:
    """A Redis that the sweep has seen before."""
    known = Redis()
    sweep(feeder, known)
    return known


def age(platform: Platform, seconds: float) -> None:
    """Everything happened so long ago."""
    with platform.db.write() as connection:
        past = time.time() - seconds
        connection.execute(update(batches).values(created_at=past))
        connection.execute(update(batches).where(batches.c.published_at.is_not(None)).values(published_at=past))


def tokens(platform: Platform) -> list[int]:
    with platform.db.read() as connection:
        return list(connection.scalars(select(batches.c.token).order_by(batches.c.id)))


def test_a_message_on_its_way_is_left_alone(platform: Platform, feeder: Feeder, redis: Redis, outbox: Outbox) -> None:
    feeder.tick()
    assert sweep(feeder, redis) == 0 and len(outbox.sent) == 1 and tokens(platform) == [1]


def test_a_message_that_left_the_queue_and_reached_nobody_is_sent_again_under_a_new_token(
    platform: Platform, feeder: Feeder, redis: Redis, outbox: Outbox
) -> None:
    feeder.tick()
    age(platform, sweeping.SILENT_S + 1)
    assert sweep(feeder, redis) == 1
    first, second = outbox.sent
    assert (first.batch_id, first.token, second.batch_id, second.token) == (second.batch_id, 1, first.batch_id, 2)
    assert machine.claim(platform.db, first.batch_id, first.token, "late:1:1", lease_s=60, deadline_s=60) is None
    assert machine.claim(platform.db, second.batch_id, second.token, "new:1:1", lease_s=60, deadline_s=60)


def test_a_message_that_waits_in_a_long_queue_is_not_doubled(platform: Platform, feeder: Feeder, redis: Redis, outbox: Outbox) -> None:
    feeder.tick()
    redis.waiting = 7
    age(platform, sweeping.SILENT_S + 1)
    assert sweep(feeder, redis) == 0
    age(platform, sweeping.OVERDUE_S + 1)
    assert sweep(feeder, redis) == 1


def test_a_batch_whose_maker_died_before_publishing_is_sent(platform: Platform, feeder: Feeder, redis: Redis, outbox: Outbox) -> None:
    outbox.away = True
    feeder.tick()
    assert sweep(feeder, redis) == 0, "its maker may be about to publish it"
    outbox.away = False
    age(platform, sweeping.UNSENT_S + 1)
    assert sweep(feeder, redis) == 1 and len(outbox.sent) == 1


def test_a_wiped_broker_gets_everything_again_at_once(platform: Platform, feeder: Feeder, redis: Redis, outbox: Outbox) -> None:
    feeder.tick()
    redis.mark = None
    assert sweep(feeder, redis) == 1 and tokens(platform) == [2] and redis.mark
    assert sweep(feeder, redis) == 0, "once"


def test_a_broker_that_is_away_costs_nothing_and_leases_are_swept_all_the_same(
    platform: Platform, feeder: Feeder, redis: Redis, outbox: Outbox
) -> None:
    feeder.tick()
    (issue,) = outbox.sent
    assert machine.claim(platform.db, issue.batch_id, issue.token, "gone:1:1", lease_s=-1.0, deadline_s=60)
    redis.away = outbox.away = True
    assert sweep(feeder, redis) == 2, "two halves"
    redis.away = outbox.away = False
    age(platform, sweeping.UNSENT_S + 1)
    assert sweep(feeder, redis) == 2 and len(outbox.sent) == 3


def test_no_lease_outlives_its_stages_deadline_however_busy_its_heartbeat(platform: Platform, feeder: Feeder, redis: Redis, outbox: Outbox) -> None:
    feeder.tick()
    (issue,) = outbox.sent
    assert machine.claim(platform.db, issue.batch_id, issue.token, "busy:1:1", lease_s=60, deadline_s=0.0)
    machine.renew(platform.db, issue.batch_id, issue.token, lease_s=60)
    assert sweep(feeder, redis) == 2


def test_two_sweeps_at_once_issue_everything_once(platform: Platform, feeder: Feeder, redis: Redis, outbox: Outbox) -> None:
    feeder.tick()
    age(platform, sweeping.SILENT_S + 1)
    assert sweep(feeder, redis) + sweep(feeder, redis) == 1


def test_another_broker_without_lengths_is_waited_for_longer(platform: Platform, feeder: Feeder, redis: Redis, outbox: Outbox) -> None:
    feeder.tick()
    redis.waiting = None
    age(platform, sweeping.SILENT_S + 1)
    assert sweep(feeder, redis) == 0


def test_batches_of_a_node_that_was_told_to_stop_go_out_whole(platform: Platform, feeder: Feeder, redis: Redis, outbox: Outbox) -> None:
    feeder.tick()
    (issue,) = outbox.sent
    batch = machine.claim(platform.db, issue.batch_id, issue.token, "compute@a-1:2:3", lease_s=60, deadline_s=60)
    assert batch is not None
    assert sweeping.given_back(platform.db, "compute@a-11:") == 0
    assert sweeping.given_back(platform.db, "compute@a-1:") == 1
    age(platform, sweeping.UNSENT_S + 1)
    assert sweep(feeder, redis) == 1
    again = outbox.sent[-1]
    taken = machine.claim(platform.db, again.batch_id, again.token, "compute@a-2:2:3", lease_s=60, deadline_s=60)
    assert taken is not None and len(taken.documents) == len(batch.documents) == 3
