"""What happens to a document after a failure: again later, never again, or nothing to do."""

from __future__ import annotations

import random
import time
import traceback
from datetime import UTC, datetime

from pipeline.contracts import Stage
from pipeline.errors import Forbidden, Garbled, Gone, PipelineError, QuotaExhausted, RateLimited, Retryable, Skipped, Unauthorised, Unchanged
from workers.ledger.work import Setback, Work

BASE_S = 1.0
CAP_S = 300.0
WAIT_CAP_S = 30.0
"""Backoff while a shared service is away: short, since the first answer frees everything."""
BUG_ATTEMPTS = 2
GARBLED_ATTEMPTS = 3
"""What made no sense three times, seconds apart, will not pass by itself."""
MAX_WAIT_S = 72 * 3600.0
"""How long a document waits for what is away before a person is asked."""


def jitter(tries: int, cap_s: float = CAP_S) -> float:
    """Full jitter: uniform in [base/2, min(cap, base * 2^tries)] seconds, so that no herd comes back at once."""
    return random.uniform(BASE_S / 2, max(BASE_S, min(cap_s, BASE_S * 2.0 ** min(tries, 16))))


def setback(error: PipelineError, work: Work, stage: Stage, *, max_attempts: int, max_wait_s: float = MAX_WAIT_S) -> Setback:
    """Turn a deliberate failure into what the ledger writes."""
    if isinstance(error, Skipped):
        return _plain(error, work, stage, "skipped", unchanged=isinstance(error, Unchanged))
    if isinstance(error, Retryable):
        if not error.costs_attempt:
            if _too_long(error, work, max_wait_s):
                error.detail = f"{error.detail}; this document has waited for {max_wait_s / 3600:.0f} hours"
                error.hint = "When it answers again: `dujiang failures replay`."
                return _plain(error, work, stage, "dead")
            return _plain(error, work, stage, "retry", delay_s=_wait(error, work), costs_attempt=False)
        if work.attempts + 1 < (min(GARBLED_ATTEMPTS, max_attempts) if isinstance(error, Garbled) else max_attempts):
            return _plain(error, work, stage, "retry", delay_s=error.after if error.after is not None else jitter(work.attempts))
    return _plain(error, work, stage, "dead")


def _too_long(error: Retryable, work: Work, max_wait_s: float) -> bool:
    """A quota names its own end; everything else that costs no attempt is bounded by age."""
    return not isinstance(error, QuotaExhausted) and work.waiting_since is not None and time.time() - work.waiting_since > max_wait_s


def _wait(error: Retryable, work: Work) -> float:
    if isinstance(error, QuotaExhausted):
        if error.until is not None:
            return max(1.0, (error.until - datetime.now(UTC)).total_seconds())
        return CAP_S
    if error.after is not None:
        # The service named a time: a little later, so that not all come back in the same instant.
        return error.after + random.uniform(0.0, 0.25 * error.after + 0.25)
    return jitter(work.waits, CAP_S if isinstance(error, RateLimited) else WAIT_CAP_S)


def bug(error: Exception, work: Work, stage: Stage) -> Setback:
    """Anything that is no PipelineError: one more try, then the dead letters with its traceback."""
    status = "retry" if work.attempts + 1 < BUG_ATTEMPTS else "dead"
    return Setback(
        work.document_id,
        stage,
        status,
        code="memory" if isinstance(error, MemoryError) else "bug",
        detail=f"{type(error).__name__} in stage {stage.value}",
        hint="This is a defect of the software: report it with the traceback that `failures show` prints.",
        delay_s=jitter(work.attempts),
        again=bool(work.source_id) and status == "dead",
        trace="".join(traceback.format_exception(error))[-8000:],
    )


def _plain(
    error: PipelineError, work: Work, stage: Stage, status: str, *, delay_s: float = 0.0, costs_attempt: bool = True, unchanged: bool = False
) -> Setback:
    fetched = bool(work.source_id) and stage is Stage.LOAD
    return Setback(
        work.document_id,
        stage,
        status,
        code=error.code,
        detail=error.detail,
        hint=error.hint,
        delay_s=delay_s,
        costs_attempt=costs_attempt,
        unchanged=unchanged,
        # These may end without a new change mark: the next listing asks again.
        again=bool(work.source_id) and status != "retry" and isinstance(error, (Retryable, Forbidden, Unauthorised, Gone)),
        absence="gone" if fetched and isinstance(error, Gone) and work.live_version is not None else "",
        hidden=fetched and isinstance(error, Forbidden),
    )
