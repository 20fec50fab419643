"""What happens after a failure: who waits, who is given up, who costs an attempt."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from pipeline.contracts import Stage
from pipeline.errors import Gone, Malformed, QuotaExhausted, RateLimited, Unavailable, Unchanged
from workers import verdict
from workers.ledger.work import Work

WORK = Work("id", "a.md", "", "", "/a.md", "", "", 1, {}, {}, "", 1, 1, None, "", "", "", "", 0, 0, 0, "fused")


def after(error: Exception, **changes: int) -> verdict.Setback:
    return verdict.setback(error, replace(WORK, **changes), Stage.EMBED, max_attempts=3)  # type: ignore[arg-type]


def test_a_rate_limit_waits_as_long_as_the_service_says_and_costs_no_attempt() -> None:
    found = after(RateLimited("429", after=10.0), attempts=2)
    assert (found.status, found.costs_attempt) == ("retry", False)
    assert 10.0 <= found.delay_s <= 13.0


def test_a_quota_waits_until_it_renews() -> None:
    found = after(QuotaExhausted("spent", until=datetime.now(UTC) + timedelta(hours=1)))
    assert (found.status, found.costs_attempt) == ("retry", False)
    assert 3590 < found.delay_s <= 3600


def test_a_shared_service_that_is_down_costs_no_attempt_however_often() -> None:
    found = after(Unavailable("away", dependency=True), attempts=2, waits=50)
    assert (found.status, found.costs_attempt) == ("retry", False)
    assert found.delay_s <= verdict.WAIT_CAP_S


def test_a_document_that_keeps_failing_ends_in_the_dead_letters() -> None:
    assert after(Unavailable("odd"), attempts=1).status == "retry"
    assert after(Unavailable("odd"), attempts=2).status == "dead"


def test_a_rejected_document_is_never_tried_again_and_keeps_reason_and_cure() -> None:
    found = after(Malformed("a.md is damaged", hint="save it again"))
    assert (found.status, found.code, found.detail, found.hint) == ("dead", "malformed", "a.md is damaged", "save it again")


@pytest.mark.parametrize(("error", "unchanged"), [(Unchanged("same"), True), (Gone("gone"), False)])
def test_skipped_is_no_failure(error: Exception, unchanged: bool) -> None:
    found = after(error)
    assert (found.status, found.unchanged) == ("skipped", unchanged)


def test_a_bug_is_tried_once_more_then_kept_with_its_traceback() -> None:
    try:
        raise KeyError("x")
    except KeyError as error:
        first, second = (verdict.bug(error, replace(WORK, attempts=number), Stage.CHUNK) for number in (0, 1))
    assert (first.status, second.status) == ("retry", "dead")
    assert "KeyError" in second.trace and "test_verdict" in second.trace


def test_backoff_spreads_out_and_stays_under_its_cap() -> None:
    delays = [verdict.jitter(tries) for tries in range(20) for _ in range(50)]
    assert max(delays) <= verdict.CAP_S and min(delays) >= verdict.BASE_S / 2
    assert len(set(delays)) > 900


def test_waiting_for_what_is_away_ends_after_days_and_waiting_for_a_quota_does_not() -> None:
    long_ago = time.time() - 100 * 3600
    found = verdict.setback(Unavailable("away", dependency=True), replace(WORK, waiting_since=long_ago), Stage.EMBED, max_attempts=3)
    assert found.status == "dead" and "waited for 72 hours" in found.detail and "replay" in found.hint
    assert (
        verdict.setback(Unavailable("away", dependency=True), replace(WORK, waiting_since=time.time()), Stage.EMBED, max_attempts=3).status == "retry"
    )
    assert verdict.setback(QuotaExhausted("spent"), replace(WORK, waiting_since=long_ago), Stage.LOAD, max_attempts=3).status == "retry"
