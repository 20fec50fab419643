"""One line that says how far a run is: counts per stage, rate, time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from workers.views import RunView

EVERY_S = 5.0
"""Seconds between lines where there is no terminal."""

_ORDER = ("load", "parse", "chunk", "embed", "index")


def line(run: RunView, rate: float | None) -> str:
    """
    Args:
        rate: finished documents a second; None while unknown.
    """
    finished = done(run)
    parts = [f"{finished}/{run.discovered}"]
    stages = [f"{name} {run.stages[name]}" for name in _ORDER if run.stages.get(name)]
    if stages:
        parts.append("  ".join(stages))
    parts += [f"{name} {count}" for name in ("indexed", "unchanged", "skipped", "failed") if (count := getattr(run, name))]
    if rate:
        parts.append(f"{rate:.1f}/s")
        left = run.discovered - finished
        if left > 0:
            parts.append(f"{clock(left / rate)} left")
    if run.status == "paused":
        parts.append("paused")
    elif run.ahead:
        parts.append(f"{run.ahead} ahead of it")
    return " | ".join(parts)


def done(run: RunView) -> int:
    """Documents whose part in this run is over."""
    return run.indexed + run.unchanged + run.skipped + run.failed + run.cancelled


def clock(seconds: float) -> str:
    """1:05, 2:03:04."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    minutes, last = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{last:02}" if hours else f"{minutes}:{last:02}"


class Progress:
    """Called with each state of a run. A terminal shows one line that is rewritten; a file gets a line now and then."""

    def __init__(self, stream: TextIO | None = None, *, now: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._now = stream or sys.stderr, now
        self._tty = self._stream.isatty()
        self._begun: tuple[float, int] | None = None
        self._last, self._shown = float("-inf"), ""
        self.run_id = ""
        """Of the run that was seen last."""

    def __call__(self, run: RunView) -> None:
        moment, self.run_id = self._now(), run.run_id
        if self._begun is None:
            # what was there before we looked says nothing about the speed
            self._begun = (moment, done(run))
        elapsed, finished = moment - self._begun[0], done(run) - self._begun[1]
        text = line(run, finished / elapsed if elapsed > 0 and finished > 0 else None)
        if self._tty:
            self._stream.write(f"\r{text[: _columns() - 1]}\x1b[K")
            self._stream.flush()
            self._shown = text
        elif text != self._shown and (moment - self._last >= EVERY_S or run.finished):
            self._stream.write(f"{text}\n")
            self._stream.flush()
            self._last, self._shown = moment, text

    def end(self) -> None:
        """Leave the rewritten line."""
        if self._tty and self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def _columns() -> int:
    from shutil import get_terminal_size

    return get_terminal_size().columns
