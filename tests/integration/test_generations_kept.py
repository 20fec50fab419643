"""What a build of a collection costs, where its bytes come from, and which options it takes with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import delete, select

from pipeline.contracts import RawDocument, Stage
from pipeline.errors import Unavailable
from pipeline.identity import index_name
from pipeline.settings import load
from tests.integration.test_generations import TEXTS, build, digest, folder, found, ingest, platform
from tests.simulators.model_server import ModelServer
from tests.stored import stored
from workers import generations, withdrawal
from workers.dispatch import Platform, open_platform
from workers.inline import run_inline
from workers.ledger import catalog
from workers.ledger import generations as rows
from workers.ledger.schema import artifact_refs, collections, documents
from workers.views import Incoming, Selection

assert folder and platform, "fixtures"
SMALL = "windows:64/8"


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    with ModelServer(dim=48) as server:
        yield server


@pytest.fixture
def served(tmp_path: Path, model: ModelServer) -> Iterator[Platform]:
    """A platform whose model can be counted."""
    given = {"home": str(tmp_path / "served"), "embedder": "openai:stub", "embedder_base_url": model.url}
    with open_platform(load(given, environ={}, cwd=tmp_path).settings) as opened:
        yield opened


def fresh(platform: Platform, folder: Path, name: str = "fresh", chunker: str = "") -> str:
    """What a collection that is made with these options now would come to: its digest."""
    platform.create_collection(name, chunker=chunker)
    assert ingest(platform, folder, name).failed == 0
    return digest(platform, name)


def test_what_comes_after_a_flip_is_cut_and_embedded_as_the_new_generation_wants_it(platform: Platform, folder: Path) -> None:
    build(platform, platform.generations.reindex("handbook", chunker=SMALL))
    (folder / "gates.md").write_text(TEXTS["gates.md"] + "\nThe spare key hangs in the tower.")
    (folder / "new.md").write_text("# New\n\n" + "The radar gauge was fitted in May. " * 60)
    run = ingest(platform, folder)
    assert (run.indexed, run.unchanged) == (2, 2)
    assert digest(platform) == fresh(platform, folder, chunker=SMALL)


def test_another_model_of_another_dimension_takes_over(platform: Platform, folder: Path, model: ModelServer, tmp_path: Path) -> None:
    before = digest(platform)
    settings = load({"home": platform.settings.home, "embedder": "hashed", "embedder_base_url": model.url}, environ={}, cwd=tmp_path).settings
    with open_platform(settings) as other:
        assert build(other, other.generations.reindex("handbook", embedder="openai:stub")).status == "done"
        view = other.collection("handbook")
        assert (view.embedder, view.dimension) == ("openai:stub", 48)
        assert digest(other) == before, "text and cuts are the same"
        assert found(other, "7.84 metres") == found(other, "stood at 7.84")
        build(other, other.generations.rollback("handbook"))
        assert other.collection("handbook").embedder == "hashed" and digest(other) == before


def test_nothing_is_parsed_and_no_byte_is_read_again(platform: Platform, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(raws: Sequence[RawDocument], options: object) -> None:
        raise AssertionError(f"{len(raws)} documents were parsed")

    monkeypatch.setattr(platform.runtime, "parse", parse)
    monkeypatch.setattr("workers.stages.bytes_of", parse)
    assert build(platform, platform.generations.reindex("handbook", chunker=SMALL)).indexed == 3


def test_texts_that_have_a_vector_of_the_same_model_are_not_sent_again(served: Platform, folder: Path, model: ModelServer) -> None:
    ingest(served, folder)
    before = model.stats()["inputs"]
    plan = served.generations.plan("handbook")
    assert (plan.documents, plan.new_chunks, plan.to_embed, plan.tokens) == (3, plan.chunks, 0, 0)
    build(served, served.generations.reindex("handbook"))
    assert model.stats()["inputs"] == before and served.collection("handbook").generation == 2
    plan = served.generations.plan("handbook", chunker=SMALL)
    build(served, served.generations.reindex("handbook", chunker=SMALL))
    assert plan.sampled == 3 and plan.new_chunks == served.collection("handbook").chunks > plan.chunks
    assert 0 < model.stats()["inputs"] - before <= plan.to_embed


def test_a_dry_run_begins_nothing(platform: Platform, folder: Path) -> None:
    plan = platform.generations.plan("handbook", chunker=SMALL)
    assert plan.tokens > 0 and plan.chunker == SMALL and rows.under_construction(platform.db) == []
    assert [one.generation for one in platform.generations.listed("handbook")] == [1]


def lose(platform: Platform, *stages: Stage) -> None:
    """Whoever looks for these outputs finds none."""
    with platform.db.write() as connection:
        connection.execute(delete(artifact_refs).where(artifact_refs.c.stage.in_([stage.value for stage in stages])))


def test_text_that_is_not_kept_is_parsed_from_the_bytes_that_are(platform: Platform, folder: Path, tmp_path: Path) -> None:
    lose(platform, Stage.PARSE)
    away(folder, tmp_path)
    assert build(platform, platform.generations.reindex("handbook", chunker=SMALL)).indexed == 3
    digest(platform)


def away(folder: Path, tmp_path: Path) -> None:
    folder.rename(tmp_path / "away")


def test_bytes_that_are_not_kept_are_taken_from_their_file_when_it_is_still_the_same(platform: Platform, folder: Path) -> None:
    lose(platform, Stage.LOAD, Stage.PARSE)
    (folder / "gates.md").write_text("# Gates\n\nAnother text, which nobody has ingested yet.")
    ended = build(platform, platform.generations.reindex("handbook", chunker=SMALL))
    assert (ended.status, ended.indexed, ended.failed) == ("failed", 2, 1)
    (failure,) = ended.failures
    assert (failure.document, failure.code, failure.stage) == ("gates.md", "source_needed", "load") and "gates.md" in failure.detail
    assert platform.collection("handbook").generation == 1
    ingest(platform, folder)
    assert build(platform, platform.generations.reindex("handbook", chunker=SMALL)).status == "done"
    assert digest(platform) == fresh(platform, folder, chunker=SMALL)


def test_failures_that_are_replayed_bring_the_build_to_its_end(platform: Platform, folder: Path) -> None:
    lose(platform, Stage.LOAD, Stage.PARSE)
    text = (folder / "gates.md").read_text()
    (folder / "gates.md").unlink()
    assert build(platform, platform.generations.reindex("handbook", chunker=SMALL)).failed == 1
    (folder / "gates.md").write_text(text)
    (replayed,) = platform.steering.replay(Selection("default")).runs
    assert build(platform, replayed).indexed == 1
    generations.advance(platform.runtime)
    assert platform.collection("handbook").generation == 2
    assert digest(platform) == fresh(platform, folder, chunker=SMALL)


def test_uploads_are_built_from_what_was_sent(platform: Platform) -> None:
    run = platform.ingest("sent", [Incoming(key=name, data=text.encode()) for name, text in TEXTS.items()])
    run_inline(platform.runtime, run.run_id)
    lose(platform, Stage.PARSE)
    assert build(platform, platform.generations.reindex("sent", chunker=SMALL)).indexed == 3
    lose(platform, Stage.LOAD, Stage.PARSE)
    ended = build(platform, platform.generations.reindex("sent", chunker="windows:32/0"))
    assert {failure.code for failure in ended.failures} == {"source_needed"} and ended.failed == 3


def test_accepting_failures_leaves_them_out_and_names_them(platform: Platform, folder: Path) -> None:
    lose(platform, Stage.LOAD, Stage.PARSE)
    (folder / "gates.md").unlink()
    build(platform, platform.generations.reindex("handbook", chunker=SMALL))
    run = platform.generations.accept("handbook")
    assert run.status == "done" and [failure.document for failure in run.failures] == ["gates.md"]
    (lost,) = platform.failures(collection="handbook").data
    assert lost.document == "gates.md" and lost.document_id not in found(platform, "opens half a metre")
    assert platform.collection("handbook").documents == 2
    digest(platform)


def test_what_a_late_writer_left_in_a_kept_generation_is_gone_when_it_answers_again(platform: Platform, folder: Path) -> None:
    before = digest(platform)
    build(platform, platform.generations.reindex("handbook", chunker=SMALL))
    store, old = platform.runtime.open_store(platform.settings.store_url, writer=True), index_name("default", "handbook", 1)
    dimension = platform.collection("handbook").dimension
    assert dimension is not None
    ghost = stored("ghost", "The ghost was never in the ledger.", vectors=np.ones((1, dimension), np.float32))
    (known,) = platform.documents("handbook", limit=1).data
    late = replace(ghost, document_id=known.document_id, version=9)
    store.write(old, [ghost, late])
    build(platform, platform.generations.rollback("handbook"))
    assert platform.collection("handbook").generation == 1 and digest(platform) == before
    assert ghost.document_id not in found(platform, "never in the ledger")


def hide(platform: Platform, document: str) -> str:
    """Nobody may see it any more; gives its id."""
    secret = next(view.document_id for view in platform.documents("handbook").data if view.document == document)
    withdrawal.hide(platform.runtime, catalog.find(platform.db, "default", "handbook"), [secret], "no longer allowed")
    return secret


def test_hidden_documents_are_in_no_generation_that_comes_to_answer(platform: Platform, folder: Path) -> None:
    build(platform, platform.generations.reindex("handbook", chunker=SMALL))
    secret = hide(platform, "floods.md")
    build(platform, platform.generations.rollback("handbook"))
    assert platform.collection("handbook").generation == 1 and secret not in found(platform, "7.84 metres")
    digest(platform)
    run = platform.generations.reindex("handbook", chunker="windows:32/0")
    assert run.discovered == 2 and build(platform, run).status == "done"
    digest(platform)


def test_a_deleted_collection_takes_its_build_along(platform: Platform, folder: Path) -> None:
    run = platform.generations.reindex("handbook", chunker=SMALL)
    platform.delete_collection("handbook")
    generations.advance(platform.runtime)
    generations.drop_surplus(platform.runtime)
    with platform.db.read() as connection:
        assert connection.execute(select(collections)).all() == []
        assert connection.execute(select(documents).where(documents.c.shadow_of != "")).all() == []
    assert platform.run(run.run_id).finished
    assert ingest(platform, folder).indexed == 3
    assert [one.status for one in platform.generations.listed("handbook")] == ["live"]
    assert build(platform, platform.generations.reindex("handbook", chunker=SMALL)).status == "done"
    digest(platform)


def test_a_store_that_is_away_delays_a_build_and_nothing_else(platform: Platform, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = platform.generations.reindex("handbook", chunker=SMALL)
    hide(platform, "floods.md")

    def away(*_: object, **__: object) -> None:
        raise Unavailable("the store is away", dependency=True)

    with monkeypatch.context() as patch:
        patch.setattr("workers.generations._withdraw", away)
        with pytest.raises(AssertionError, match="never ended"):
            build(platform, run)
        assert platform.collection("handbook").generation == 1
    assert build(platform, run).status == "done" and platform.collection("handbook").documents == 2
