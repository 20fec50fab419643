"""Buckets, slots and the door, on Redis and in memory: both give the same answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.servers.redis import RedisServer
from tests.system import until
from workers.limits import rules
from workers.limits.local import LocalBuckets
from workers.limits.rules import Buckets, Closing, Outcome, Rule, Said, Take
from workers.limits.shared import RedisBuckets

ANY = Rule()
Make = Callable[[], Buckets]


@pytest.fixture(params=["redis", "memory"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Buckets by the numbers of `rules` at that moment."""
    made: list[RedisBuckets] = []

    def on_redis() -> Buckets:
        made.append(RedisBuckets(request.getfixturevalue("redis_url")))
        return made[-1]

    yield LocalBuckets if request.param == "memory" else on_redis
    for buckets in made:
        buckets.close()


@pytest.fixture
def buckets(make: Make) -> Buckets:
    return make()


def take(buckets: Buckets, rule: Rule = ANY, holder: str = "me", *, scope: str = "embedder.x.1", tokens: int = 0, patience_s: float = 1.0) -> Take:
    return buckets.take(scope, rule, holder, tokens=tokens, patience_s=patience_s, paid=False)


def report(
    buckets: Buckets,
    outcome: Outcome,
    rule: Rule = ANY,
    holder: str = "me",
    *,
    scope: str = "embedder.x.1",
    after_s: float | None = None,
    tokens: int = 0,
    probe: bool = False,
) -> Closing:
    return buckets.report(scope, rule, holder, outcome, after_s=after_s, tokens=tokens, probe=probe)


def probed(buckets: Buckets) -> Take:
    """The probe, once it may go."""
    return until(lambda: found if (found := take(buckets, patience_s=0.0)).said is Said.GO else None, 20.0, "a probe may go")


# ---------------------------------------------------------------- by time


def test_requests_have_their_turn_one_after_the_other(buckets: Buckets) -> None:
    began = time.monotonic()
    waits = [take(buckets, Rule(rate=10)).wait_s for _ in range(8)]
    late = time.monotonic() - began
    assert all(place / 10 - late - 0.01 <= wait <= place / 10 + 0.01 for place, wait in enumerate(waits))


def test_who_would_wait_too_long_is_told_so_and_takes_nothing(buckets: Buckets) -> None:
    rule = Rule(rate=0.5)
    assert take(buckets, rule).said is Said.GO
    refused = [take(buckets, rule) for _ in range(3)]
    assert {each.said for each in refused} == {Said.RATE}
    assert all(1.0 < each.wait_s <= 2.0 for each in refused), "the refused ones have no place in the line"


def test_after_a_pause_a_burst_goes_at_once(buckets: Buckets) -> None:
    rule = Rule(rate=0.1, burst=3)
    assert [take(buckets, rule).said for _ in range(4)] == [Said.GO, Said.GO, Said.GO, Said.RATE]


def test_a_request_waits_for_the_tokens_of_those_before_it(buckets: Buckets) -> None:
    rule = Rule(tpm=60_000)
    assert take(buckets, rule, tokens=5000).said is Said.GO, "its own number keeps nobody waiting"
    assert 4.5 < take(buckets, rule, tokens=1).wait_s <= 5.0
    report(buckets, Outcome.ANSWERED, rule, tokens=-4500)
    later = take(buckets, rule, tokens=1)
    assert later.said in (Said.LATER, Said.GO) and later.wait_s <= 0.5, "the service had counted less"


# ---------------------------------------------------------------- slots


def test_there_are_no_more_requests_at_once_than_slots(buckets: Buckets) -> None:
    rule = Rule(slots=2)
    assert [take(buckets, rule, holder).said for holder in ("a", "b", "c")] == [Said.GO, Said.GO, Said.SLOTS]
    report(buckets, Outcome.ANSWERED, rule, "a")
    assert take(buckets, rule, "c").said is Said.GO
    report(buckets, Outcome.BROKEN_OFF, rule, "b")
    assert take(buckets, rule, "d").said is Said.GO


def test_a_slot_whose_holder_falls_silent_is_free_again_and_a_renewed_one_is_not(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "LEASE_S", 0.5)
    buckets, rule = make(), Rule(slots=2)
    take(buckets, rule, "silent")
    take(buckets, rule, "alive")

    def freed() -> bool:
        buckets.renew("embedder.x.1", ["alive"])
        return take(buckets, rule, "next").said is Said.GO

    until(freed, 5.0, "the slot is free")
    assert take(buckets, rule, "another").said is Said.SLOTS


# ---------------------------------------------------------------- the door


@pytest.mark.parametrize(("outcome", "said"), [(Outcome.THROTTLED, Said.THROTTLED), (Outcome.QUOTA, Said.QUOTA)])
def test_what_a_service_says_once_holds_for_everybody_and_then_one_asks_first(buckets: Buckets, outcome: Outcome, said: Said) -> None:
    assert take(buckets).said is Said.GO
    closing = report(buckets, outcome, after_s=0.4)
    assert closing.newly and closing.left_s == pytest.approx(0.4, abs=0.1)
    refused = take(buckets)
    assert refused.said is said and 0 < refused.wait_s < 0.5
    assert buckets.look("embedder.x.1").why == said
    probe = probed(buckets)
    assert probe.probe and take(buckets).said is Said.PROBING
    report(buckets, Outcome.ANSWERED, probe=True)
    assert [take(buckets).said for _ in range(3)] == [Said.GO] * 3
    assert not buckets.look("embedder.x.1").why


def test_other_services_and_other_keys_go_on(buckets: Buckets) -> None:
    report(buckets, Outcome.THROTTLED, after_s=60.0)
    assert take(buckets).said is Said.THROTTLED
    assert take(buckets, scope="embedder.x.2").said is Said.GO and take(buckets, scope="llm.x.1").said is Said.GO


def test_a_429_that_names_no_time_stops_everybody_a_little_longer_each_time(buckets: Buckets) -> None:
    first = report(buckets, Outcome.THROTTLED).left_s
    probed(buckets)
    second = report(buckets, Outcome.THROTTLED, probe=True).left_s
    assert first == pytest.approx(rules.PAUSE_S, abs=0.1) and second == pytest.approx(2 * rules.PAUSE_S, abs=0.1)


def test_answers_that_were_under_way_neither_open_nor_prolong(buckets: Buckets) -> None:
    report(buckets, Outcome.THROTTLED, after_s=30.0)
    report(buckets, Outcome.ANSWERED)
    report(buckets, Outcome.FAILED)
    late = report(buckets, Outcome.THROTTLED, after_s=0.1)
    assert not late.newly and 29.0 < late.left_s < 30.1
    assert take(buckets).said is Said.THROTTLED


def test_failures_in_a_row_close_it_and_one_answer_between_them_does_not(buckets: Buckets) -> None:
    for _ in range(rules.FAILURES - 1):
        assert report(buckets, Outcome.FAILED).left_s == 0
    assert take(buckets).watched
    report(buckets, Outcome.ANSWERED)
    for _ in range(rules.FAILURES - 1):
        assert report(buckets, Outcome.FAILED).left_s == 0
    closing = report(buckets, Outcome.FAILED)
    assert closing.newly and closing.left_s == pytest.approx(rules.COOL_S, abs=0.1)
    assert take(buckets).said is Said.DOWN


def test_a_probe_that_fails_closes_it_for_longer_and_one_that_is_broken_off_for_no_time(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "COOL_S", 0.3)
    buckets = make()
    for _ in range(rules.FAILURES):
        report(buckets, Outcome.FAILED)
    assert probed(buckets).probe
    assert report(buckets, Outcome.FAILED, probe=True).left_s == pytest.approx(2 * rules.COOL_S, abs=0.1)
    assert probed(buckets).probe
    report(buckets, Outcome.BROKEN_OFF, probe=True)
    assert take(buckets).probe


def test_a_probe_that_never_comes_back_is_not_waited_for_for_ever(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "PROBE_S", 0.3)
    buckets = make()
    report(buckets, Outcome.THROTTLED, after_s=0.01)
    assert probed(buckets).probe and take(buckets).said is Said.PROBING
    assert probed(buckets).probe


def test_who_goes_on_saying_429_is_asked_at_half_the_rate_and_then_more_and_more(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "QUIET_S", 0.12)
    buckets, rule = make(), Rule(rate=100)
    for _ in range(5):
        take(buckets, rule)
    for _ in range(8):
        report(buckets, Outcome.THROTTLED, rule, after_s=0.01)
    report(buckets, Outcome.ANSWERED, rule, probe=probed(buckets).probe)
    slowest = _spacing(buckets, rule)
    assert slowest > 0.04, "it took 5 in a quarter of a second, so it is asked 10 times a second"
    until(lambda: _spacing(buckets, rule) < 0.011, 20.0, "it is asked as often as is configured again")


def _spacing(buckets: Buckets, rule: Rule) -> float:
    """Seconds between the turns of two requests that wait."""
    before = buckets.look("embedder.x.1").debt_s
    began = time.monotonic()
    take(buckets, rule, patience_s=1000.0)
    take(buckets, rule, patience_s=1000.0)
    after = buckets.look("embedder.x.1").debt_s
    return (after - before + time.monotonic() - began) / 2


def test_a_few_429_in_a_hundred_slow_nobody_down(buckets: Buckets) -> None:
    rule = Rule(rate=100_000)
    for number in range(400):
        take(buckets, rule)
        if number % 50 == 0:
            report(buckets, Outcome.THROTTLED, rule, after_s=0.001)
            report(buckets, Outcome.ANSWERED, rule, probe=probed(buckets).probe)
    assert _spacing(buckets, rule) < 0.005


# ---------------------------------------------------------------- both alike

STEPS = st.one_of(
    st.tuples(st.just("take"), st.sampled_from([ANY, Rule(slots=2), Rule(rate=0.001, burst=2), Rule(tpm=0.01)]), st.sampled_from("abc")),
    st.tuples(st.just("report"), st.sampled_from(list(Outcome)), st.sampled_from("abc"), st.sampled_from([None, 0.0, 500.0]), st.booleans()),
)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    server = RedisServer()
    server.start()
    yield server
    server.close()


@given(steps=st.lists(STEPS, max_size=25))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_memory_and_redis_decide_alike(server: RedisServer, monkeypatch: pytest.MonkeyPatch, steps: list[tuple[object, ...]]) -> None:
    for name in ("PAUSE_S", "COOL_S", "PAUSE_MOST_S", "COOL_MOST_S"):
        monkeypatch.setattr(rules, name, 100.0)
    server.flush()
    shared, local = RedisBuckets(server.url), LocalBuckets()
    try:
        assert [_step(shared, step) for step in steps] == [_step(local, step) for step in steps]
    finally:
        shared.close()


def _step(buckets: Buckets, step: tuple[object, ...]) -> tuple[object, ...]:
    match step:
        case ("take", Rule() as rule, str(holder)):
            found = take(buckets, rule, holder, tokens=1)
            return found.said, found.probe, found.watched, round(found.wait_s, -1)
        case ("report", Outcome() as outcome, str(holder), float() | None as after_s, bool(probe)):
            closing = report(buckets, outcome, Rule(slots=2), holder, after_s=after_s, probe=probe)
            return closing.newly, round(closing.left_s, -1)
    raise AssertionError(step)
