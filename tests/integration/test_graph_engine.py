"""The graph behind the index, through real workers: built from what is indexed, changed and deleted with it, and never in anybody's way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.contracts import Filter, Mode, Op, Question, SearchResult
from pipeline.contracts.graph import GraphKind
from pipeline.identity import index_name
from pipeline.protocols import HoldsGraph
from tests.system import System, until
from workers.ledger import catalog, graphing

BOATS = {
    "lin.md": "# Lin Cen\n\nLin Cen keeps the gauge of Stone Bridge. She wrote 《Tides of Qingshan》.\n",
    "bridge.md": "# Stone Bridge\n\nStone Bridge was built by the engineer Zhou Yan in 1936.\n",
    "站.md": "# 石桥站\n\n石桥站由林岑负责，雷达水位计由青山仪器有限公司制造。\n",
}


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with System(tmp_path_factory.mktemp("graph") / "home", embedder="hashed", graph="terms") as running:
        yield running


def write(folder: Path, texts: dict[str, str]) -> Path:
    folder.mkdir(exist_ok=True)
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8")
    return folder


def settled(system: System, name: str) -> graphing.Progress:
    """How the graph stands once it has caught up."""
    row = catalog.find(system.platform.db, "default", name)
    extractor = system.platform.runtime.graph_extractor
    until(lambda: not any(one.id == row.id for one in graphing.pending(system.platform.db, extractor)), 30.0, "the graph has caught up")
    return graphing.progress(system.platform.db, row, extractor)


def names(system: System, name: str) -> set[str]:
    """Of all entities."""
    from graphrag.records import load_entity

    store = system.platform.runtime.reader_store
    assert isinstance(store, HoldsGraph)
    row = catalog.find(system.platform.db, "default", name)
    index = index_name(row.tenant, row.name, row.generation)
    return {load_entity(record.body).name for record in store.graph().scan(index, GraphKind.ENTITY)}


def test_what_is_indexed_comes_into_the_graph(system: System, tmp_path: Path, name: str) -> None:
    run = system.finish(system.ingest(write(tmp_path / "docs", BOATS), collection=name))
    assert run.indexed == 3
    stands = settled(system, name)
    assert (stands.documents, stands.done, stands.failed) == (3, 3, 0)
    assert {"Lin Cen", "Stone Bridge", "Zhou Yan", "Tides of Qingshan", "石桥站"} <= names(system, name)
    audited = system.audit(name)
    assert audited.graph_records > 8 and audited.graph_digest


def test_a_changed_document_changes_the_graph_and_a_deleted_one_leaves_it(system: System, tmp_path: Path, name: str) -> None:
    folder = write(tmp_path / "docs", BOATS)
    system.finish(system.ingest(folder, collection=name))
    settled(system, name)
    write(folder, {"bridge.md": "# Stone Bridge\n\nStone Bridge was rebuilt by Shen Ping.\n"})
    system.finish(system.ingest(folder, collection=name))
    settled(system, name)
    assert "Shen Ping" in names(system, name) and "Zhou Yan" not in names(system, name)
    gone = next(view for view in system.platform.documents(name).data if view.document.endswith("bridge.md"))
    system.platform.deleting.documents(name, [gone.document_id])
    settled(system, name)
    held = names(system, name)
    assert "Shen Ping" not in held and "Stone Bridge" in held, "another document speaks of the bridge"


def test_the_graph_after_changes_is_that_of_a_collection_that_was_never_otherwise(system: System, tmp_path: Path, name: str) -> None:
    folder = write(tmp_path / "docs", BOATS)
    system.finish(system.ingest(folder, collection=name))
    write(folder, {"extra.md": "# Extra\n\nXu Wen of the Harbour Board came by.\n", "lin.md": "# Lin Cen\n\nLin Cen has moved to Upper Ford.\n"})
    system.finish(system.ingest(folder, collection=name))
    settled(system, name)
    gone = next(view for view in system.platform.documents(name).data if view.document.endswith("extra.md"))
    system.platform.deleting.documents(name, [gone.document_id])
    settled(system, name)
    (folder / "extra.md").unlink()
    system.finish(system.ingest(folder, collection=f"{name}-fresh"))
    settled(system, f"{name}-fresh")
    assert names(system, name) == names(system, f"{name}-fresh")


def asked(system: System, name: str, text: str, **more: Any) -> SearchResult:
    return system.platform.search(Question(text, (name,), mode=Mode.GRAPH, k=3, **more))


def test_a_question_is_led_over_what_it_names_to_what_it_does_not(system: System, tmp_path: Path, name: str) -> None:
    texts = BOATS | {f"other-{number}.md": f"# Engineer {number}\n\nThe engineer of station {number} repairs gauges.\n" for number in range(20)}
    system.finish(system.ingest(write(tmp_path / "docs", texts), collection=name))
    settled(system, name)
    found = asked(system, name, "Who built the bridge whose gauge Lin Cen keeps?")
    assert {"Lin Cen", "Stone Bridge"} == {hit.title for hit in found.hits[:2]}
    assert all(0.0 < hit.scores["graph"] <= 1.0 for hit in found.hits[:2])
    assert "lincen" in str([step.detail for step in found.steps]), "the trace tells what was named"


def test_filters_hold_for_what_a_graph_leads_to(system: System, tmp_path: Path, name: str) -> None:
    system.finish(system.ingest(write(tmp_path / "docs", BOATS), collection=name))
    settled(system, name)
    hits = asked(system, name, "Lin Cen Stone Bridge", filters=(Filter("title", Op.NE, "Stone Bridge"),)).hits
    assert hits and "Stone Bridge" not in {hit.title for hit in hits}


def test_a_collection_without_a_graph_yet_is_named_and_answers_all_the_same(system: System, tmp_path: Path, name: str) -> None:
    folder = write(tmp_path / "docs", BOATS)
    system.finish(system.ingest(folder, collection=name))
    row = catalog.find(system.platform.db, "default", name)
    settled(system, name)
    store = system.platform.runtime.open_store(system.settings.store_url, writer=True)
    assert isinstance(store, HoldsGraph)
    index = index_name(row.tenant, row.name, row.generation)
    store.graph().remove(index, GraphKind.SNAPSHOT, [record.id for record in store.graph().scan(index, GraphKind.SNAPSHOT)])
    found = asked(system, name, "Lin Cen")
    assert found.hits and any("no graph is built yet" in step.degraded for step in found.steps)


def test_a_question_that_nothing_answers_is_refused_in_graph_mode_too(system: System, tmp_path: Path, name: str) -> None:
    system.finish(system.ingest(write(tmp_path / "docs", BOATS), collection=name))
    settled(system, name)
    foreign = "Which Antarctic submarine orchestra won the 1987 chess medal in zoology?"
    assert system.platform.ask(Question(foreign, (name,), mode=Mode.GRAPH, k=3)).refused


def test_what_the_graph_leads_to_takes_no_place_from_what_the_question_finds(system: System, tmp_path: Path, name: str) -> None:
    system.finish(system.ingest(write(tmp_path / "docs", BOATS), collection=name))
    settled(system, name)
    plain = system.platform.search(Question("gauge of Stone Bridge", (name,), k=2)).hits
    led = system.platform.search(Question("gauge of Stone Bridge", (name,), mode=Mode.GRAPH, k=2)).hits
    assert {hit.chunk_id for hit in plain} <= {hit.chunk_id for hit in led} and len(led) <= 4
