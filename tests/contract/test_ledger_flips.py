"""What others may do while a collection changes its generation, on both ledgers."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.contract.test_ledger import WINDOWS, begin, claim, collection
from tests.contract.test_ledger_generations import BASE, build, commit, work
from workers.ledger import flipping, forming
from workers.ledger.batches import Batch
from workers.ledger.engine import Database

LONGEST_S = 30.0


def test_who_claims_while_a_collection_flips_loses_nothing(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL lets work on other collections through at once; on SQLite it waits for the end of the transaction."""
    row = collection(db)
    begin(db, row, "abc", hash_="a" * 64)
    work(db)
    building = build(db, row)
    work(db)
    begin(db, collection(db, "other"), "xyz")
    (issue,) = forming.form(db, WINDOWS)
    claimed: list[Batch | None] = []
    claimer = threading.Thread(target=lambda: claimed.append(claim(db, issue)))
    answer = flipping._answer  # pyright: ignore[reportPrivateUsage]

    def meanwhile(*given: Any) -> None:
        claimer.start()
        if not db.sqlite:
            claimer.join(LONGEST_S)
            assert claimed
        answer(*given)

    monkeypatch.setattr(flipping, "_answer", meanwhile)
    assert flipping.flip(db, building, BASE)
    claimer.join(LONGEST_S)
    assert claimed and claimed[0] is not None and {one.key for one in claimed[0].documents} == set("xyz")
    assert commit(db, claimed[0])
