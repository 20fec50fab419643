"""What should come to its end by itself and does not: deletions, builds of a collection, answers that cannot be removed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import update

from pipeline.errors import Unavailable
from tests.system import System, fill
from tests.unit.test_metrics import scrape
from workers import erasing, withdrawal
from workers.ledger import catalog, outstanding, schema, unfinished
from workers.watch.notices import Notices

HOUR_S = 3600.0


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    made = System(tmp_path / "home")
    made.inline(fill(tmp_path / "docs", 2))
    yield made
    made.close()


def ask_long_ago(system: System, kind: str, name: str = "-") -> None:
    with system.platform.db.write() as connection:
        outstanding.ask(connection, kind, [name], system.platform.db.now(connection) - HOUR_S)


def test_a_deletion_that_holds_something_for_long_is_counted_and_told(system: System) -> None:
    found = scrape(system)
    assert set(found["dujiang_deletions_outstanding"].values()) == {0.0} and found["dujiang_deletions_oldest_seconds"] == {(): 0.0}
    ask_long_ago(system, outstanding.PACK, "load/1-1.pack")
    ask_long_ago(system, outstanding.CACHE)
    found = scrape(system)
    assert found["dujiang_deletions_outstanding"][("pack",)] == found["dujiang_deletions_outstanding"][("cache",)] == 1.0
    assert found["dujiang_deletions_oldest_seconds"][()] >= HOUR_S
    assert any(line.startswith("deletions: ") and "60 min" in line for line in system.platform.status().degraded)
    assert {one.what for one in system.platform.deleting.outstanding()} == {erasing.SAID["pack"], erasing.SAID["cache"]}


def test_every_kind_of_work_that_a_deletion_leaves_has_words_and_a_series(system: System) -> None:
    assert set(outstanding.KINDS) == set(erasing.SAID) == {kind for (kind,) in scrape(system)["dujiang_deletions_outstanding"]}


def test_a_generation_that_does_not_move_is_told_until_it_does(system: System) -> None:
    platform = system.platform
    assert scrape(system)["dujiang_reindex_builds"] == {(): 0.0}
    platform.generations.reindex("docs", chunker="windows:32/0")
    found = scrape(system)
    assert found["dujiang_reindex_builds"] == {(): 1.0} and found["dujiang_reindex_idle_seconds"][()] < HOUR_S
    with platform.db.write() as connection:
        connection.execute(update(schema.generations).values(created_at=schema.generations.c.created_at - HOUR_S))
    assert scrape(system)["dujiang_reindex_idle_seconds"][()] >= HOUR_S
    assert any(line.startswith("reindex: ") for line in platform.status().degraded)
    with platform.db.write() as connection:
        moved = {"tenant": "default", "stages": "chunk", "lane": "bulk", "queue": "q", "status": "done", "created_at": platform.db.now(connection)}
        made = connection.scalar(schema.collections.select().where(schema.collections.c.status == "building"))
        connection.execute(schema.batches.insert().values(collection_id=made, **moved))
    assert unfinished.look(platform.db).idle_s < HOUR_S and platform.status().degraded == ()


def test_answers_that_cannot_be_removed_are_counted_and_those_of_a_deletion_are_tried_again(system: System) -> None:
    def away(_: str) -> int:
        raise Unavailable("the cache is away", dependency=True)

    runtime = system.platform.runtime
    runtime.cache = SimpleNamespace(purge=away)  # type: ignore[assignment]
    withdrawal.purge(runtime, catalog.find(runtime.db, "default", "docs"))
    document = system.platform.documents("docs").data[0].document_id
    assert erasing.SAID["cache"] in system.platform.deleting.documents("docs", [document]).outstanding
    assert scrape(system)["dujiang_cache_purge_failures_total"] == {(): 2.0}
    runtime.cache = SimpleNamespace(purge=lambda group: 0)  # type: ignore[assignment]
    assert erasing.SAID["cache"] not in erasing.erase(runtime)


def test_what_goes_wrong_is_said_once_and_once_that_it_is_well_again() -> None:
    said: list[str] = []
    notices = Notices(said.append)
    notices.hear(["store: it does not answer", "sweep: nobody for 31 s"])
    notices.hear(["sweep: nobody for 41 s", "store: it does not answer"])
    notices.hear(["unavailable: the ledger is away"], all_there_is=False)
    notices.hear(["store: it does not answer"])
    notices.hear([])
    notices.hear(["store: it does not answer"])
    assert said == [
        "degraded: store: it does not answer",
        "degraded: sweep: nobody for 31 s",
        "degraded: unavailable: the ledger is away",
        "well again: sweep",
        "well again: unavailable",
        "well again: store",
        "degraded: store: it does not answer",
    ]
