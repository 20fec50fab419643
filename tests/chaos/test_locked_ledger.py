"""Somebody holds the ledger's write lock for long: everybody waits, nobody fails, nothing is lost."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.chaos.proof import Begin
from tests.system import System, until


@pytest.mark.parametrize("seconds", [pytest.param(3.0, id="3 s"), pytest.param(10.0, id="10 s", marks=pytest.mark.full)])
def test_a_ledger_that_is_locked_in_mid_run_is_waited_for(system: System, begin: Begin, seconds: float) -> None:
    import time

    tenant = f"locked-{seconds:.0f}"
    trial = begin(system, tenant)
    until(lambda: system.rows("SELECT 1 FROM batches WHERE tenant = ? AND status = 'leased'", tenant), 20.0, "somebody is at work")
    with closing(sqlite3.connect(ledger(system), timeout=30, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        end = time.monotonic() + seconds
        stood = trial.done()
        until(lambda: time.monotonic() > end, seconds + 5, "time passes")
        assert trial.done() == stood
        connection.execute("ROLLBACK")
    trial.prove()
    assert system.rows("SELECT count(*) FROM batches WHERE tenant = ? AND status = 'lost'", tenant) == [(0,)]


def ledger(system: System) -> Path:
    return Path(system.settings.ledger_url.removeprefix("sqlite:///"))
