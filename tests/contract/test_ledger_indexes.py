"""What is asked again and again reads an index, and no row that it does not want."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from tests.contract.test_ledger import WINDOWS, begin, collection
from workers.ledger import forming, standing
from workers.ledger.batches import counts_by_queue
from workers.ledger.engine import Database


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    """SQLite tells before it runs a statement which indexes it would use."""
    database = Database(f"sqlite:///{tmp_path}/ledger.db")
    database.migrate()
    begin(database, collection(database), "abc")
    yield database
    database.close()


def plans(db: Database, act: Any) -> list[str]:
    """How each SELECT that `act` sends would be run."""
    found: list[str] = []

    def look(_connection: Any, cursor: Any, statement: str, parameters: Any, _context: Any, _many: bool) -> None:
        if statement.lstrip().startswith("SELECT"):
            other = cursor.connection.cursor()
            other.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
            found.append("; ".join(row[3] for row in other.fetchall()))

    event.listen(db.engine, "before_cursor_execute", look)
    act()
    event.remove(db.engine, "before_cursor_execute", look)
    assert found
    return found


def test_the_feeder_finds_waiting_documents_by_their_index(db: Database) -> None:
    looked = [plan for plan in plans(db, lambda: forming.form(db, WINDOWS)) if "documents" in plan]
    assert any("documents_waiting" in plan for plan in looked)
    assert not any("SCAN documents" in plan and "USING" not in plan for plan in looked), looked
    assert all("documents" in plan and "INDEX" in plan for plan in plans(db, lambda: forming.anything_waits(db)))


def test_open_batches_are_counted_by_their_index(db: Database) -> None:
    def count() -> None:
        with db.read() as connection:
            counts_by_queue(connection)

    assert all("batches_open" in plan for plan in plans(db, count))


def test_status_and_metrics_count_documents_without_reading_their_rows(db: Database) -> None:
    looked = [plan for plan in plans(db, lambda: standing.look(db)) if "documents" in plan]
    assert looked and all("INDEX documents_" in plan for plan in looked), looked
    assert any("COVERING INDEX documents_waiting" in plan for plan in looked)
