"""Collections built anew beside the version that answers, stages run for real on the embedded store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import update

from pipeline.contracts import Mode, Question
from pipeline.errors import NotFound
from pipeline.settings import load
from workers import feeder as feeding
from workers import generations
from workers.dispatch import Platform, open_platform
from workers.feeder import Feeder
from workers.inline import run_inline
from workers.ledger import balance, flipping
from workers.ledger import generations as rows
from workers.ledger.schema import documents, runs
from workers.ledger.work import Issue
from workers.stage import run_stage
from workers.views import Incoming, RunView

TEXTS = {
    "rules.md": "# Rules\n\nThe gauge is read at eight. " + "Every reading is signed by two people. " * 40,
    "floods.md": "# Floods\n\nIn 1998 the water stood at 7.84 metres. " + "The dike held all night. " * 40,
    "gates.md": "# Gates\n\nA gate opens half a metre at most. " + "Ten minutes lie between two steps. " * 40,
}


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    with open_platform(load({"home": str(tmp_path / "home"), "embedder": "hashed"}, environ={}, cwd=tmp_path).settings) as opened:
        yield opened


@pytest.fixture
def folder(tmp_path: Path, platform: Platform) -> Path:
    """Three documents, ingested."""
    made = tmp_path / "docs"
    made.mkdir()
    for name, text in TEXTS.items():
        (made / name).write_text(text)
    assert ingest(platform, made).indexed == 3
    return made


def ingest(platform: Platform, folder: Path, collection: str = "handbook") -> RunView:
    run = platform.ingest(collection, [Incoming(key=path.name, path=str(path)) for path in sorted(folder.iterdir())])
    return run if run.finished else run_inline(platform.runtime, run.run_id)


def build(platform: Platform, run: RunView) -> RunView:
    """Work until the run has ended, as workers and housekeeping would."""
    issues: list[Issue] = []
    feeder = Feeder(platform.db, feeding.windows(platform.runtime.profile, processes=1, threads=1), issues.extend)
    for _ in range(200):
        generations.advance(platform.runtime)
        view = platform.run(run.run_id)
        if view.finished:
            return view
        feeder.tick()
        while issues:
            issue = issues.pop(0)
            feeder.send(run_stage(issue.batch_id, issue.token, platform.runtime) or [])
    raise AssertionError(f"never ended: {view}")


def digest(platform: Platform, name: str = "handbook") -> str:
    audit = platform.audit(name)
    assert audit.ok, audit
    return audit.collections[0].digest


def found(platform: Platform, text: str, collection: str = "handbook") -> list[str]:
    return [hit.document_id for hit in platform.search(Question(text, (collection,), mode=Mode.PARTICIPLE)).hits]


def test_a_reindex_gives_what_a_fresh_collection_with_the_new_options_would(platform: Platform, folder: Path, tmp_path: Path) -> None:
    before = digest(platform)
    (tmp_path / "docs-away").mkdir()
    for path in folder.iterdir():
        path.rename(tmp_path / "docs-away" / path.name)  # the bytes come from the artifacts
    run = platform.generations.reindex("handbook", chunker="windows:64/8")
    assert (run.status, run.discovered) == ("running", 3)
    ended = build(platform, run)
    assert (ended.status, ended.indexed, ended.failed) == ("done", 3, 0)
    view = platform.collection("handbook")
    assert (view.generation, view.chunker) == (2, "windows:64/8")
    platform.create_collection("fresh", chunker="windows:64/8")
    ingest(platform, tmp_path / "docs-away", "fresh")
    assert view.chunks == platform.collection("fresh").chunks and digest(platform) != before
    assert [(one.generation, one.status) for one in platform.generations.listed("handbook")] == [(1, "retained"), (2, "live")]


def test_the_old_generation_answers_until_the_new_one_is_whole(platform: Platform, folder: Path) -> None:
    before = digest(platform)
    run = platform.generations.reindex("handbook", chunker="windows:64/8")
    generations.advance(platform.runtime)
    assert digest(platform) == before and platform.collection("handbook").generation == 1
    assert found(platform, "7.84 metres")
    build(platform, run)
    assert platform.collection("handbook").generation == 2 and found(platform, "7.84 metres")


def test_documents_that_are_unchanged_stay_unchanged_after_a_reindex(platform: Platform, folder: Path) -> None:
    build(platform, platform.generations.reindex("handbook", chunker="windows:64/8"))
    assert ingest(platform, folder).unchanged == 3


def test_what_is_new_changed_or_deleted_while_it_builds_is_so_in_the_new_generation(platform: Platform, folder: Path) -> None:
    run = platform.generations.reindex("handbook", chunker="windows:64/8")
    (folder / "new.md").write_text("# New\n\nThe radar gauge was fitted in May.")
    (folder / "gates.md").write_text("# Gates\n\nA gate now opens a quarter of a metre.")
    ingest(platform, folder)
    victim = next(view.document_id for view in platform.documents("handbook").data if view.document == "floods.md")
    platform.delete_document("handbook", victim)
    ended = build(platform, run)
    assert ended.status == "done" and platform.collection("handbook").generation == 2
    digest(platform)
    assert found(platform, "radar gauge") and found(platform, "quarter of a metre")
    assert victim not in found(platform, "7.84 metres")


def test_a_rollback_returns_at_once_when_nothing_changed_and_revives_nothing(platform: Platform, folder: Path) -> None:
    before = digest(platform)
    build(platform, platform.generations.reindex("handbook", chunker="windows:64/8"))
    back = platform.generations.rollback("handbook")
    assert back.status == "done" and platform.collection("handbook").generation == 1
    assert digest(platform) == before
    build(platform, platform.generations.rollback("handbook"))
    assert platform.collection("handbook").generation == 2
    victim = next(view.document_id for view in platform.documents("handbook").data if view.document == "floods.md")
    platform.delete_document("handbook", victim)
    (folder / "gates.md").write_text("# Gates\n\nA gate now opens a quarter of a metre.")
    (folder / "floods.md").unlink()
    ingest(platform, folder)
    build(platform, platform.generations.rollback("handbook"))
    assert platform.collection("handbook").generation == 1
    digest(platform)
    assert found(platform, "quarter of a metre") and victim not in found(platform, "7.84 metres")


def test_a_reindex_in_which_documents_fail_leaves_the_old_generation_answering_and_can_be_gone_on_with(platform: Platform, folder: Path) -> None:
    before = digest(platform)
    run = platform.generations.reindex("handbook", chunker="windows:64/8")
    with platform.db.write() as connection:
        one = update(documents).where(documents.c.shadow_of != "", documents.c.key == "gates.md").returning(documents.c.id)
        dead = {"status": "dead", "error_stage": "embed", "error_code": "poison", "error_detail": "it kills workers", "error_hint": "Mend it."}
        shadow = connection.execute(one.values(**dead)).scalar_one()
        balance.settle(connection, [(shadow, "failed", 0, "it kills workers")], 0.0)
    ended = build(platform, run)
    assert ended.status == "failed" and digest(platform) == before
    again = build(platform, platform.generations.reindex("handbook", chunker="windows:64/8"))
    assert again.status == "done" and platform.collection("handbook").generation == 2
    digest(platform)


def test_cancelling_the_run_gives_the_building_generation_up(platform: Platform, folder: Path) -> None:
    before = digest(platform)
    run = platform.generations.reindex("handbook", chunker="windows:64/8")
    platform.cancel(run.run_id)
    generations.advance(platform.runtime)
    generations.drop_surplus(platform.runtime)
    assert platform.run(run.run_id).status == "cancelled" and digest(platform) == before
    assert [one.status for one in platform.generations.listed("handbook")] == ["live"]
    assert ingest(platform, folder).unchanged == 3


def test_no_earlier_generation_is_an_error_that_says_so(platform: Platform, folder: Path) -> None:
    with pytest.raises(NotFound, match="no earlier generation"):
        platform.generations.rollback("handbook")


def test_only_as_many_earlier_generations_are_kept_as_asked_for(platform: Platform, folder: Path) -> None:
    for chunker in ("windows:64/8", "windows:48/0", "windows:96/0"):
        build(platform, platform.generations.reindex("handbook", chunker=chunker))
    generations.drop_surplus(platform.runtime)
    assert [(one.generation, one.status) for one in platform.generations.listed("handbook")] == [(3, "retained"), (4, "live")]
    digest(platform)


def test_a_crash_in_the_flip_leaves_either_the_old_or_the_new_generation(platform: Platform, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(platform)
    run = platform.generations.reindex("handbook", chunker="windows:64/8")
    for step in ("_take_back", "_retire", "_hand_over", "_lose", "_move_refs", "_restart", "_answer", "_end_runs"):
        with monkeypatch.context() as patch:
            patch.setattr(flipping, step, _crash)
            with pytest.raises(KeyboardInterrupt):
                build(platform, run)
        assert platform.collection("handbook").generation == 1 and digest(platform) == before
    assert build(platform, run).status == "done"
    digest(platform)


def _crash(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_what_is_under_way_while_the_generations_change_lands_in_the_new_one(platform: Platform, folder: Path) -> None:
    run = platform.generations.reindex("handbook", chunker="windows:64/8")
    (folder / "late.md").write_text("# Late\n\nThe ferry stops at nine.")
    late = platform.ingest("handbook", [Incoming(key="late.md", path=str(folder / "late.md"))])
    # the reindex is built and flipped while the late document has not begun
    with platform.db.write() as connection:
        connection.execute(update(runs).where(runs.c.id == int(late.run_id.removeprefix("run_"))).values(status="paused"))
    build(platform, run)
    platform.resume(late.run_id)
    assert run_inline(platform.runtime, late.run_id).indexed == 1
    digest(platform)
    assert found(platform, "ferry stops") and rows.listed(platform.db, "x") == ()
