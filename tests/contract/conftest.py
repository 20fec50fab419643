"""What the contract suites of the ledger share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from workers.ledger.engine import Database


@pytest.fixture(params=["sqlite", "postgresql"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A fresh ledger, on either database."""
    url = f"sqlite:///{tmp_path}/ledger.db" if request.param == "sqlite" else request.getfixturevalue("postgres_database")
    database = Database(url)
    database.migrate()
    yield database
    database.close()
