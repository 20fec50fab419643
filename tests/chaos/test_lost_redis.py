"""Redis holds only what may be lost: emptied or killed in mid-run, the run finishes and builds the same."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.system import Counts, System, until

BULK = "dujiang.dujiang.parse.bulk"


def done(system: System, tenant: str) -> int:
    return int(system.rows("SELECT count(*) FROM documents WHERE tenant = ? AND status = 'done'", tenant)[0][0])


def wait_for_progress(system: System, tenant: str, number: int = 1) -> None:
    until(lambda: done(system, tenant) >= number, 30.0, f"{number} documents are done")


def test_messages_that_redis_forgot_are_sent_again(system: System, corpus: Path, undisturbed: Counts) -> None:
    """The node is stopped while the queue fills, so that there is something to forget."""
    node = system.child("compute")
    os.kill(node, signal.SIGSTOP)
    try:
        run = system.ingest(corpus, tenant="forgotten")
        with system.redis() as client:
            until(lambda: client.llen(BULK), 15.0, "messages wait in the queue")
            client.flushall()
    finally:
        os.kill(node, signal.SIGCONT)
    assert system.counts(system.finish(run), "forgotten") == undisturbed
    again = system.rows("SELECT count(*) FROM batches WHERE tenant = 'forgotten' AND token > 1")[0][0]
    assert again > 0, "nothing was lost"


def test_redis_emptied_again_and_again_in_mid_run_costs_nothing(system: System, corpus: Path, undisturbed: Counts) -> None:
    run = system.ingest(corpus, tenant="flushed")
    for number in (1, 80, 160):
        wait_for_progress(system, "flushed", number)
        with system.redis() as client:
            client.flushall()
    assert system.counts(system.finish(run), "flushed") == undisturbed


def test_redis_killed_in_mid_run_is_started_again_and_the_run_finishes(system: System, corpus: Path, undisturbed: Counts) -> None:
    run = system.ingest(corpus, tenant="killed")
    wait_for_progress(system, "killed")
    before = system.child("redis")
    os.kill(before, signal.SIGKILL)
    assert system.counts(system.finish(run), "killed") == undisturbed
    assert system.child("redis") != before
