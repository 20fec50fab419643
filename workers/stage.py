"""`run_stage`: the only loop body there is. No Celery here, so this is what unit tests and the inline runner drive."""

from __future__ import annotations

import logging
import threading
import time
from types import TracebackType

from pipeline.contracts import Stage
from pipeline.errors import Unavailable
from workers import late
from workers.desk import Desk, Tools
from workers.ledger import batches, losses
from workers.ledger.work import Batch, Issue
from workers.logs import bound
from workers.stages import STAGES

log = logging.getLogger("dujiang.stage")


def run_stage(batch_id: int, token: int, tools: Tools) -> list[Issue] | None:
    """Do one batch's stages and commit them, once.

    Safe to repeat: a message delivered twice finds the batch leased or done and stops; a crash at any line leaves
    the lease to run out, and the work is issued again under a higher token.

    Returns the messages to publish now, or None when there was nothing to do or the lease was lost meanwhile.
    Raises: Unavailable when the ledger itself is away, the lease then runs out; a bug that strikes several documents at once,
    after their batch was cut in halves.
    """
    batch = batches.claim(tools.db, batch_id, token, tools.owner, lease_s=tools.lease_s, deadline_s=tools.deadline_s)
    if batch is None:
        return None
    with bound(run=batch.documents[0].run_id, batch=batch.id, token=batch.token):
        return _run(batch, tools)


def _run(batch: Batch, tools: Tools) -> list[Issue] | None:
    started = time.monotonic()
    desk = Desk(batch, tools)
    try:
        with Lease(batch, tools):
            for stage in batch.stages:
                before = time.monotonic()
                with bound(stage=stage.value):
                    desk.whole(stage, STAGES[stage])
                    _report(desk, stage, time.monotonic() - before)
                if not desk.alive():
                    break
    except Exception as error:
        log.error("stage broke", exc_info=error)
        # The sweep sends the halves.
        losses.expire(tools.db, batch.id, batch.token, reason=f"{type(error).__name__} in one of stages {', '.join(batch.stages)}")
        raise
    issues = batches.commit(tools.db, batch, desk.outcome(time.monotonic() - started))
    if issues is None:
        log.warning("lease lost", extra={"stage": batch.stages[0].value})
    if Stage.INDEX in batch.stages:
        _take_back(desk)
    return issues


def _take_back(desk: Desk) -> None:
    try:
        late.undo(desk.tools, desk.batch, {item.work.document_id for item in desk.items if item.reached is Stage.INDEX})
    except Unavailable as error:
        # The batch is committed; what is too much in the store an audit finds.
        log.warning("not taken back", extra={"code": error.code})


def _report(desk: Desk, stage: Stage, seconds: float) -> None:
    setbacks = {item.work.document_id: item.setback for item in desk.items if item.setback is not None}
    desk.tools.spans.stage(desk.batch, stage, seconds, setbacks)
    stopped = [item for item in desk.items if item.setback is not None and item.setback.stage == stage]
    log.info("stage done", extra={"documents": len(desk.items), "stopped": len(stopped), "seconds": round(seconds, 3)})
    for item in stopped:
        setback = item.setback
        if setback is not None and setback.status != "skipped":
            fields = {"document": setback.document_id, "attempt": item.work.attempts + 1, "status": setback.status, "code": setback.code}
            log.warning("document stopped", extra=fields)


class Lease:
    """Renews a batch's lease every third of it, from a thread, until the block ends; never past the deadline."""

    def __init__(self, batch: Batch, tools: Tools) -> None:
        self._batch, self._tools = batch, tools
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lease-{batch.id}", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(self._tools.lease_s / 3):
            try:
                if not batches.renew(self._tools.db, self._batch.id, self._batch.token, lease_s=self._tools.lease_s):
                    return
            except Unavailable:
                continue
