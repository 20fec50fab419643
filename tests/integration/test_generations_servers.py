"""Builds of a collection on PostgreSQL and Elasticsearch, and questions that are asked while generations change."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.contracts import Mode, Question
from pipeline.identity import index_name
from tests.integration.test_generations import TEXTS, build, digest, found, ingest
from tests.system import settings_for, until
from workers import generations
from workers.dispatch import Platform, open_platform
from workers.ledger import catalog

PARTS = {"embedded": (), "servers": ("postgres_database", "elasticsearch_url")}
SMALL, SMALLER = "windows:64/8", "windows:32/0"


@pytest.fixture(params=sorted(PARTS))
def platform(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Platform]:
    """SQLite and the embedded store, or PostgreSQL and Elasticsearch."""
    names = PARTS[request.param]
    given = dict(zip(("ledger_url", "store_url"), (request.getfixturevalue(name) for name in names), strict=False))
    with open_platform(settings_for(tmp_path / "home", **given)) as opened:
        yield opened
        store = opened.runtime.open_store(opened.settings.store_url, writer=True)
        for row in catalog.every(opened.db):
            for number in range(1, row.generation + 4):
                store.drop(index_name(row.tenant, row.name, number))


@pytest.fixture
def folder(tmp_path: Path, platform: Platform) -> Path:
    """Three documents, ingested."""
    made = tmp_path / "docs"
    made.mkdir()
    for name, text in TEXTS.items():
        (made / name).write_text(text)
    assert ingest(platform, made).indexed == 3
    return made


def change(platform: Platform, folder: Path) -> str:
    """One document is new, one changed, one deleted; gives the id of the last."""
    (folder / "new.md").write_text("# New\n\n" + "The radar gauge was fitted in May. " * 40)
    (folder / "gates.md").write_text("# Gates\n\n" + "A gate now opens a quarter of a metre. " * 40)
    victim = next(view.document_id for view in platform.documents("handbook").data if view.document == "floods.md")
    platform.delete_document("handbook", victim)
    (folder / "floods.md").unlink()
    assert ingest(platform, folder).failed == 0
    return victim


def test_what_happens_while_it_is_built_and_before_the_way_back_is_in_every_generation(platform: Platform, folder: Path) -> None:
    run = platform.generations.reindex("handbook", chunker=SMALL)
    victim = change(platform, folder)
    ended = build(platform, run)
    assert (ended.status, ended.failed) == ("done", 0) and platform.collection("handbook").generation == 2
    platform.create_collection("fresh", chunker=SMALL)
    ingest(platform, folder, "fresh")
    assert digest(platform) == digest(platform, "fresh")
    build(platform, platform.generations.rollback("handbook"))
    assert platform.collection("handbook").generation == 1
    platform.create_collection("plain")
    ingest(platform, folder, "plain")
    assert digest(platform) == digest(platform, "plain") and victim not in found(platform, "7.84 metres")
    assert ingest(platform, folder).unchanged == 3


def test_a_generation_that_is_not_kept_leaves_the_store(platform: Platform, folder: Path) -> None:
    for chunker in (SMALL, SMALLER):
        build(platform, platform.generations.reindex("handbook", chunker=chunker))
    run = platform.generations.reindex("handbook", chunker="windows:48/0")
    platform.cancel(run.run_id)
    generations.advance(platform.runtime)
    there = set(platform.runtime.reader_store.collections())
    assert {index_name("default", "handbook", number) in there for number in (1, 4)} == {False}
    assert {index_name("default", "handbook", number) in there for number in (2, 3)} == {True}
    assert [(one.generation, one.status) for one in platform.generations.listed("handbook")] == [(2, "retained"), (3, "live")]
    digest(platform)


class Asker(threading.Thread):
    """Asks until it is told to stop; remembers what was wrong with an answer."""

    def __init__(self, platform: Platform) -> None:
        super().__init__(daemon=True)
        self._platform = platform
        self.stopping = threading.Event()
        self.answers = 0
        self.wrong: list[str] = []

    def run(self) -> None:
        question = Question("metres water gauge gate", ("handbook",), mode=Mode.HYBRID, k=200)
        while not self.stopping.is_set() and not self.wrong:
            hits = self._platform.search(question).hits
            titles = {hit.title for hit in hits}
            if titles != {"Rules", "Floods", "Gates"}:
                self.wrong.append(f"only {titles} are found")
            if len({(hit.document_id, hit.ordinal) for hit in hits}) != len(hits):
                self.wrong.append("a chunk is found twice")
            self.answers += 1


def test_whoever_asks_while_generations_change_finds_every_document_every_time(platform: Platform, folder: Path) -> None:
    asker = Asker(platform)
    asker.start()
    for chunker in (SMALL, SMALLER):
        build(platform, platform.generations.reindex("handbook", chunker=chunker))
        build(platform, platform.generations.rollback("handbook"))
    seen = asker.answers
    until(lambda: asker.answers > seen or not asker.is_alive(), 30.0, "a question is asked after the last change")
    asker.stopping.set()
    asker.join(30.0)
    assert asker.wrong == [] and asker.answers > seen
    assert platform.collection("handbook").generation == 1
