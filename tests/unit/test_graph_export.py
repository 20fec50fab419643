"""A graph for other programs, and its structure for ranking."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from itertools import count
from xml.etree import ElementTree

import numpy as np
import pytest

from graphrag import export, snapshot
from graphrag.building import Graph
from pipeline.contracts import CollectionSpec
from pipeline.contracts.graph import GraphKind
from pipeline.errors import Unsupported
from pipeline.protocols import GraphRecords
from pipeline.stores.embedded import EmbeddedStore
from tests.graphed import contribution, synthetic

_numbers = count(1)
SAID = [
    contribution("a", 1, ["Lin keeps sluice", "bridge <sluice> \x01odd"]),
    contribution("b", 1, ["Sluice keeps bridge", "都江堰 lin"]),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStore]:
    opened = EmbeddedStore(str(tmp_path_factory.mktemp("graphs") / "store"))
    yield opened
    opened.close()


@pytest.fixture
def graph(store: EmbeddedStore) -> tuple[Graph, GraphRecords, str]:
    name = f"export-{next(_numbers)}"
    store.ensure(CollectionSpec(name, 4))
    made = Graph(store.graph(), name, owner="test")
    made.add(SAID)
    made.fold()
    return made, store.graph(), name


Made = tuple[Graph, GraphRecords, str]


def test_a_graph_is_loaded_as_an_object(graph: Made) -> None:
    pytest.importorskip("networkx")
    _, records, name = graph
    loaded = export.load_graph(records, name)
    assert set(loaded.nodes) == {"lin", "keeps", "sluice", "<sluice>", "bridge", "\x01odd", "都江堰"}
    assert loaded.nodes["sluice"]["name"] == "Sluice"
    assert loaded.edges["keeps", "sluice"]["documents"] == 2
    assert len(loaded.edges) == records.count(name, GraphKind.RELATION)


def test_without_networkx_the_cure_is_named(graph: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(Unsupported) as refused:
        export.load_graph(*graph[1:])
    assert "dujiang[graph]" in refused.value.hint


def test_what_is_exported_reads_back_as_the_same_graph(graph: Made) -> None:
    networkx = pytest.importorskip("networkx")
    _, records, name = graph
    loaded = export.load_graph(records, name)
    linked = networkx.node_link_graph(json.loads(b"".join(export.node_link(records, name))), edges="edges")
    assert list(linked.nodes(data=True)) == list(loaded.nodes(data=True))
    assert {frozenset(ends): linked.edges[ends] for ends in linked.edges} == {frozenset(ends): loaded.edges[ends] for ends in loaded.edges}
    marked = networkx.read_graphml(io.BytesIO(b"".join(export.graphml(records, name))))
    assert set(marked.nodes) == {node.replace("\x01", "") for node in loaded.nodes}
    assert marked.edges["keeps", "sluice"]["weight"] == loaded.edges["keeps", "sluice"]["weight"]


def test_an_empty_graph_is_exported_as_an_empty_one(store: EmbeddedStore) -> None:
    name = f"export-{next(_numbers)}"
    store.ensure(CollectionSpec(name, 4))
    assert json.loads(b"".join(export.node_link(store.graph(), name)))["nodes"] == []
    assert ElementTree.fromstring(b"".join(export.graphml(store.graph(), name))) is not None
    made = snapshot.build(store.graph(), name)
    assert not snapshot.refresh(store.graph(), name, force=True)
    assert (made.keys, made.chunks, made.mentions.shape, made.relations.shape) == ((), (), (0, 2), (0, 2))


def test_a_snapshot_names_every_mention_and_every_relation(graph: Made) -> None:
    _, records, name = graph
    made = snapshot.build(records, name)
    said = {(made.keys[one], made.chunks[chunk].chunk_id): places for (one, chunk), places in zip(made.mentions, made.counts, strict=True)}
    assert said == {(m.key, one.chunks[m.chunk].chunk_id): m.count for one in SAID for m in one.mentions}
    tied = {(made.keys[one], made.keys[other]): weight for (one, other), weight in zip(made.relations, made.weights, strict=True)}
    expected: dict[tuple[str, str], float] = {}
    for link in [link for one in SAID for link in one.links]:
        expected[link.source, link.target] = expected.get((link.source, link.target), 0.0) + link.weight
    assert tied == pytest.approx(expected)
    assert [made.documents[number] for number in made.owners] == sorted(one.document_id for one in SAID for _ in one.chunks)


def test_a_stored_snapshot_comes_back_whole_and_old_ones_go(graph: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphrag.snapshot.PART_BYTES", 100)
    made, records, name = graph
    assert snapshot.load(records, name) is None
    assert made.refresh()
    assert not made.refresh()
    first = snapshot.load(records, name)
    made.add([synthetic(1)])
    made.fold()
    assert made.refresh(force=True)
    second = snapshot.load(records, name)
    assert first is not None and second is not None
    assert second.generation > first.generation
    assert len(second.keys) > len(first.keys)
    built = snapshot.build(records, name)
    assert (second.keys, second.documents, second.chunks) == (built.keys, built.documents, built.chunks)
    for one, other in ((second.mentions, built.mentions), (second.relations, built.relations), (second.weights, built.weights)):
        assert np.array_equal(one, other)
    parts = snapshot.manifest(records, name)
    assert parts is not None
    assert records.count(name, GraphKind.SNAPSHOT) == parts.parts + 1


def test_an_export_comes_in_pieces_of_one_element_each(graph: Made) -> None:
    _, records, name = graph
    pieces = export.node_link(records, name)
    assert next(pieces).startswith(b"{")
    assert next(pieces).count(b'"id"') == 1
