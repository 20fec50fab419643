"""Hosts that begin to work on a new ledger in PostgreSQL at the same moment."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from sqlalchemy import func, insert, select, text

from tests.contract.test_ledger import WINDOWS
from tests.system import until
from workers.ledger import forming, schema
from workers.ledger.engine import Database

WAITS = text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")


def test_of_two_feeders_that_are_the_first_the_later_one_waits_and_goes_on(postgres_database: str) -> None:
    with closing(Database(postgres_database)) as db, ThreadPoolExecutor(1) as other:
        with db.write() as earlier:
            earlier.execute(insert(schema.locks).values(name="feeder", owner=""))
            later = other.submit(forming.form, db, WINDOWS)

            def waits() -> bool:
                with db.read() as connection:
                    return bool(connection.scalar(WAITS))

            until(lambda: waits() or later.done(), 30.0, "the later one waits for the earlier one")
        assert later.result(60.0) == []
        with db.read() as connection:
            assert connection.scalar(select(func.count()).select_from(schema.locks)) == 1
