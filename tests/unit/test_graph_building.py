"""A graph is what its live contributions make of it, however they came."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphrag import fold
from graphrag.building import Graph, Swept
from graphrag.contracts import Contribution
from graphrag.leases import LEASE_S
from graphrag.records import dump_parts, entity_id, load_contribution, load_entity, load_part, relation_id, squeeze
from pipeline.contracts import CollectionSpec
from pipeline.contracts.graph import GraphKind, GraphRecord
from pipeline.errors import BrokenContract
from pipeline.protocols import GraphRecords
from pipeline.stores.embedded import EmbeddedStore
from tests.graphed import Dying, Killed, contribution, folded, hashed, stored, synthetic

_numbers = count(1)

WORDS = ["Lin", "lin", "sluice", "Sluice", "都江堰", "Bridge", "keeper"]
TEXTS = st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join), max_size=3)
STEPS = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(1, 5), TEXTS | st.none(), st.booleans()), min_size=1, max_size=12)
"""(document, version, what it says or None for a removal, whether a fold follows)."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStore]:
    opened = EmbeddedStore(str(tmp_path_factory.mktemp("graphs") / "store"))
    yield opened
    opened.close()


def new(store: EmbeddedStore) -> str:
    name = f"graph-{next(_numbers)}"
    store.ensure(CollectionSpec(name, 4))
    return name


def graph(store: EmbeddedStore, name: str, records: GraphRecords | None = None) -> Graph:
    return Graph(records or store.graph(), name, owner="test")


A1 = contribution("a", 1, ["Lin keeps sluice", "bridge sluice"])
A2 = contribution("a", 2, ["Lin left"])
B1 = contribution("b", 1, ["Sluice keeps bridge", "Sluice Sluice lin"])
C1 = contribution("c", 1, ["都江堰 Sluice"])


def test_an_entity_is_called_what_it_is_called_most_and_knows_its_other_names() -> None:
    made = folded([A1, B1, C1])
    entity = load_entity(made[entity_id("sluice")])
    assert (entity.name, entity.aliases, entity.type) == ("Sluice", ("sluice",), "PLACE")
    assert (entity.mentions, entity.documents, len(entity.sources)) == (6, 3, 5)
    assert entity.description.count("\n") == 2
    assert [source.document_id for source in entity.sources] == sorted(source.document_id for source in entity.sources)


def test_evidence_and_descriptions_are_bounded_and_counts_are_not() -> None:
    said = [fold.Said(hashed(n), 0, 0, 4, hashed("chunk", n), f"Name {n}", "term", 1, f"{n:04d} " * 100, None) for n in range(200)]
    entity = fold.entity("name", said)
    assert (entity.mentions, entity.documents, len(entity.sources), len(entity.aliases)) == (200, 200, fold.MOST_SOURCES, fold.MOST_ALIASES)
    assert 0 < len(entity.description) <= fold.DESCRIPTION
    tied = [fold.Tied(hashed(n), 0, 0, 4, hashed("chunk", n), 0.1, "", (f"k{n}",), None) for n in range(200)]
    relation = fold.relation("a", "b", tied)
    assert (relation.weight, relation.count, len(relation.sources), len(relation.keywords)) == (20.0, 200, fold.MOST_SOURCES, fold.MOST_KEYWORDS)


def test_a_contribution_comes_back_from_its_parts() -> None:
    long = contribution("long", 3, [f"word{n} other{n} Third{n}" for n in range(700)])
    parts = dump_parts(long)
    assert len(parts) > 2
    assert load_contribution([load_part(squeeze(part)) for part in parts], long.version, long.extractor) == long


def test_a_relation_without_its_ends_is_refused() -> None:
    with pytest.raises(BrokenContract):
        dump_parts(Contribution(A1.document_id, 1, "x", A1.chunks, A1.mentions[:1], A1.links))


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_any_order_of_the_documents_gives_the_same_bytes(data: st.DataObject) -> None:
    documents = [A1, B1, C1, contribution("d", 1, ["Lin 都江堰 sluice keeps bridge"])]
    assert folded(data.draw(st.permutations(documents))) == folded(documents)


@given(steps=STEPS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_happened_the_graph_is_what_the_newest_versions_say(
    store: EmbeddedStore, steps: list[tuple[str, int, list[str] | None, bool]]
) -> None:
    name = new(store)
    ours = graph(store, name)
    newest: dict[str, tuple[int, Contribution | None]] = {}
    for document, version, said, fold_now in steps:
        known = newest.get(document, (0, None))
        if said is None:
            ours.remove({hashed("document", document): version})
            if known[1] is None or known[0] <= version:
                newest[document] = (max(version, known[0]), None)
        else:
            one = contribution(document, version, said)
            ours.add([one])
            if version > known[0] or (version == known[0] and known[1] is not None):
                newest[document] = (version, one)
        if fold_now:
            ours.fold()
    ours.fold()
    assert stored(store.graph(), name) == folded(one for _, one in newest.values() if one)
    assert ours.fold() == 0
    assert ours.sweep() == Swept()


def story(ours: Graph) -> None:
    """A load, a change, a removal, a late writer, and a redelivery."""
    ours.add([A1, B1])
    ours.fold()
    ours.add([A2, C1])
    ours.remove({B1.document_id: 1})
    ours.add([A1])
    ours.fold()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_any_call_and_run_again_the_graph_is_the_same(store: EmbeddedStore, after: bool) -> None:
    expected = folded([A2, C1])
    for at in count(1):
        name = new(store)
        try:
            story(graph(store, name, cast("GraphRecords", Dying(store.graph(), at, after=after))))
        except Killed:
            story(graph(store, name))
            assert stored(store.graph(), name) == expected, at
            assert graph(store, name).marked() == 0
            assert graph(store, name).sweep() == Swept(), at
        else:
            assert at > 30
            return
        finally:
            store.drop(name)


def test_ingested_then_deleted_is_never_ingested_and_ingested_again_is_ingested_once(store: EmbeddedStore) -> None:
    name, other = new(store), new(store)
    ours, fresh = graph(store, name), graph(store, other)
    fresh.add([B1])
    fresh.fold()
    ours.add([A1, B1])
    ours.fold()
    ours.remove({A1.document_id: 1})
    ours.fold()
    assert ours.digest() == fresh.digest()
    ours.add([A2])
    fresh.add([A2])
    ours.fold()
    fresh.fold()
    assert ours.digest() == fresh.digest()
    assert store.graph().count(name, GraphKind.PART) == 3 - 1


def test_a_document_removed_while_it_is_being_added_stays_out(store: EmbeddedStore) -> None:
    name = new(store)
    ours = graph(store, name)
    with pytest.raises(Killed):
        graph(store, name, cast("GraphRecords", Dying(store.graph(), 3))).add([A1])
    ours.remove({A1.document_id: 1})
    ours.add([A1])
    ours.fold()
    assert stored(store.graph(), name) == {}
    assert store.graph().count(name, GraphKind.PART) == 0


class Meanwhile:
    """`GraphRecords` that lets something else happen right before the call with this number."""

    def __init__(self, inner: GraphRecords, at: int, happening: object) -> None:
        self._inner, self._left, self._happening = inner, at, happening

    def __getattr__(self, name: str) -> object:
        call = getattr(self._inner, name)

        def counted(*args: object, **options: object) -> object:
            self._left -= 1
            if self._left == 0:
                self._happening()  # pyright: ignore[reportCallIssue]
            return call(*args, **options)

        return counted


@pytest.mark.parametrize("folds", [True, False], ids=["and folded", "and not folded"])
def test_what_changes_at_any_call_of_a_fold_is_not_lost(store: EmbeddedStore, folds: bool) -> None:
    """Another worker changes a document, and folds whatever it sees, while the first one is in the midst of its fold."""
    expected = folded([A2, C1])
    for at in count(1):
        name = new(store)
        graph(store, name).add([A1, B1])
        happened: list[int] = []

        def happen(name: str = name, happened: list[int] = happened) -> None:
            other = Graph(store.graph(), name, owner="other", now=lambda: 4e9 + LEASE_S)
            other.add([A2, C1])
            other.remove({B1.document_id: 1})
            if folds:
                other.fold()
            happened.append(1)

        graph(store, name, cast("GraphRecords", Meanwhile(store.graph(), at, happen))).fold()
        if not happened:
            assert at > 15
            return
        graph(store, name).fold()
        assert stored(store.graph(), name) == expected, at
        assert graph(store, name).sweep() == Swept(), at
        store.drop(name)


def test_a_fold_at_any_call_of_a_change_leaves_what_is_to_come_marked(store: EmbeddedStore) -> None:
    for at in count(1):
        name = new(store)
        graph(store, name).add([A1, B1])
        happened: list[int] = []

        def happen(name: str = name, happened: list[int] = happened) -> None:
            graph(store, name).fold()
            happened.append(1)

        graph(store, name, cast("GraphRecords", Meanwhile(store.graph(), at, happen))).add([A2, C1])
        graph(store, name).fold()
        assert stored(store.graph(), name) == folded([A2, B1, C1]), at
        if not happened:
            assert at > 3
            return


def test_a_sweep_mends_whatever_was_lost(store: EmbeddedStore) -> None:
    name = new(store)
    ours, records = graph(store, name), store.graph()
    ours.add([A1, B1, C1])
    ours.fold()
    whole = stored(records, name)
    records.remove(name, GraphKind.ENTITY, [entity_id("lin")])
    records.put(name, [GraphRecord(GraphKind.RELATION, relation_id("bridge", "sluice"), 1 << 60, b"wrong")])
    records.put(name, [GraphRecord(GraphKind.ENTITY, entity_id("stranger"), 1, b"x", words="stranger")])
    records.remove(name, GraphKind.RELATION, [relation_id("bridge", "sluice")])
    records.put(name, [GraphRecord(GraphKind.PART, f"{A1.document_id}:00000001:0123456789abcdef:00000", 1, b"lost")])
    ours.add([A2])
    records.remove(name, GraphKind.MARK, [one.id for one in records.scan(name, GraphKind.MARK)])
    swept = ours.sweep()
    assert swept.wrong > 2 and swept.extra > 1 and swept.parts > 0
    assert stored(records, name) == folded([A2, B1, C1]) != whole
    assert ours.sweep() == Swept()


def test_a_big_load_is_folded_in_slices_and_rounds_and_comes_out_the_same(store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphrag.building.MOST_STATEMENTS", 3000)
    monkeypatch.setattr("graphrag.building.MOST_DIRTY", 1500)
    name = new(store)
    ours = graph(store, name)
    documents = [synthetic(number, vocabulary=500) for number in range(60)]
    random.Random(7).shuffle(documents)
    for start in range(0, 60, 20):
        ours.add(documents[start : start + 20])
        ours.fold(everything=False)
    assert ours.marked() == 60
    ours.fold()
    assert stored(store.graph(), name) == folded(documents)
    ours.add([synthetic(60, vocabulary=500)])
    assert ours.fold() < 100
    assert stored(store.graph(), name) == folded([*documents, synthetic(60, vocabulary=500)])


def test_entities_are_found_by_their_names(store: EmbeddedStore, tmp_path: Path) -> None:
    name = new(store)
    ours = graph(store, name)
    ours.add([A1, B1, C1])
    ours.fold()
    found = store.graph().find(name, GraphKind.ENTITY, ["都江堰"], 3)
    assert [one for one, _ in found] == [entity_id("都江堰")]
