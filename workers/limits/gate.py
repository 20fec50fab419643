"""One service behind its limits: waits that are short are slept, longer ones told, and what comes back is told to all."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Protocol

from pipeline.errors import PipelineError, QuotaExhausted, RateLimited, Retryable, Unavailable
from workers.limits.rules import Buckets, Closing, Outcome, Rule, Said, Standing, Take

FIRST_LOOK_S, LAST_LOOK_S = 0.02, 0.2
"""Pauses between two looks for a slot or for the outcome of a probe."""
ROUNDING_S = 0.001
BUSY_S = 1.0
"""When to come back where nobody knows when there will be room."""

Sleep = Callable[[float], None]


class Watch(Protocol):
    """What a gate tells of itself, and who keeps its slots."""

    def waited(self, part: str, provider: str, seconds: float) -> None: ...

    def throttled(self, part: str, provider: str) -> None: ...

    def closed(self, part: str, provider: str, why: Outcome, seconds: float) -> None: ...

    def hold(self, scope: str, holder: str) -> None: ...

    def drop(self, scope: str, holder: str) -> None: ...

    def holder(self) -> str:
        """A name that no other request has."""
        ...


class Gate:
    """A `Limiter` for one scope. Safe for threads.

    Args:
        scope: what is counted together; ``part.provider.hash``.
        shown: what messages call the service.
    """

    def __init__(self, buckets: Buckets, watch: Watch, scope: str, rule: Rule, shown: str, *, sleep: Sleep = time.sleep) -> None:
        self.scope, self.rule, self.shown = scope, rule, shown
        self.part, self.provider = scope.split(".")[:2]
        self.buckets, self.watch, self.sleep = buckets, watch, sleep

    def request(self, *, tokens: int = 0, patience_s: float = 1.0) -> AbstractContextManager[Pass]:
        """See `Limiter`."""
        return Pass(self, tokens, patience_s)

    def standing(self) -> Standing:
        return self.buckets.look(self.scope)

    def refusal(self, take: Take) -> Retryable:
        """Why there was no permission in time."""
        wait = max(0.05, take.wait_s)
        match take.said:
            case Said.DOWN:
                return Unavailable(
                    f"{self.shown} failed again and again, and is left alone for {wait:.1f} s",
                    after=wait,
                    dependency=True,
                    hint="Nothing to do once it is back: it is asked again every few seconds.",
                    code="left_alone",
                )
            case Said.QUOTA:
                return QuotaExhausted(f"{self.shown} has no quota left", until=datetime.now(UTC) + timedelta(seconds=wait), code="insufficient_quota")
            case Said.SLOTS | Said.PROBING:
                return RateLimited(f"{self.shown} is busy with other requests of ours", after=BUSY_S, scope=self.scope)
            case _:
                return RateLimited(f"{self.shown} takes our next request in {wait:.1f} s", after=wait, scope=self.scope)


class Pass:
    """One request; also its permit. Entering it waits, leaving it reports."""

    __slots__ = ("_extra", "_gate", "_holder", "_patience_s", "_take", "_tokens")

    def __init__(self, gate: Gate, tokens: int, patience_s: float) -> None:
        self._gate, self._tokens, self._patience_s = gate, tokens, patience_s
        self._holder = gate.watch.holder() if gate.rule.slots else ""
        self._extra = 0

    def used(self, tokens: int | None) -> None:
        """See `Permit`."""
        self._extra = tokens - self._tokens if tokens is not None else 0

    def __enter__(self) -> Pass:
        gate = self._gate
        take = self._ask(paid=False, patience_s=self._patience_s)
        if take.said is not Said.GO:
            take = self._wait(take)
        self._take = take
        if gate.rule.slots:
            gate.watch.hold(gate.scope, self._holder)
        return self

    def _ask(self, *, paid: bool, patience_s: float) -> Take:
        gate = self._gate
        return gate.buckets.take(gate.scope, gate.rule, self._holder, tokens=self._tokens, patience_s=patience_s, paid=paid)

    def _wait(self, take: Take) -> Take:
        """Until it may go. Raises when that takes too long."""
        gate, waited, paid, look = self._gate, 0.0, False, FIRST_LOOK_S
        try:
            while take.said is not Said.GO:
                left = self._patience_s - waited
                pause = take.wait_s
                if take.said in (Said.SLOTS, Said.PROBING):
                    # Its end is not known, only when it is given up.
                    pause, look = max(FIRST_LOOK_S / 4, min(look, take.wait_s)), min(LAST_LOOK_S, 2 * look)
                if pause > left + ROUNDING_S or take.said is Said.RATE:
                    raise gate.refusal(take)
                # A turn that came while the service was closed is gone: all who held one would ask in the moment that it opens again.
                paid = take.said is Said.LATER or (paid and take.said in (Said.SLOTS, Said.PROBING))
                gate.sleep(pause)
                waited += pause
                take = self._ask(paid=paid, patience_s=self._patience_s - waited)
        finally:
            gate.watch.waited(gate.part, gate.provider, waited)
        return take

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        gate, take = self._gate, self._take
        if gate.rule.slots:
            gate.watch.drop(gate.scope, self._holder)
        outcome = _outcome(error)
        news = take.watched or take.probe or (self._extra and gate.rule.tpm)
        if outcome is Outcome.ANSWERED and not news and not gate.rule.slots:
            return
        closing = self._report(outcome, error)
        if isinstance(error, Retryable) and closing.left_s and error.after is None and not isinstance(error, QuotaExhausted):
            # The door says when it opens: no need for a backoff of each document's own.
            error.after = closing.left_s

    def _report(self, outcome: Outcome, error: BaseException | None) -> Closing:
        gate, take = self._gate, self._take
        after = _after(error)
        closing = gate.buckets.report(gate.scope, gate.rule, self._holder, outcome, after_s=after, tokens=self._extra, probe=take.probe)
        if outcome in (Outcome.THROTTLED, Outcome.QUOTA):
            gate.watch.throttled(gate.part, gate.provider)
        if closing.newly:
            gate.watch.closed(gate.part, gate.provider, outcome, closing.left_s)
        return closing


def _outcome(error: BaseException | None) -> Outcome:
    match error:
        case None:
            return Outcome.ANSWERED
        case RateLimited():
            return Outcome.THROTTLED
        case QuotaExhausted():
            return Outcome.QUOTA
        case Unavailable():
            return Outcome.FAILED
        case PipelineError():
            return Outcome.ANSWERED
        case _:
            return Outcome.BROKEN_OFF


def _after(error: BaseException | None) -> float | None:
    if isinstance(error, QuotaExhausted):
        return max(0.0, (error.until - datetime.now(UTC)).total_seconds()) if error.until is not None else None
    return error.after if isinstance(error, Retryable) else None
