"""How a collection is searched and where its refusals begin: what people or labelled questions said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Row, select, update

from pipeline import tuning
from pipeline.errors import BadRequest, Conflict, NotFound
from pipeline.tuning import Calibration
from workers.ledger.engine import Database
from workers.ledger.schema import collections
from workers.ledger.work import CollectionRow


def tune(db: Database, row: CollectionRow, changes: Mapping[str, object]) -> None:
    """Change what is named; None takes a setting back. Raises BadRequest, NotFound."""
    unknown = sorted(set(changes) - set(tuning.NAMES))
    if unknown:
        hint = f"There are {', '.join(tuning.NAMES)}."
        raise BadRequest(f"a collection has no setting {unknown[0]!r}", pointer=f"/{unknown[0]}", hint=hint, code="unknown_setting")
    with db.write() as connection:
        present = _locked(connection.execute(_mine(row)).first(), row)
        values: dict[str, Any] = dict(changes)
        tuned = replace(tuning.load(present.search), **values)
        connection.execute(update(collections).where(collections.c.id == row.id).values(search=tuning.dump(tuned)))


def calibrate(db: Database, row: CollectionRow, found: Calibration) -> None:
    """Keep a calibration for the generation that was measured. Raises NotFound, Conflict when another one answers by now."""
    with db.write() as connection:
        present = _locked(connection.execute(_mine(row)).first(), row)
        if present.generation != row.generation:
            hint = "Calibrate again."
            raise Conflict(f"another generation of {row.name!r} answers by now than was measured", hint=hint, code="generation_changed")
        kept = tuning.load_calibrations(present.calibrations) | {row.generation: found}
        connection.execute(update(collections).where(collections.c.id == row.id).values(calibrations=tuning.dump_calibrations(kept)))


def _mine(row: CollectionRow) -> Any:
    return select(collections).where(collections.c.id == row.id, collections.c.status == "live").with_for_update()


def _locked(present: Row[Any] | None, row: CollectionRow) -> Any:
    if present is None:
        raise NotFound(f"there is no collection {row.name!r}", hint="`dujiang collections list` shows those there are.", code="collection_not_found")
    return present
