"""Builds of a collection in the ledger, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, inspect, select, update

from pipeline.contracts import Stage
from pipeline.errors import Conflict
from tests.contract.test_ledger import WINDOWS, begin, claim, collection
from workers.ledger import batches, beginning, browse, catalog, control, flipping, forming, generations, refs, removal, schema, shadows
from workers.ledger.batches import Batch
from workers.ledger.engine import Database
from workers.ledger.generations import Building
from workers.ledger.schema import artifact_refs, collections, documents
from workers.ledger.work import Advance, CollectionRow, Outcome, Ref, Setback

BASE = "b" * 32


@pytest.fixture
def row(db: Database) -> CollectionRow:
    """A collection in which a, b and c answer."""
    made = collection(db)
    begin(db, made, "abc", hash_="a" * 64)
    work(db)
    return made


def commit(db: Database, batch: Batch, *, chunks: int = 3, dead: str = "") -> bool:
    """All stages of a batch, with an output for each; documents whose key is in `dead` fail in the last of them."""
    last = batch.stages[-1]
    failing = [one for one in batch.documents if one.key in dead]
    advances = tuple(Advance(one.document_id, last, one.source_hash, chunks) for one in batch.documents if one not in failing)
    setbacks = tuple(Setback(one.document_id, last, "dead", "refused", "the model refuses it", "Leave it out.") for one in failing)
    made = [stage for stage in batch.stages if stage is not Stage.INDEX]
    named = tuple(Ref(one.document_id, one.version, stage, "k", f"{stage.value}/{batch.id}", 0, 1) for one in batch.documents for stage in made)
    return batches.commit(db, batch, Outcome(advances, setbacks, named)) is not None


def work(db: Database, *, chunks: int = 3, dead: str = "", until: Stage | None = None) -> Batch | None:
    """Do what waits. With `until`, stop at a batch of that stage, and give it: claimed, not committed."""
    while issues := forming.form(db, WINDOWS) or waiting(db):
        for issue in issues:
            batch = claim(db, issue)
            if batch is not None and until in batch.stages:
                return batch
            if batch is not None:
                commit(db, batch, chunks=chunks, dead=dead if Stage.EMBED in batch.stages else "")
    return None


def waiting(db: Database) -> list[batches.Issue]:
    """Successors that a commit made and nobody has claimed."""
    with db.read() as connection:
        rows = connection.execute(select(schema.batches).where(schema.batches.c.status == "queued")).all()
    return [batches.Issue(one.id, one.token, batches.stages_of(one.stages)[0], one.queue) for one in rows]


def build(db: Database, row: CollectionRow, chunker: str = "windows:64/8") -> Building:
    """Begin the next generation, with shadows for all."""
    building = beginning.begin(db, row, generations.options_of_row(row) | {"chunker": chunker})
    shadows.follow(db, building, BASE)
    return building


def now(db: Database, name: str = "handbook") -> CollectionRow:
    return catalog.find(db, "default", name)


def look(db: Database, key: str, *, shadow: bool = False) -> Any:
    """A document's row, or that of its shadow."""
    with db.read() as connection:
        of = documents.c.shadow_of != "" if shadow else documents.c.shadow_of == ""
        return connection.execute(select(documents).where(documents.c.key == key, of)).one()


def statuses(db: Database, row: CollectionRow) -> list[tuple[int, str]]:
    return [(one.generation, one.status) for one in generations.listed(db, row.id)]


def packs(db: Database, document_id: str) -> dict[str, str]:
    """Stage → pack of a document's outputs, whatever their version; no two of one stage."""
    with db.read() as connection:
        rows = connection.execute(select(artifact_refs.c.stage, artifact_refs.c.pack).where(artifact_refs.c.document_id == document_id)).all()
    assert len({one.stage for one in rows}) == len(rows)
    return {one.stage: one.pack for one in rows}


def orphans(db: Database) -> list[str]:
    """Documents that outputs are named for and that no row is there for."""
    known = select(documents.c.id)
    with db.read() as connection:
        return list(connection.scalars(select(artifact_refs.c.document_id).where(artifact_refs.c.document_id.not_in(known)).distinct()))


def test_a_ledger_that_was_migrated_is_what_the_schema_says(db: Database) -> None:
    """An index that is missing is noticed by nobody but the clock."""
    there = inspect(db.engine)
    for table in schema.metadata.sorted_tables:
        assert {one["name"] for one in there.get_columns(table.name)} == {one.name for one in table.columns}, table.name
        assert {str(one["name"]) for one in there.get_indexes(table.name) if not one.get("duplicates_constraint")} == {
            str(one.name) for one in table.indexes
        }, table.name


def test_a_build_begins_at_chunk_from_the_parsed_text_that_is_kept(db: Database, row: CollectionRow) -> None:
    with db.write() as connection:
        connection.execute(update(documents).values(live_fingerprint="f" * 16 + BASE[:16]))
    building = build(db, row)
    with db.read() as connection:
        found = connection.execute(select(documents).where(documents.c.collection_id == building.collection.id)).all()
    assert {(one.stage, one.status, one.version) for one in found} == {("chunk", "ready", 1)} and len(found) == 3
    assert all(set(packs(db, one.id)) == {"load", "parse"} for one in found)
    assert browse.run(db, browse.run_name(building.run_id)).discovered == 3


def test_what_another_parser_made_is_parsed_again(db: Database, row: CollectionRow) -> None:
    building = build(db, row)
    with db.read() as connection:
        assert set(connection.scalars(select(documents.c.stage).where(documents.c.collection_id == building.collection.id))) == {"load"}
    parsed = packs(db, "handbook-a")["parse"]
    work(db)
    assert flipping.flip(db, building, "n" * 32)
    assert packs(db, "handbook-a")["parse"] != parsed


def test_a_flip_hands_counts_marks_and_outputs_over_and_leaves_no_shadow(db: Database, row: CollectionRow) -> None:
    before = packs(db, "handbook-a")
    building = build(db, row)
    work(db, chunks=7)
    revision = now(db).revision
    assert flipping.flip(db, building, "n" * 32)
    after = now(db)
    assert (after.id, after.generation, after.chunker, after.revision) == (row.id, 2, "windows:64/8", revision + 1)
    one = look(db, "a")
    assert (one.live_chunks, one.chunks, one.version, one.live_version) == (7, 7, 1, 1)
    assert one.live_fingerprint == one.fingerprint and one.live_fingerprint.endswith("n" * 16)
    mine = packs(db, "handbook-a")
    assert set(mine) == set(before) and mine["chunk"] != before["chunk"] and mine["embed"] != before["embed"]
    assert orphans(db) == [] and statuses(db, row) == [(1, "retained"), (2, "live")]
    with db.read() as connection:
        assert connection.scalar(select(func.count()).select_from(documents).where(documents.c.shadow_of != "")) == 0
        assert connection.scalar(select(func.count()).select_from(collections)) == 1
    run = browse.run(db, browse.run_name(building.run_id))
    assert (run.status, run.indexed, run.chunks) == ("done", 3, 21)
    assert {item.document for item in browse.items(db, run.run_id, outcome="", limit=9, after="").data} == {"a", "b", "c"}


def test_a_generation_answers_once_however_many_let_it(db: Database, row: CollectionRow) -> None:
    building = build(db, row)
    work(db)
    told: list[bool] = []

    def let() -> None:
        told.append(flipping.flip(db, building, BASE))

    threads = [threading.Thread(target=let) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(told) == [False, False, False, True] and now(db).generation == 2
    assert statuses(db, row) == [(1, "retained"), (2, "live")]


def test_an_empty_collection_flips_once_too(db: Database) -> None:
    row = collection(db, "empty")
    building = build(db, row)
    assert [flipping.flip(db, building, BASE) for _ in range(2)] == [True, False] and now(db, "empty").generation == 2


def test_it_does_not_flip_while_something_is_built_or_differs(db: Database, row: CollectionRow) -> None:
    building = build(db, row)
    assert shadows.busy(db, building) and not flipping.flip(db, building, BASE)
    work(db)
    begin(db, row, "d")
    assert not shadows.busy(db, building) or flipping.flip(db, building, BASE) is False
    work(db)
    assert not flipping.flip(db, building, BASE), "d is new"
    assert shadows.follow(db, building, BASE) == (1, "")
    work(db)
    removal.detach(db, row, ["handbook-b"])
    with db.write() as connection:
        connection.execute(update(documents).where(documents.c.id == "handbook-c").values(status="hidden", hidden_at=1.0))
    assert not flipping.flip(db, building, BASE), "c answers no more"
    assert list(shadows.departed(db, building)) == ["handbook-c"]
    shadows.forget(db, building, {"handbook-c": 1})
    assert flipping.flip(db, building, BASE) and orphans(db) == []


def test_a_document_that_changes_is_built_again_and_its_first_build_cannot_be_committed(db: Database, row: CollectionRow) -> None:
    building = build(db, row)
    stale = work(db, until=Stage.EMBED)
    assert stale is not None
    begin(db, row, "a", hash_="b" * 64)
    with db.write() as connection:
        connection.execute(
            update(documents).where(documents.c.id == "handbook-a").values(status="done", live_version=2, live_hash="b" * 64, batch_id=None)
        )
    assert shadows.follow(db, building, BASE)[0] == 1
    commit(db, stale)
    one = look(db, "a", shadow=True)
    assert (one.version, one.stage, one.status) == (2, "load", "ready") and packs(db, one.id) == {}


def test_a_batch_under_way_cannot_land_in_another_generation(db: Database, row: CollectionRow) -> None:
    building = build(db, row)
    work(db)
    begin(db, row, "d", hash_="d" * 64)
    stale = work(db, until=Stage.EMBED)
    assert stale is not None and packs(db, "handbook-d")
    assert flipping.flip(db, building, "n" * 32)
    assert batches.held(db, stale) == frozenset() and not commit(db, stale, chunks=99)
    one = look(db, "d")
    assert (one.stage, one.status, one.batch_id) == ("chunk", "ready", None) and one.fingerprint.endswith("n" * 16)
    work(db, chunks=5)
    assert look(db, "d").live_chunks == 5 and "99" not in str(packs(db, "handbook-d"))


def test_a_batch_that_loads_goes_on_through_a_flip(db: Database, row: CollectionRow) -> None:
    building = build(db, row)
    work(db)
    begin(db, row, "d", hash_="d" * 64, route="staged")
    loading = work(db, until=Stage.LOAD)
    assert loading is not None and flipping.flip(db, building, BASE)
    assert commit(db, loading), "the download is not repeated"
    work(db)
    assert look(db, "d").live_version == 1


def test_of_a_document_that_was_taken_from_its_batch_no_output_is_kept(db: Database, row: CollectionRow) -> None:
    begin(db, row, "d")
    batch = work(db, until=Stage.EMBED)
    assert batch is not None
    fence = removal.detach(db, row, ["handbook-d"])
    with db.write() as connection:
        connection.execute(artifact_refs.delete().where(artifact_refs.c.document_id == "handbook-d"))
    assert fence and commit(db, batch) and packs(db, "handbook-d") == {}


def test_documents_that_fail_keep_the_generation_from_answering_until_it_is_accepted(db: Database, row: CollectionRow) -> None:
    building = build(db, row)
    work(db, dead="b")
    assert shadows.stopped(db, building) and not flipping.flip(db, building, BASE)
    shadows.fail(db, building)
    run = browse.run(db, browse.run_name(building.run_id))
    assert (run.status, run.indexed, run.failed) == ("failed", 2, 1) and [one.document for one in run.failures] == ["b"]
    assert now(db).generation == 1
    assert flipping.flip(db, building, BASE, accept=True) and now(db).generation == 2
    one = look(db, "b")
    assert (one.status, one.live_version, one.error_code, one.live_chunks) == ("dead", None, "refused", 0)
    run = browse.run(db, run.run_id)
    assert run.status == "done" and [(one.document, one.code) for one in run.failures] == [("b", "refused")]
    assert packs(db, "handbook-a")["embed"] and orphans(db) == []


def test_a_build_that_failed_is_gone_on_with_where_it_stopped(db: Database, row: CollectionRow) -> None:
    building = build(db, row)
    work(db, dead="b")
    shadows.fail(db, building)
    again = build(db, row)
    assert again.run_id != building.run_id and again.collection.id == building.collection.id
    assert browse.run(db, browse.run_name(again.run_id)).discovered == 1
    work(db)
    assert flipping.flip(db, again, BASE) and now(db).generation == 2


def test_a_build_that_failed_makes_room_for_one_with_other_options_under_another_number(db: Database, row: CollectionRow) -> None:
    building = build(db, row)
    work(db, dead="b")
    with pytest.raises(Conflict, match="being built"):
        build(db, row, "windows:32/0")
    shadows.fail(db, building)
    other = build(db, row, "windows:32/0")
    assert other.collection.generation == 3 and statuses(db, row) == [(1, "live"), (2, "dropping"), (3, "building")]
    assert orphans(db) == []


def test_a_number_that_was_given_up_is_never_given_again(db: Database, row: CollectionRow) -> None:
    """Somebody who was frozen over the old one may still write under it."""
    for number in (2, 3, 4):
        building = build(db, row)
        control.stop(db, building.run_id)
        (found,) = generations.under_construction(db)
        assert found.cancelled and found.collection.generation == number
        flipping.abandon(db, found)
        for _, _, _, surplus in generations.surplus(db, 1):
            assert generations.give_up(db, row.id, surplus)
            generations.dropped(db, row.id, surplus)
    assert statuses(db, row) == [(1, "live")] and orphans(db) == []


def test_a_cancelled_run_does_not_flip(db: Database, row: CollectionRow) -> None:
    building = build(db, row)
    work(db)
    control.stop(db, building.run_id)
    assert not flipping.flip(db, building, BASE)
    flipping.abandon(db, building)
    run = browse.run(db, browse.run_name(building.run_id))
    assert run.status == "cancelled" and run.discovered == run.indexed + run.cancelled
    assert now(db).generation == 1 and generations.under_construction(db) == []


def test_options_that_were_chosen_for_another_generation_are_refused(db: Database, row: CollectionRow) -> None:
    building = build(db, row)
    work(db)
    assert flipping.flip(db, building, BASE)
    with pytest.raises(Conflict, match="just begun to answer"):
        beginning.begin(db, row, generations.options_of_row(row))


def returned(db: Database, held: dict[str, int]) -> Building:
    """A way back to generation 1."""
    row = now(db)
    return beginning.begin(db, row, generations.options_of(db, row.id, 1), generation=1, held=held)


def test_a_rollback_takes_what_the_store_holds_in_the_version_that_answers_and_builds_the_rest(db: Database, row: CollectionRow) -> None:
    building = build(db, row)
    work(db, chunks=7)
    assert flipping.flip(db, building, BASE)
    begin(db, now(db), "b", hash_="b" * 64)
    work(db, chunks=7)
    removal.detach(db, now(db), ["handbook-c"])
    back = returned(db, {"handbook-a": 1, "handbook-b": 1, "handbook-c": 1})
    assert shadows.follow(db, back, BASE) == (1, "")
    assert not flipping.flip(db, back, BASE)
    work(db, chunks=4)
    assert flipping.flip(db, back, BASE)
    assert now(db).generation == 1 and (look(db, "a").live_chunks, look(db, "b").live_chunks) == (3, 4)
    assert statuses(db, row) == [(1, "live"), (2, "retained")] and set(packs(db, "handbook-a")) == {"load", "parse"}


def test_what_the_store_lost_of_a_retained_generation_is_built_again(db: Database, row: CollectionRow) -> None:
    building = build(db, row)
    work(db)
    assert flipping.flip(db, building, BASE)
    assert shadows.follow(db, returned(db, {"handbook-a": 1}), BASE)[0] == 2


def test_a_rollback_that_is_cancelled_can_be_asked_for_again(db: Database, row: CollectionRow) -> None:
    building = build(db, row)
    work(db)
    assert flipping.flip(db, building, BASE)
    back = returned(db, {"handbook-a": 1, "handbook-b": 1, "handbook-c": 1})
    flipping.abandon(db, back)
    assert statuses(db, row) == [(1, "retained"), (2, "live")]
    assert shadows.follow(db, returned(db, {"handbook-a": 1, "handbook-b": 1}), BASE)[0] == 1


def test_a_generation_that_somebody_returns_to_is_not_dropped(db: Database, row: CollectionRow) -> None:
    building = build(db, row)
    work(db)
    assert flipping.flip(db, building, BASE)
    assert [number for *_, number in generations.surplus(db, 0)] == [1]
    returned(db, {})
    assert not generations.give_up(db, row.id, 1) and generations.surplus(db, 0) == []


def test_a_collection_that_never_rests_is_held_back_until_its_next_generation_answers(db: Database, row: CollectionRow) -> None:
    building = build(db, row)
    for _ in range(shadows.CATCH_UPS):
        shadows.chase(db, building)
    begin(db, row, "d")
    assert forming.anything_waits(db)
    work(db)
    shadows.chase(db, building)
    begin(db, row, "e")
    shadows.follow(db, building, BASE)
    work(db)
    assert look(db, "e").status == "ready", "nothing more of the collection is begun"
    assert flipping.flip(db, building, BASE)
    work(db)
    assert look(db, "e").live_version == 1 and not now(db).paused


def test_a_persons_pause_outlives_a_build_and_holds_it(db: Database, row: CollectionRow) -> None:
    building = build(db, row)
    control.hold_collection(db, row.id, paused=True)
    assert not forming.anything_waits(db) and shadows.busy(db, building)
    for _ in range(shadows.CATCH_UPS + 1):
        shadows.chase(db, building)
    control.hold_collection(db, row.id, paused=False)
    work(db)
    control.hold_collection(db, row.id, paused=True)
    assert flipping.flip(db, building, BASE) and now(db).paused


def test_cancelling_all_work_on_a_collection_cancels_its_build(db: Database, row: CollectionRow) -> None:
    building = build(db, row)
    assert control.stop_all(db, collection_id=row.id) == [building.run_id]
    assert generations.under_construction(db)[0].cancelled


def test_two_who_follow_at_once_begin_each_document_once(db: Database, row: CollectionRow) -> None:
    building = beginning.begin(db, row, generations.options_of_row(row) | {"chunker": "windows"})
    begun: list[int] = []
    threads = [threading.Thread(target=lambda: begun.append(shadows.follow(db, building, BASE)[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(begun) == [0, 0, 0, 3]


STEPS = ("_take_back", "_retire", "_hand_over", "_lose", "_move_refs", "_restart", "_answer", "_end_runs")


def test_a_flip_that_is_killed_before_or_after_any_step_has_not_begun(db: Database, row: CollectionRow, monkeypatch: pytest.MonkeyPatch) -> None:
    building = build(db, row)
    work(db, chunks=7)
    begin(db, row, "d")
    before = everything(db)
    for step in STEPS:
        for late in (False, True):
            with monkeypatch.context() as patch:
                patch.setattr(flipping, step, killed(getattr(flipping, step), late=late))
                with pytest.raises(KeyboardInterrupt):
                    flipping.flip(db, building, "n" * 32)
            assert everything(db) == before, step
    assert flipping.flip(db, building, "n" * 32) and everything(db) != before


def killed(step: Callable[..., object], *, late: bool) -> Callable[..., object]:
    """A step that ends before its first line, or after its last."""

    def instead(*given: object, **named: object) -> object:
        if late:
            step(*given, **named)
        raise KeyboardInterrupt

    return instead


def everything(db: Database) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every table that a flip touches."""
    tables = ("collections", "generations", "retained", "documents", "artifact_refs", "runs", "run_items", "batches")
    with db.read() as connection:
        return {name: sorted((tuple(one) for one in connection.execute(select(schema.metadata.tables[name]))), key=repr) for name in tables}


def test_a_build_finds_what_changed_by_indexes_alone(tmp_path: Path) -> None:
    from tests.contract.test_ledger_indexes import plans

    database = Database(f"sqlite:///{tmp_path}/ledger.db")
    database.migrate()
    made = collection(database)
    begin(database, made, "abc")
    work(database)
    building = build(database, made)
    for act in (lambda: shadows.follow(database, building, BASE), lambda: shadows.departed(database, building)):
        joined = [plan for plan in plans(database, act) if "shadow" in plan]
        assert joined and not any("SCAN" in plan for plan in joined), joined
        assert all("documents_shadow" in plan or "sqlite_autoindex_documents" in plan for plan in joined), joined
    assert all("INDEX" in plan for plan in plans(database, lambda: shadows.busy(database, building)))
    assert refs.of(database, Stage.PARSE, {"handbook-a": 1})
    database.close()
