"""The feeder: bounded windows, and a broker that may be away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline import embed
from pipeline.contracts import Lane, Stage
from pipeline.errors import Unavailable
from tests.system import markdown, settings_for
from workers import queues
from workers.dispatch import Platform, open_platform
from workers.feeder import Feeder, windows
from workers.ledger import forming
from workers.ledger.work import Issue
from workers.views import Incoming


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    with open_platform(settings_for(tmp_path)) as opened:
        yield opened


def feeder(platform: Platform, sent: list[Issue], window: int = 2) -> Feeder:
    return Feeder(platform.db, {stage: forming.Window(window) for stage in queues.ORDER}, sent.extend)


def begin(platform: Platform, count: int, *, lane: Lane = Lane.BULK, tenant: str = "default", suffix: str = "md") -> None:
    items = [Incoming(f"{lane}-{number}.{suffix}", data=markdown(number).encode()) for number in range(count)]
    platform.ingest("docs", items, lane=lane, tenant=tenant)


def test_no_more_batches_are_under_way_than_the_window_holds(platform: Platform) -> None:
    sent: list[Issue] = []
    begin(platform, 5 * queues.MAX_DOCUMENTS)
    made = feeder(platform, sent)
    assert made.tick() == 2 and made.tick() == 0
    assert len(sent) == 2 and {issue.queue for issue in sent} == {"dujiang.parse.bulk"}


def test_a_full_bulk_window_does_not_hold_up_the_interactive_lane(platform: Platform) -> None:
    sent: list[Issue] = []
    begin(platform, 5 * queues.MAX_DOCUMENTS)
    made = feeder(platform, sent)
    made.tick()
    begin(platform, 1, lane=Lane.INTERACTIVE)
    assert made.tick() == 1 and sent[-1].queue == "dujiang.parse.interactive"


def test_a_small_tenant_does_not_wait_behind_a_large_one(platform: Platform) -> None:
    sent: list[Issue] = []
    begin(platform, 10 * queues.MAX_DOCUMENTS, tenant="large")
    begin(platform, 1, tenant="small")
    assert feeder(platform, sent).tick() == 2
    with platform.db.read() as connection:
        from workers.ledger.schema import batches

        assert set(connection.scalars(batches.select().with_only_columns(batches.c.tenant))) == {"large", "small"}


def test_heavy_formats_go_from_queue_to_queue_and_light_text_in_one_task(platform: Platform) -> None:
    sent: list[Issue] = []
    begin(platform, 1)
    begin(platform, 1, suffix="pdf", tenant="other")
    feeder(platform, sent).tick()
    assert {(issue.stage, issue.queue) for issue in sent} == {(Stage.LOAD, "dujiang.parse.bulk"), (Stage.LOAD, "dujiang.load.bulk")}


def test_a_broker_that_is_away_loses_nothing_and_raises_nothing(platform: Platform) -> None:
    begin(platform, 1)

    def away(issues: list[Issue]) -> None:
        raise Unavailable("the broker does not answer", dependency=True)

    made = Feeder(platform.db, windows(platform.runtime.profile, processes=1, threads=1), away)
    assert made.tick() == 1
    assert made.send([Issue(1, 1, Stage.LOAD, "dujiang.parse.bulk")]) is False
    assert platform.run("run_1").status == "running"


def test_a_paused_run_is_fed_no_more_until_it_is_resumed(platform: Platform) -> None:
    sent: list[Issue] = []
    begin(platform, 3)
    platform.pause("run_1")
    assert feeder(platform, sent).tick() == 0
    platform.resume("run_1")
    assert feeder(platform, sent).tick() == 1


@pytest.mark.parametrize("embedder", ["hashed", "local", "openai:m"])
def test_a_model_in_this_process_gets_small_batches_and_a_remote_one_full_requests(tmp_path: Path, embedder: str) -> None:
    profile = embed.profile(settings_for(tmp_path, embedder=embedder))
    made = windows(profile, processes=2, threads=8)
    assert made[Stage.EMBED].chunks == (128 if embedder == "local" else queues.MAX_CHUNKS)
    assert made[Stage.EMBED].batches >= (8 if embedder == "openai:m" else 2)
    assert set(made) == set(queues.ORDER)
