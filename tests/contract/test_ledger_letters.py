"""Dead letters, control and shares in the ledger, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from pipeline.contracts import Lane, Stage
from tests.contract.test_ledger import WINDOWS, begin, claim, collection
from workers.ledger import batches, browse, control, failing, forming, intake, schema, shares
from workers.ledger.engine import Database
from workers.ledger.intake import Submission
from workers.ledger.work import Advance, CollectionRow, Outcome, Setback
from workers.views import Selection

EVERYTHING = Selection("default")


def fail(db: Database, run: str, names: str, *, stage: Stage = Stage.PARSE, code: str = "malformed") -> CollectionRow:
    """Documents that died in a stage."""
    row = collection(db, run)
    begin(db, row, names)
    for issue in forming.form(db, WINDOWS):
        batch = claim(db, issue)
        assert batch is not None
        setbacks = tuple(Setback(work.document_id, stage, "dead", code, "cannot be read", "Repair it.") for work in batch.documents)
        assert batches.commit(db, batch, Outcome(setbacks=setbacks)) is not None
    return row


def status(db: Database, document: str) -> tuple[str, str]:
    with db.read() as connection:
        row = connection.execute(select(schema.documents).where(schema.documents.c.id == document)).one()
        return row.stage, row.status


def test_a_replay_is_a_run_of_its_own_that_begins_at_the_stage_that_failed_and_balances(db: Database) -> None:
    fail(db, "handbook", "abc")
    [number] = failing.replay(db, EVERYTHING)
    view = browse.run(db, browse.run_name(number))
    assert (view.discovered, view.failed, view.status) == (3, 0, "queued")
    assert status(db, "handbook-a") == ("parse", "ready")
    assert browse.failures(db, tenant="default", collection="", run_id="", code="", limit=9, after="").data == ()
    [issue] = forming.form(db, WINDOWS)
    batch = claim(db, issue)
    assert batch is not None and batch.stages[0] is Stage.PARSE
    advances = tuple(Advance(work.document_id, Stage.CHUNK, "a", 1) for work in batch.documents[:2])
    last = Setback(batch.documents[2].document_id, Stage.PARSE, "dead", "malformed", "still bad", "Repair it.")
    batches.commit(db, batch, Outcome(advances=advances, setbacks=(last,)))
    control.stop(db, number)
    ended = browse.run(db, browse.run_name(number))
    assert (ended.discovered, ended.failed, ended.cancelled, ended.status) == (3, 1, 2, "cancelled")


def test_a_second_replay_finds_nothing_to_do(db: Database) -> None:
    fail(db, "handbook", "ab")
    assert len(failing.replay(db, EVERYTHING)) == 1
    assert failing.replay(db, EVERYTHING) == []


@pytest.mark.parametrize(
    ("selection", "found"),
    [
        (Selection("default"), {"handbook": 2, "other": 3}),
        (Selection("default", collections=("other",)), {"other": 3}),
        (Selection("default", code="poison"), {"other": 3}),
        (Selection("default", stage="parse"), {"handbook": 2}),
        (Selection("default", document_ids=("handbook-a", "other-x")), {"handbook": 1, "other": 1}),
        (Selection("default", run_id="run_1"), {"handbook": 2}),
        (Selection("another"), {}),
    ],
)
def test_dead_letters_are_selected_by_document_collection_run_code_and_stage(db: Database, selection: Selection, found: dict[str, int]) -> None:
    fail(db, "handbook", "ab")
    fail(db, "other", "xyz", stage=Stage.EMBED, code="poison")
    assert failing.count(db, selection) == found
    assert len(failing.replay(db, selection)) == len(found)


def test_a_discarded_letter_leaves_the_list_and_the_next_ingest_takes_the_document_up_again(db: Database) -> None:
    row = fail(db, "handbook", "a")
    assert failing.discard(db, EVERYTHING) == 1
    assert failing.count(db, EVERYTHING) == {}
    assert status(db, "handbook-a")[1] == "skipped"
    again = intake.open_run(db, row, source="test", lane=Lane.BULK)
    assert intake.submit(db, again, row, Lane.BULK, [Submission("handbook-a", "a", path="/a", source_hash="a", fingerprint="f")]) == 1


def test_cancelling_a_run_that_only_waits_for_another_leaves_the_other_one_working(db: Database) -> None:
    row = collection(db)
    first, second = begin(db, row, "ab"), begin(db, row, "ab")
    control.stop(db, second)
    assert browse.run(db, browse.run_name(second)).cancelled == 2
    still = browse.run(db, browse.run_name(first))
    assert (still.cancelled, still.finished) == (0, False)
    assert len(forming.form(db, WINDOWS)) == 1


def test_nothing_is_formed_for_a_paused_collection_and_everything_is_after_it_goes_on(db: Database) -> None:
    row = collection(db)
    begin(db, row, "ab")
    control.hold_collection(db, row.id, paused=True)
    assert forming.form(db, WINDOWS) == [] and not forming.anything_waits(db)
    control.hold_collection(db, row.id, paused=False)
    assert forming.anything_waits(db) and len(forming.form(db, WINDOWS)) == 1


def test_a_cancelled_document_is_not_committed_by_the_worker_that_held_it(db: Database) -> None:
    row = collection(db)
    run = begin(db, row, "ab")
    [issue] = forming.form(db, WINDOWS)
    batch = claim(db, issue)
    assert batch is not None
    assert control.stop_all(db, collection_id=row.id) == [run]
    batches.commit(db, batch, Outcome(advances=tuple(Advance(work.document_id, Stage.CHUNK, "a", 1) for work in batch.documents)))
    assert status(db, "handbook-a")[1] == "cancelled"
    assert browse.run(db, browse.run_name(run)).cancelled == 2


def test_tenants_get_batches_by_their_weight(db: Database) -> None:
    heavy, light = collection(db, "h", "heavy"), collection(db, "l", "light")
    shares.weigh(db, "heavy", 3.0)
    for row in (light, heavy):
        run = intake.open_run(db, row, source="test", lane=Lane.BULK)
        items = [Submission(f"{row.name}{n:04}", str(n), path="/x", size=10, source_hash="a", fingerprint="f", route="fused") for n in range(1000)]
        intake.submit(db, run, row, Lane.BULK, items)
    formed = [db_tenant(db, issue.batch_id) for issue in forming.form(db, WINDOWS)]
    assert len(formed) == 8 and formed.count("heavy") == 6
    assert [(view.name, view.weight) for view in shares.every(db)] == [("heavy", 3.0), ("light", 1.0)]


def db_tenant(db: Database, batch_id: int) -> str:
    with db.read() as connection:
        return str(connection.scalar(select(schema.batches.c.tenant).where(schema.batches.c.id == batch_id)))
