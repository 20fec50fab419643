"""The same stages without a broker: one process, one thread, one batch after the other."""

from __future__ import annotations

from collections import deque
from time import sleep

from workers import feeder as feeding
from workers.feeder import Feeder
from workers.ledger import browse, forming, sweeping
from workers.ledger.work import Issue
from workers.runtime import Runtime
from workers.stage import run_stage
from workers.views import RunView

IDLE_S = 0.05


def run_inline(runtime: Runtime, run_id: str) -> RunView:
    """Drive a run to its end here; retries wait for their time, and what another process left undone for its lease. Gives the finished run."""
    pending: deque[Issue] = deque(sweeping.wiped(runtime.db))
    windows = feeding.windows(runtime.profile, processes=1, threads=1)
    feeder = Feeder(runtime.db, windows, pending.extend)
    while True:
        while pending:
            issue = pending.popleft()
            feeder.send(run_stage(issue.batch_id, issue.token, runtime) or [])
        if feeder.tick():
            continue
        view = browse.run(runtime.db, run_id)
        if view.finished:
            return view
        pending.extend(sweeping.expired(runtime.db))
        if not pending and not forming.anything_waits(runtime.db):
            sleep(IDLE_S)
