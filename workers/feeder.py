"""The feeder: turns waiting documents into batches and messages, within a bounded window."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pipeline.contracts import Stage
from pipeline.errors import Unavailable
from pipeline.protocols import EmbedderProfile
from workers import queues
from workers.ledger import forming
from workers.ledger.engine import Database
from workers.ledger.work import Issue

Publish = Callable[[list[Issue]], None]
"""Hands messages to the broker; raises Unavailable when it is away."""


def windows(profile: EmbedderProfile, *, processes: int, threads: int) -> Mapping[Stage, forming.Window]:
    """Batches under way per stage: enough that nobody idles, few enough that Redis holds next to nothing.

    A model in this process gets small batches, about two seconds of its work.
    """
    chunks = 128 if profile.in_process and profile.name != "hashed" else queues.MAX_CHUNKS
    computing = forming.Window(2 * processes + 2)
    return {
        Stage.LOAD: computing,
        Stage.PARSE: computing,
        Stage.CHUNK: computing,
        Stage.EMBED: forming.Window((processes if profile.in_process else threads) + 2, chunks),
        Stage.INDEX: forming.Window(8, chunks),
    }


Pace = Callable[[Mapping[Stage, forming.Window]], Mapping[Stage, forming.Window]]
"""Windows as the services behind the stages allow them now. A stage that is left out forms nothing."""


def unhindered(windows: Mapping[Stage, forming.Window]) -> Mapping[Stage, forming.Window]:
    return windows


@dataclass(frozen=True, slots=True)
class Feeder:
    """Everything that `tick` needs."""

    db: Database
    windows: Mapping[Stage, forming.Window]
    publish: Publish
    pace: Pace = unhindered

    def tick(self, *, wait: bool = True) -> int:
        """Form and publish what fits now; returns how many batches. A broker that is away costs nothing: the sweep sends again."""
        issues = forming.form(self.db, self.pace(self.windows), wait=wait)
        self.send(issues)
        return len(issues)

    def send(self, issues: list[Issue]) -> bool:
        """Publish batches that the ledger already holds; False when the broker is away."""
        if not issues:
            return True
        try:
            self.publish(issues)
        except Unavailable:
            return False
        forming.published(self.db, issues)
        return True
