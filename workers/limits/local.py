"""Limits kept by this process alone: where there is no Redis, or while it is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from workers.limits import rules
from workers.limits.rules import Closing, Outcome, Rule, Said, Standing, Take

SCOPES = 200
"""Beyond so many, those that nothing is known of are forgotten."""


@dataclass(slots=True)
class _State:
    """One scope; every time is of the monotonic clock, 0 where there is none."""

    closed: float = 0.0
    why: Said = Said.DOWN
    probe: float = 0.0
    turn: float = 0.0
    """When the next request has its turn, burst left aside."""
    token_turn: float = 0.0
    cap: float = 0.0
    """Requests a second while less than usual is asked."""
    cap_at: float = 0.0
    top: float = 0.0
    share: float = 0.0
    since: float = 0.0
    count: int = 0
    """Requests since then, about a second."""
    before: float = 0.0
    """Requests a second before that."""
    fails: int = 0
    failed_at: float = 0.0
    cool: float = 0.0
    strikes: int = 0
    slots: dict[str, float] = field(default_factory=dict[str, float])


class LocalBuckets:
    """`Buckets` in memory.

    Args:
        share: among how many processes the limits are divided, as far as is known.
    """

    def __init__(self, share: Callable[[], int] = lambda: 1, now: Callable[[], float] = time.monotonic) -> None:
        self._share, self._now = share, now
        self._lock = threading.Lock()
        self._states: dict[str, _State] = {}

    def take(self, scope: str, rule: Rule, holder: str, *, tokens: int, patience_s: float, paid: bool) -> Take:
        """See `Buckets`."""
        share = self._share() if rule.rate or rule.tpm or rule.slots else 1
        with self._lock:
            state, now = self._state(scope)
            if state.closed > now:
                return Take(state.why, state.closed - now)
            if state.closed and state.probe > now:
                return Take(Said.PROBING, state.probe - now)
            wait = 0.0 if paid else _turn(state, rule, share, tokens, patience_s, now)
            if wait > patience_s:
                return Take(Said.RATE, wait)
            if wait > 0:
                return Take(Said.LATER, wait)
            if rule.slots and not _slot(state, max(1, rule.slots // share), holder, now):
                return Take(Said.SLOTS, min(state.slots.values()) - now)
            probe = bool(state.closed)
            if probe:
                state.probe = now + rules.PROBE_S
            return Take(Said.GO, probe=probe, watched=bool(probe or state.fails or state.strikes))

    def report(self, scope: str, rule: Rule, holder: str, outcome: Outcome, *, after_s: float | None, tokens: int, probe: bool) -> Closing:
        """See `Buckets`."""
        with self._lock:
            state, now = self._state(scope)
            state.slots.pop(holder, None)
            if tokens and rule.tpm:
                state.token_turn += tokens * 60.0 / rule.tpm
            if probe:
                state.probe = 0.0
            match outcome:
                case Outcome.BROKEN_OFF:
                    return Closing()
                case Outcome.ANSWERED:
                    _answered(state, probe, now)
                    return Closing()
                case Outcome.FAILED:
                    return _failed(state, after_s, probe, now)
                case _:
                    return _throttled(state, rule, outcome, after_s, probe, now)

    def close_for(self, scope: str, seconds: float) -> None:
        """See `Buckets`."""
        with self._lock:
            state, now = self._state(scope)
            state.closed, state.why = max(state.closed, now + min(seconds, rules.CLOSED_MOST_S)), Said.THROTTLED

    def renew(self, scope: str, holders: list[str]) -> None:
        """See `Buckets`."""
        with self._lock:
            state, now = self._state(scope)
            state.slots.update(dict.fromkeys(holders, now + rules.LEASE_S))

    def look(self, scope: str) -> Standing:
        """See `Buckets`."""
        with self._lock:
            if scope not in self._states:
                return Standing()
            state, now = self._state(scope)
            return Standing(state.why.value if state.closed else "", max(0.0, state.closed - now), max(0.0, state.turn - now, state.token_turn - now))

    def _state(self, scope: str) -> tuple[_State, float]:
        now = self._now()
        if scope not in self._states:
            if len(self._states) >= SCOPES:
                idle = [name for name, state in self._states.items() if not (state.slots or state.closed or max(state.turn, state.token_turn) > now)]
                for name in idle:
                    del self._states[name]
            self._states[scope] = _State()
        return self._states[scope], now


def _turn(state: _State, rule: Rule, share: int, tokens: int, patience_s: float, now: float) -> float:
    """Seconds until this request's turn, which is taken when it is within its patience."""
    rate, burst = rule.rate / share, rule.burst
    if state.cap:
        _grow(state, now)
        if state.cap and not 0 < rate < state.cap:
            rate, burst = state.cap, 1.0
    start = max(state.turn, now - (burst - 1) / rate) if rate else now
    token_start = max(state.token_turn, now) if rule.tpm else now
    wait = max(start - now, token_start - now, 0.0)
    if wait > patience_s:
        return wait
    state.turn = start + 1.0 / rate if rate else state.turn
    state.token_turn = token_start + tokens * 60.0 * share / rule.tpm if rule.tpm else state.token_turn
    age = now - state.since
    if age >= 1.0:
        state.before = state.count / age if age < 2.0 else 0.0
        state.since, state.count = now, 0
    state.count += 1
    state.share *= 1 - rules.SMOOTH
    return wait


def _grow(state: _State, now: float) -> None:
    steps = int((now - state.cap_at) / rules.QUIET_S)
    if steps > 0:
        state.cap *= rules.GROWTH ** min(steps, 1000)
        state.cap_at += steps * rules.QUIET_S
        if state.cap >= state.top:
            state.cap = state.top = 0.0


def _slot(state: _State, slots: int, holder: str, now: float) -> bool:
    for name in [name for name, until in state.slots.items() if until <= now]:
        del state.slots[name]
    if holder not in state.slots and len(state.slots) >= slots:
        return False
    state.slots[holder] = now + rules.LEASE_S
    return True


def _answered(state: _State, probe: bool, now: float) -> None:
    if probe and state.closed <= now:
        state.closed = state.cool = 0.0
    if not state.closed:
        state.fails = state.strikes = 0


def _failed(state: _State, after_s: float | None, probe: bool, now: float) -> Closing:
    if state.closed and not probe:
        return Closing(max(0.0, state.closed - now))
    if probe:
        state.cool = min(rules.COOL_MOST_S, 2 * state.cool or rules.COOL_S)
    else:
        state.fails = state.fails + 1 if now - state.failed_at < rules.FAILING_S else 1
        state.failed_at = now
        if state.fails < rules.FAILURES and after_s is None:
            return Closing()
        state.cool = rules.COOL_S
    newly = not state.closed
    state.closed = now + (state.cool if after_s is None else min(after_s, rules.CLOSED_MOST_S))
    state.why = Said.DOWN
    return Closing(state.closed - now, newly)


def _throttled(state: _State, rule: Rule, outcome: Outcome, after_s: float | None, probe: bool, now: float) -> Closing:
    state.fails = 0
    state.share = state.share * (1 - rules.SMOOTH) + rules.SMOOTH
    newly = not state.closed
    if probe or state.closed <= now:
        state.strikes += 1
    if after_s is None:
        pause = min(rules.PAUSE_MOST_S, rules.PAUSE_S * 2.0 ** min(max(0, state.strikes - 1), 16))
        after_s = pause if outcome is Outcome.THROTTLED else rules.QUOTA_S
    if probe or newly or state.closed < now + after_s:
        state.closed = max(state.closed, now + min(after_s, rules.CLOSED_MOST_S))
        state.why = Said.QUOTA if outcome is Outcome.QUOTA else Said.THROTTLED
    if state.share > rules.SHARE and now >= state.cap_at and not probe:
        _halve(state, rule, now - state.since)
        state.cap_at = state.closed
    return Closing(state.closed - now, newly)


def _halve(state: _State, rule: Rule, age: float) -> None:
    seen = max(state.count / max(age, rules.GLANCE_S), state.before) if age < 2.0 else 0.0
    taken = state.cap or min(seen, rule.rate or seen)
    state.cap = max(rules.SLOWEST, taken / 2)
    state.top = state.top or rule.rate or max(2 * seen, 2 * rules.SLOWEST)
