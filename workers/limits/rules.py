"""What limits are made of, wherever they are kept: buckets of requests and tokens, slots, and a door that closes.

The door of a scope closes for everybody when the service says 429 (for as long as it says), when its quota is used up, or when it fails
again and again. Once its time is over, one request goes through as a probe: if it is answered, the door is open again.

A service that says 429 to many is asked less often afterwards: at half the rate that it took, and 10 % more after each second without
a 429, until the rate is what is configured, or twice what it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

FAILURES = 5
"""Failures in a row that close the door: 1 % of failing requests never does."""
FAILING_S = 60.0
"""Failures further apart do not count as a row."""
COOL_S, COOL_MOST_S = 1.0, 5.0
"""How long it stays closed after failures, doubled by each probe that fails. A probe is cheap, and everybody waits for it."""
PAUSE_S, PAUSE_MOST_S = 0.25, 30.0
"""The same after a 429 that names no time."""
QUOTA_S = 60.0
"""The same when a quota is used up until nobody knows when."""
CLOSED_MOST_S = 900.0
"""However long a service says: a person may have raised the limit meanwhile."""
PROBE_S = 10.0
"""A probe that has not come back by then is not waited for any longer."""
HEADROOM = 0.95
"""Part of a configured rate that is used: on their way to the server requests come closer together."""
QUIET_S = 1.0
GROWTH = 1.1
SHARE, SMOOTH = 0.125, 1 / 32
"""Part of the requests that gets a 429, smoothed over the last 32, from which on the rate is halved. A few in a hundred are noise."""
GLANCE_S = 0.25
"""Shortest time from which a rate is told."""
SLOWEST = 0.5
"""Requests a second that are left when everything else has been halved away."""
LEASE_S = 15.0
"""A slot whose holder says nothing for so long is free again."""
RENEW_S = 4.0
KEEP_S = 3600.0
"""What nobody has used for so long is forgotten."""
KEEP_MOST_S = 2 * 86400.0
"""A bucket that fills more slowly than that is forgotten before it is full."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What one scope allows. 0 means any number."""

    rate: float = 0.0
    """Requests a second."""
    burst: float = 1.0
    """Requests that may go at once after a pause."""
    tpm: float = 0.0
    """Tokens a minute. A request goes when the tokens of those before it are worked off, however many it has itself."""
    slots: int = 0
    """Requests at once."""


class Said(StrEnum):
    """Answer to who wants to make a request."""

    GO = "go"
    LATER = "later"
    """Paid for: it is this one's turn after the wait."""
    RATE = "rate"
    """Not its turn within its patience; nothing was taken."""
    SLOTS = "slots"
    PROBING = "probing"
    THROTTLED = "throttled"
    QUOTA = "quota"
    DOWN = "down"


CLOSED = frozenset({Said.THROTTLED, Said.QUOTA, Said.DOWN})


@dataclass(frozen=True, slots=True)
class Take:
    said: Said
    wait_s: float = 0.0
    probe: bool = False
    """This request decides whether the door opens."""
    watched: bool = False
    """Something went wrong lately: a good answer is news."""


class Outcome(StrEnum):
    """How a request ended."""

    ANSWERED = "answered"
    """Whatever the answer was, as long as it was not one of the others."""
    THROTTLED = "throttled"
    QUOTA = "quota"
    FAILED = "failed"
    BROKEN_OFF = "broken_off"
    """By us: nothing is known of the service."""


@dataclass(frozen=True, slots=True)
class Closing:
    """What a report came to."""

    left_s: float = 0.0
    """Seconds for which the door is closed now."""
    newly: bool = False


@dataclass(frozen=True, slots=True)
class Standing:
    """One scope at one look."""

    why: str = ""
    """As in `CLOSED`; empty: the door is open."""
    left_s: float = 0.0
    """Seconds until a probe may go; 0 also while one is under way."""
    debt_s: float = 0.0
    """Seconds until a new request would have its turn."""


class Buckets(Protocol):
    """Keeps the scopes. Safe for threads."""

    def take(self, scope: str, rule: Rule, holder: str, *, tokens: int, patience_s: float, paid: bool) -> Take:
        """Ask for one request; `paid` when its turn has come after a LATER."""
        ...

    def report(self, scope: str, rule: Rule, holder: str, outcome: Outcome, *, after_s: float | None, tokens: int, probe: bool) -> Closing:
        """Say how a request ended, and give its slot back. `tokens` is by how much the estimate was too low."""
        ...

    def close_for(self, scope: str, seconds: float) -> None:
        """A 429 that was seen outside of a request."""
        ...

    def renew(self, scope: str, holders: list[str]) -> None:
        """Requests that still run keep their slots."""
        ...

    def look(self, scope: str) -> Standing: ...
