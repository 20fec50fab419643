"""What every store must do for the graph it keeps."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import pytest

from pipeline.contracts import CollectionSpec
from pipeline.contracts.graph import GraphKind, GraphRecord
from pipeline.errors import BadRequest, Conflict, NotFound
from pipeline.identity import index_name
from pipeline.protocols import GraphRecords, HoldsGraph, Store
from pipeline.stores import STORES, open_store

SERVERS = {"sqlite": "", "elasticsearch+http": "elasticsearch_url"}
_numbers = count(1)


@pytest.fixture(scope="module", params=sorted(SERVERS))
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    server = SERVERS[request.param]
    return request.getfixturevalue(server) if server else f"sqlite:///{tmp_path_factory.mktemp('stores') / 'store'}"


@pytest.fixture(scope="module")
def store(url: str) -> Iterator[Store]:
    opened = open_store(url, writer=True)
    yield opened
    opened.close()


@pytest.fixture
def graph(store: Store) -> GraphRecords:
    assert isinstance(store, HoldsGraph)
    return store.graph()


@pytest.fixture
def name(store: Store) -> Iterator[str]:
    """A new empty collection."""
    collection = index_name("tests", f"graph {id(store)} {next(_numbers)}", 1)
    store.drop(collection)
    store.ensure(CollectionSpec(collection, 4))
    yield collection
    store.drop(collection)


def hashed(word: str) -> str:
    return hashlib.blake2b(word.encode(), digest_size=16).hexdigest()


def entity(word: str, version: int = 1, body: bytes = b"", **rest: object) -> GraphRecord:
    return replace(GraphRecord(GraphKind.ENTITY, hashed(word), version, body or word.encode()), words=word, **rest)  # pyright: ignore[reportArgumentType]


def body(graph: GraphRecords, name: str, word: str) -> bytes | None:
    found = graph.get(name, GraphKind.ENTITY, [hashed(word)])
    return found[hashed(word)].body if found else None


def test_every_store_keeps_graphs() -> None:
    assert {STORES[scheme] for scheme in SERVERS} == set(STORES.values())


def test_a_collection_without_a_graph_reads_as_an_empty_one(graph: GraphRecords, name: str) -> None:
    assert graph.get(name, GraphKind.HEAD, ["a"]) == {}
    assert list(graph.scan(name, GraphKind.ENTITY)) == []
    assert list(graph.holding(name, GraphKind.PART, [hashed("a")])) == []
    assert graph.find(name, GraphKind.ENTITY, ["a"], 5) == []
    assert graph.count(name, GraphKind.ENTITY) == 0
    assert graph.audit(name).records == 0


def test_a_graph_is_not_written_beside_a_collection_that_is_not_there(graph: GraphRecords) -> None:
    with pytest.raises(NotFound):
        graph.put(index_name("tests", "nowhere", 1), [entity("a")])


def test_a_record_comes_back_as_it_was_written(graph: GraphRecords, name: str) -> None:
    written = GraphRecord(GraphKind.COMMUNITY, "level 0 · 水闸", 7, bytes(range(256)), group="0")
    graph.put(name, [written])
    assert graph.get(name, GraphKind.COMMUNITY, [written.id, "other"]) == {written.id: written}


def test_the_highest_version_wins_and_repeating_changes_nothing(graph: GraphRecords, name: str) -> None:
    for version, text in ((2, b"two"), (1, b"one"), (2, b"two"), (3, b"three"), (2, b"two")):
        graph.put(name, [entity("sluice", version, text)])
    assert body(graph, name, "sluice") == b"three"
    assert graph.count(name, GraphKind.ENTITY) == 1


def test_a_withdrawn_record_is_not_brought_back_by_a_late_writer(graph: GraphRecords, name: str) -> None:
    graph.put(name, [entity("gone", 4), entity("newer", 6)])
    graph.withdraw(name, GraphKind.ENTITY, {hashed("gone"): 5, hashed("newer"): 5, hashed("never there"): 5})
    graph.put(name, [entity("gone", 4), entity("gone", 5), entity("never there", 5)])
    assert (body(graph, name, "gone"), body(graph, name, "never there"), body(graph, name, "newer")) == (None, None, b"newer")
    assert graph.count(name, GraphKind.ENTITY) == 1
    assert [one for one, _ in graph.find(name, GraphKind.ENTITY, ["gone", "newer"], 9)] == [hashed("newer")]
    graph.put(name, [entity("gone", 6)])
    assert body(graph, name, "gone") == b"gone"
    assert graph.purge(name, GraphKind.ENTITY, 6) == 1
    assert graph.purge(name, GraphKind.ENTITY, 6) == 0


def test_of_two_who_saw_the_same_state_one_swaps(graph: GraphRecords, name: str) -> None:
    first, second = (GraphRecord(GraphKind.HEAD, "document", 1, text) for text in (b"first", b"second"))
    assert graph.swap(name, [(first, 0)]) == [True]
    assert graph.swap(name, [(second, 0), (GraphRecord(GraphKind.HEAD, "other", 1, b""), 0)]) == [False, True]
    assert graph.swap(name, [(replace(second, version=2), 1)]) == [True]
    assert graph.swap(name, [(replace(first, version=2), 1)]) == [False]
    assert graph.get(name, GraphKind.HEAD, ["document"])["document"].body == b"second"
    with pytest.raises(BadRequest):
        graph.swap(name, [(first, 1)])


def test_everything_is_listed_in_order_and_once_however_much_it_is(graph: GraphRecords, name: str) -> None:
    words = [f"word {number}" for number in range(1203)]
    graph.put(name, [entity(word, group=str(len(word))) for word in words])
    graph.put(name, [GraphRecord(GraphKind.RELATION, hashed(word), 1, b"") for word in words[:3]])
    assert [one.id for one in graph.scan(name, GraphKind.ENTITY)] == sorted(map(hashed, words))
    assert [one.id for one in graph.scan(name, GraphKind.ENTITY, group="7")] == sorted(hashed(word) for word in words if len(word) == 7)
    middle = sorted(map(hashed, words))[600]
    assert [one.id for one in graph.scan(name, GraphKind.ENTITY, after=middle)] == sorted(map(hashed, words))[601:]
    assert graph.count(name, GraphKind.ENTITY) == 1203


def test_records_are_listed_by_what_they_hold(graph: GraphRecords, name: str) -> None:
    held = {"one": ("a", "b"), "two": ("b",), "three": ("c",)}
    graph.put(name, [GraphRecord(GraphKind.PART, one, 1, b"", holds=tuple(map(hashed, ids))) for one, ids in held.items()])
    listed = [one.id for one in graph.holding(name, GraphKind.PART, [hashed("a"), hashed("b"), hashed("x")])]
    assert sorted(listed) == ["one", "two"]
    graph.remove(name, GraphKind.PART, ["two", "unknown"])
    assert [one.id for one in graph.holding(name, GraphKind.PART, [hashed("b")])] == ["one"]


def test_names_are_found_and_an_old_name_is_not(graph: GraphRecords, name: str) -> None:
    graph.put(name, [replace(entity("a"), words="都江堰 工程"), replace(entity("b"), words="工程 局"), replace(entity("c"), words="other")])
    assert {one for one, _ in graph.find(name, GraphKind.ENTITY, ["工程", "都江堰"], 9)} == {hashed("a"), hashed("b")}
    assert graph.find(name, GraphKind.ENTITY, ["工程", "都江堰"], 1)[0][0] == hashed("a")
    graph.put(name, [replace(entity("a", 2), words="renamed")])
    assert [one for one, _ in graph.find(name, GraphKind.ENTITY, ["都江堰"], 9)] == []
    assert [one for one, _ in graph.find(name, GraphKind.ENTITY, ["renamed"], 9)] == [hashed("a")]
    graph.put(name, [replace(entity("a", 3), words="")])
    assert graph.find(name, GraphKind.ENTITY, ["renamed"], 9) == []
    assert graph.find(name, GraphKind.ENTITY, ['odd " term'], 9) == []


def test_the_digest_depends_on_elements_only_and_not_on_order_or_version(graph: GraphRecords, name: str, store: Store) -> None:
    graph.put(name, [entity("a", 1), entity("b", 1)])
    graph.put(name, [GraphRecord(GraphKind.MARK, "m", 1, b"")])
    first = graph.audit(name)
    graph.put(name, [entity("b", 9), entity("a", 5)])
    assert graph.audit(name) == first
    assert first.records == 2
    graph.put(name, [entity("b", 10, b"other")])
    assert graph.audit(name).digest != first.digest


def test_the_graph_goes_with_its_collection_and_is_no_collection_itself(graph: GraphRecords, name: str, store: Store) -> None:
    graph.put(name, [entity("a")])
    assert name in store.collections()
    assert f"{name}-graph" not in store.collections()
    store.drop(name)
    with pytest.raises(NotFound):
        graph.put(name, [entity("a")])
    store.ensure(CollectionSpec(name, 4))
    assert graph.count(name, GraphKind.ENTITY) == 0


def test_who_opened_for_reading_reads_and_does_not_write(graph: GraphRecords, name: str, url: str) -> None:
    reader = open_store(url, writer=False)
    assert isinstance(reader, HoldsGraph)
    assert reader.graph().count(name, GraphKind.ENTITY) == 0
    graph.put(name, [entity("a")])
    assert reader.graph().count(name, GraphKind.ENTITY) == 1
    with pytest.raises(Conflict):
        reader.graph().put(name, [entity("b")])
    reader.close()


def test_processes_that_write_at_once_lose_nothing(graph: GraphRecords, name: str, url: str) -> None:
    program = (
        "import sys\n"
        "from pipeline.contracts.graph import GraphKind, GraphRecord\n"
        "from pipeline.stores import open_store\n"
        "url, name, who = sys.argv[1], sys.argv[2], int(sys.argv[3])\n"
        "store = open_store(url, writer=True)\n"
        "graph = store.graph()\n"
        "won = 0\n"
        "for turn in range(20):\n"
        "    own = [GraphRecord(GraphKind.ENTITY, f'{who} {turn}', 1, b'x', words='both')]\n"
        "    graph.put(name, own + [GraphRecord(GraphKind.RELATION, 'shared', 3 * turn + who, str(3 * turn + who).encode())])\n"
        "    won += graph.swap(name, [(GraphRecord(GraphKind.HEAD, f'head {turn}', who, b''), 0)])[0]\n"
        "print(won)\n"
        "store.close()\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", program, url, name, str(who)], stdout=subprocess.PIPE, text=True) for who in (1, 2, 3)]
    won = [int(one.communicate(timeout=120)[0]) for one in running]
    assert sum(won) == 20
    assert graph.count(name, GraphKind.ENTITY) == 60
    assert len(graph.find(name, GraphKind.ENTITY, ["both"], 100)) == 60
    assert graph.get(name, GraphKind.RELATION, ["shared"])["shared"].body == b"60"
