"""A collection's search settings and calibrations, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.errors import BadRequest, Conflict, NotFound
from pipeline.tuning import Calibration, Tuning
from tests.contract.test_ledger import collection
from workers.ledger import catalog, removal, tuned
from workers.ledger.engine import Database

FOUND = Calibration(0.31, 0.98, 95, 5, 90, 10, 0.05)


def test_what_is_named_changes_and_the_rest_stays(db: Database) -> None:
    row = collection(db)
    assert row.search == Tuning() and row.calibration is None
    tuned.tune(db, row, {"merge": "rrf", "top_k": 4})
    tuned.tune(db, row, {"top_k": None, "lexical_weight": 0.0})
    assert catalog.find(db, row.tenant, row.name).search == Tuning(merge="rrf", lexical_weight=0.0)


def test_a_wrong_setting_changes_nothing(db: Database) -> None:
    row = collection(db)
    for wrong in ({"merge": "sum"}, {"top_k": 0}, {"colour": 1}, {"top_k": 3, "widen": "all"}):
        with pytest.raises(BadRequest):
            tuned.tune(db, row, wrong)
    assert catalog.find(db, row.tenant, row.name).search == Tuning()


def test_a_calibration_holds_for_its_generation_only(db: Database) -> None:
    row = collection(db)
    tuned.calibrate(db, row, FOUND)
    known = catalog.find(db, row.tenant, row.name)
    assert known.calibration == FOUND
    assert replace(known, generation=known.generation + 1).calibration is None
    with pytest.raises(Conflict):
        tuned.calibrate(db, replace(known, generation=known.generation + 1), FOUND)


def test_a_collection_made_anew_under_the_name_starts_without(db: Database) -> None:
    row = collection(db)
    tuned.tune(db, row, {"top_k": 4})
    removal.begin(db, row)
    removal.forget_collection(db, row)
    with pytest.raises(NotFound):
        tuned.tune(db, row, {"top_k": 5})
    assert collection(db).search == Tuning()
