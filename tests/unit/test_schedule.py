"""When sources are due, on a clock that the test sets."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import BadRequest
from tests.sourced import Bench
from workers import schedule
from workers.ledger import sources

DAY_S = 86400.0


def at(text: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def after(cron: str, zone: str, begin: float, number: int = 1, jitter_s: float = 0.0) -> list[str]:
    """The following times, as a clock on the wall there shows them."""
    found: list[str] = []
    for _ in range(number):
        begin = schedule.following(cron, zone, jitter_s, "s", begin) or 0.0
        found.append(datetime.fromtimestamp(begin, ZoneInfo(zone)).strftime("%m-%d %H:%M"))
    return found


def test_a_nightly_time_is_meant_where_the_source_is() -> None:
    moment = schedule.following("0 2 * * *", "Asia/Shanghai", 0.0, "s", at("2026-03-01 00:00"))
    assert moment == at("2026-03-02 02:00", "Asia/Shanghai") == at("2026-03-01 18:00")


def test_clocks_that_are_put_forward_skip_no_night() -> None:
    assert after("30 2 * * *", "Europe/Berlin", at("2026-03-28 00:00"), 3) == ["03-28 02:30", "03-29 03:00", "03-30 02:30"]


def test_clocks_that_are_put_back_double_no_night() -> None:
    assert after("30 2 * * *", "Europe/Berlin", at("2026-10-24 00:00"), 3) == ["10-24 02:30", "10-25 02:30", "10-26 02:30"]


def test_jitter_is_the_same_for_everybody_who_looks_and_another_for_every_source() -> None:
    begin = at("2026-03-01 00:00")
    moments = [schedule.following("0 2 * * *", "UTC", 300.0, name, begin) for name in ("a", "a", "b")]
    assert moments[0] == moments[1] != moments[2]
    assert all(moment is not None and 0 <= moment - at("2026-03-01 02:00") <= 300 for moment in moments)


@given(begin=st.integers(1_700_000_000, 2_000_000_000), jitter_s=st.integers(0, 7200))
def test_the_following_time_is_always_later_and_never_skips_a_day(begin: int, jitter_s: int) -> None:
    moment = schedule.following("15 4 * * *", "America/New_York", float(jitter_s), "s", float(begin))
    assert moment is not None and begin < moment <= begin + DAY_S + 3600 + jitter_s


@pytest.mark.parametrize(
    ("cron", "zone", "jitter_s", "pointer"),
    [("0 25 * * *", "UTC", 0, "/cron"), ("now", "UTC", 0, "/cron"), ("0 2 * * *", "Mars/Base", 0, "/timezone"), ("", "../etc", 0, "/timezone"),
     ("", "UTC", -1, "/jitter_s")],
)  # fmt: skip
def test_what_is_no_schedule_is_refused_by_name(cron: str, zone: str, jitter_s: float, pointer: str) -> None:
    with pytest.raises(BadRequest) as raised:
        schedule.check(cron, zone, jitter_s)
    assert raised.value.pointer == pointer


# ---------------------------------------------------------------- due


@pytest.fixture(params=["sqlite", "postgresql"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    url = "" if request.param == "sqlite" else request.getfixturevalue("postgres_database")
    made = Bench(tmp_path / "home", url)
    (tmp_path / "pages").mkdir()
    made.sources.create("pages", "folder", "docs", options={"path": str(tmp_path / "pages")}, cron="0 2 * * *")
    yield made
    made.close()


def first(bench: Bench) -> float:
    moment = bench.sources.show("pages").next_at
    assert moment is not None
    return moment.timestamp()


def test_a_source_is_begun_when_its_time_has_come_and_shows_the_next(bench: Bench) -> None:
    moment = first(bench)
    assert schedule.due(bench.runtime.db, moment - 1) == []
    assert len(schedule.due(bench.runtime.db, moment)) == 1
    view = bench.sources.show("pages")
    assert view.next_at == datetime.fromtimestamp(moment + DAY_S, UTC) and view.last_at is not None
    assert bench.listing() and bench.platform.run(view.last_run_id or "").finished


def test_two_who_look_at_the_same_moment_begin_one_run(bench: Bench) -> None:
    row = sources.find(bench.runtime.db, "default", "pages")
    moment = first(bench)
    assert schedule._take(bench.runtime.db, row, moment) is not None
    assert schedule._take(bench.runtime.db, row, moment) is None
    assert bench.listing() and bench.platform.runs().data[0].finished
    assert schedule._take(bench.runtime.db, row, moment) is None, "also not by one who looked long ago, and comes when the run is over"
    assert len(bench.platform.runs().data) == 1


def test_times_that_were_missed_are_made_up_for_once(bench: Bench) -> None:
    moment = first(bench)
    assert len(schedule.due(bench.runtime.db, moment + 5 * DAY_S + 60)) == 1
    assert bench.listing()
    assert schedule.due(bench.runtime.db, moment + 5 * DAY_S + 61) == []
    assert first(bench) == moment + 6 * DAY_S


def test_a_slow_run_is_not_overlapped(bench: Bench) -> None:
    moment = first(bench)
    assert len(schedule.due(bench.runtime.db, moment)) == 1
    assert schedule.due(bench.runtime.db, moment + DAY_S) == []
    assert len(bench.platform.runs().data) == 1 and first(bench) == moment + 2 * DAY_S


def test_a_paused_source_lets_its_time_pass(bench: Bench) -> None:
    moment = first(bench)
    bench.sources.pause("pages")
    assert bench.sources.show("pages").next_at is None
    assert schedule.due(bench.runtime.db, moment) == []
    bench.sources.resume("pages")
    assert first(bench) == moment + DAY_S and bench.platform.runs().data == ()


def test_a_schedule_can_be_changed_and_taken_away(bench: Bench) -> None:
    bench.sources.update("pages", options={}, cron="0 3 * * *")
    assert datetime.fromtimestamp(first(bench), UTC).hour == 3
    bench.sources.update("pages", options={}, cron="")
    assert bench.sources.show("pages").next_at is None
    assert schedule.due(bench.runtime.db, 4_000_000_000.0) == []
