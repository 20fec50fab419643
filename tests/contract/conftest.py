"""What the contract suites of the ledger share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from workers.ledger.engine import Database


@pytest.fixture(scope="session")
def empty_ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file to be copied: that costs a tenth of what migrating does."""
    path = tmp_path_factory.mktemp("empty") / "ledger.db"
    database = Database(f"sqlite:///{path}")
    database.migrate()
    assert database.expunge()
    database.close()
    return path


@pytest.fixture(params=["sqlite", "postgresql"])
def db(request: pytest.FixtureRequest, tmp_path: Path, empty_ledger: Path) -> Iterator[Database]:
    """A fresh ledger, on either database."""
    if request.param == "sqlite":
        url = f"sqlite:///{shutil.copyfile(empty_ledger, tmp_path / 'ledger.db')}"
    else:
        url = request.getfixturevalue("postgres_database")
    database = Database(url)
    yield database
    database.close()
