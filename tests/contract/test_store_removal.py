"""What every store must do with what was removed: nobody brings it back, and nothing of it stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import NotFound
from pipeline.protocols import Store
from pipeline.stores import open_store
from tests.contract.test_stores import SERVERS, new_collection
from tests.stored import lexical, stored


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
def collection(store: Store) -> Iterator[str]:
    name = new_collection(store)
    yield name
    store.drop(name)


def shown(store: Store, collection: str) -> dict[str, int]:
    found = dict(store.versions(collection))
    held = store.audit(collection)
    assert held.versions == found and set(held.held) == set(found)
    assert {hit.document_id for hit in store.search(collection, lexical("sluice"))} == set(found)
    return found


def test_a_writer_that_comes_late_cannot_bring_a_deleted_document_back(store: Store, collection: str) -> None:
    late = stored("a.md", "the sluice is open", "and shut", version=3)
    store.write(collection, [late])
    assert store.delete(collection, [late.document_id], fence={late.document_id: 4}) == 1
    assert [outcome.written for outcome in store.write(collection, [late])] == [False]
    assert shown(store, collection) == {}


def test_a_document_that_was_deleted_before_it_was_ever_written_stays_away(store: Store, collection: str) -> None:
    late = stored("b.md", "the sluice is new", version=1)
    assert store.delete(collection, [late.document_id], fence={late.document_id: 2}) == 0
    assert [outcome.written for outcome in store.write(collection, [late])] == [False]
    assert shown(store, collection) == {} and store.audit(collection).chunks == 0
    with pytest.raises(NotFound):
        store.document(collection, late.document_id)


def test_a_deleted_document_that_is_taken_in_again_is_shown(store: Store, collection: str) -> None:
    old, new = (stored("c.md", "the sluice again", version=version) for version in (1, 3))
    store.write(collection, [old])
    store.delete(collection, [old.document_id], fence={old.document_id: 2})
    assert [outcome.written for outcome in store.write(collection, [new])] == [True]
    assert shown(store, collection) == {new.document_id: 3}
    assert [outcome.written for outcome in store.write(collection, [old])] == [False]


def test_a_deletion_that_comes_late_leaves_the_newer_document_alone(store: Store, collection: str) -> None:
    new = stored("d.md", "the sluice stays", version=5)
    store.write(collection, [new])
    assert store.delete(collection, [new.document_id], fence={new.document_id: 4}) == 0
    assert shown(store, collection) == {new.document_id: 5}


def test_a_fence_never_sinks(store: Store, collection: str) -> None:
    document = stored("e.md", "the sluice of old", version=4)
    for version in (6, 2):
        store.delete(collection, [document.document_id], fence={document.document_id: version})
    assert [outcome.written for outcome in store.write(collection, [document])] == [False]
    assert shown(store, collection) == {}


def test_a_store_names_what_it_holds(store: Store, collection: str) -> None:
    assert collection in store.collections()
    other = new_collection(store)
    store.drop(other)
    assert other not in store.collections()
    with pytest.raises(NotFound):
        store.versions(other)
    store.expunge(other)


def test_an_audit_counts_the_chunks_of_every_document(store: Store, collection: str) -> None:
    store.write(collection, [stored("f.md", "one sluice", "two"), stored("g.md", "another sluice")])
    assert sorted(store.audit(collection).held.values()) == [(1, 1), (2, 2)]


def test_nothing_of_a_removed_document_is_left_in_the_files_of_the_embedded_store(tmp_path: Path) -> None:
    word = "zirconiumquartz"
    store = open_store(f"sqlite:///{tmp_path}/store", writer=True)
    collection = new_collection(store)
    documents = [
        stored(f"{number}.md", f"sluice number{number} {word if number == 7 else ''}", title=word if number == 7 else "") for number in range(50)
    ]
    store.write(collection, documents)

    def found() -> bool:
        return any(word.encode() in path.read_bytes() for path in (tmp_path / "store").iterdir())

    assert found()
    store.delete(collection, [documents[7].document_id], fence={documents[7].document_id: 2})
    store.expunge(collection)
    assert not found()
    assert store.audit(collection).documents == 49
    store.close()
