"""What is done again and again beside the workers: feed, sweep, tidy, begin what is due, and notice who makes no progress."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

from pipeline.errors import Unavailable
from workers import deleting, erasing, generations, graphing, schedule
from workers.artifacts import compaction
from workers.feeder import Feeder
from workers.ledger import forming, metering, nodes, refs, stalls, sweeping
from workers.processes import node_name
from workers.runtime import Runtime
from workers.sweep import sweep

SWEEP_EVERY_S = 1.0
LOOK_EVERY_S = 5.0
TIDY_EVERY_S = 600.0
COMPACT_EVERY_S = 3600.0
"""It walks through all references: 2 s for those of 100,000 documents."""
STUCK_S = 60.0
YOUNG_PACK_S = 3600.0
"""A pack may be on disk before its batch is committed; younger ones are never taken for orphans."""


class Housekeeping:
    """One turn is cheap when there is nothing to do. Safe to run in the supervisor and in `beat` at once."""

    def __init__(self, feeder: Feeder, runtime: Runtime) -> None:
        self._feeder, self._runtime = feeder, runtime
        self._swept = self._looked = self._said = 0.0
        self._name = node_name(runtime.node, os.getpid())
        self._tidied = self._compacted = time.monotonic()
        self._cleaner: threading.Thread | None = None
        self._graphs = graphing.Looker(feeder, runtime)

    def turn(self) -> None:
        """Feed what waits; sweep and tidy when it is time. Raises Unavailable when the ledger is away."""
        now = time.monotonic()
        if forming.anything_waits(self._feeder.db):
            self._feeder.tick(wait=False)
        self._graphs.turn()
        if now - self._swept >= SWEEP_EVERY_S:
            self._swept = now
            sweep(self._feeder, self._runtime.broker)
            schedule.due(self._feeder.db)
            generations.advance(self._runtime)
            self._clean()
            self._announce(now)
        if now - self._tidied >= TIDY_EVERY_S:
            self._tidied = now
            compact = now - self._compacted >= COMPACT_EVERY_S
            self._compacted = now if compact else self._compacted
            tidy(self._runtime, compact=compact)

    def _clean(self) -> None:
        """Finish deletions, and erase what they left, beside the sweep: a merge may take a while. Killed with this process, it begins again."""
        if (self._cleaner is None or not self._cleaner.is_alive()) and deleting.due(self._runtime):
            self._cleaner = threading.Thread(target=deleting.catch_up, args=(self._runtime,), name="deletions", daemon=True)
            self._cleaner.start()

    def _announce(self, now: float) -> None:
        """Metrics tell from it how long ago somebody swept."""
        if now - self._said >= nodes.EVERY_S:
            self._said = now
            nodes.announce(self._feeder.db, self._name, self._runtime.node, os.getpid(), progress=True)

    def close(self) -> None:
        """Say that it ends; a ledger that is away will forget it by itself."""
        try:
            nodes.withdraw(self._feeder.db, self._name)
        except Unavailable:
            return

    def stuck(self, mine: Sequence[str]) -> list[str]:
        """Nodes of `mine` whose queues hold work and that have neither taken nor finished any for a minute, though alive."""
        now = time.monotonic()
        if now - self._looked < LOOK_EVERY_S:
            return []
        self._looked = now
        try:
            living = nodes.living(self._runtime.db)
        except Unavailable:
            return []
        waiting, busy = stalls.waiting(self._runtime.db, STUCK_S), stalls.owners(self._runtime.db)
        found: list[str] = []
        for node in living:
            idle = node.progress_s > STUCK_S
            if node.name in mine and idle and waiting & set(node.queues) and not any(owner.startswith(f"{node.name}:") for owner in busy):
                found.append(node.name)
        return found


def tidy(runtime: Runtime, *, compact: bool = True) -> None:
    """Forget what is past its retention: closed batches, artifacts of retired versions, packs that nobody names, and with `compact` parts of them."""
    sweeping.tidy(runtime.db)
    generations.drop_surplus(runtime)
    deleting.finish(runtime)
    deleting.drop_late(runtime)
    erasing.erase(runtime)
    refs.forget_old(runtime.db, time.time() - runtime.settings.artifacts_keep_days * 86400.0)
    compaction.tidy(runtime.db, runtime.artifacts, young_s=YOUNG_PACK_S, compact=compact)
    metering.weigh(runtime.db)
