"""What differs between Elasticsearch 8.19 and 9, and what must not."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
import orjson
import pytest

from pipeline.contracts import CollectionSpec, Filter, Op, Scalar, StoreQuery
from pipeline.errors import BrokenContract, Conflict, Unsupported
from pipeline.stores.elasticsearch import ElasticsearchStore
from pipeline.stores.elasticsearch_mapping import template
from tests.integration.elasticsearch_documents import DIMENSION, document, new_name, vector_of, word
from tests.integration.elasticsearch_proxy import Proxy, proxied


@dataclass
class Served:
    """A store, the collection it may use, and the proxy it speaks through."""

    store: ElasticsearchStore
    name: str
    proxy: Proxy
    current: bool


@pytest.fixture(params=["elasticsearch_url", "elasticsearch_8_url"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    with proxied(request.getfixturevalue(request.param)) as proxy:
        store, name = ElasticsearchStore(proxy.url), new_name()
        store.ensure(CollectionSpec(name, DIMENSION))
        yield Served(store, name, proxy, request.param == "elasticsearch_url")
        store.drop(name)
        store.close()


def test_vectors_travel_as_base64_where_the_server_takes_them(served: Served) -> None:
    served.store.write(served.name, [document("one", ["some word"])])
    served.store.search(served.name, StoreQuery(vector=vector_of("some word")))
    (rows,) = [seen for seen in served.proxy.seen if seen.path.startswith(f"/{served.name}/_bulk")]
    (search,) = [seen for seen in served.proxy.seen if "_msearch" in seen.path]
    assert isinstance(rows.lines[1]["vector"], str if served.current else list)
    assert (b'"query_vector":"' in search.body) == served.current


def test_vectors_come_back_and_cosines_are_exact(served: Served) -> None:
    texts = [f"word {i}" for i in range(300)]
    served.store.write(served.name, [document("all", texts)])
    hashes, vectors = served.store.vectors(served.name, "all")
    assert len(set(hashes)) == 300 and vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, np.array([vector_of(text) for text in texts]), rtol=1e-6, atol=1e-6)
    wanted = vector_of("a question")
    cosines = vectors @ wanted / np.linalg.norm(vectors, axis=1) / np.linalg.norm(wanted)
    hits = served.store.search(served.name, StoreQuery(words=("7",), vector=wanted, k=10, with_vectors=True))
    assert {hit.ordinal for hit in hits} == {*np.argsort(-cosines)[:10].tolist(), 7}
    for hit in hits:
        assert hit.scores["similarity"] == pytest.approx(cosines[hit.ordinal], abs=1e-5)
        assert hit.vector is not None and hit.vector == pytest.approx(vectors[hit.ordinal])


def test_a_vector_of_zeros_is_near_nothing_and_hurts_nobody(served: Served) -> None:
    zeros = np.zeros((2, DIMENSION), dtype=np.float32)
    zeros[1] = vector_of("second word")
    served.store.write(served.name, [document("half", ["first word", "second word"], vectors=zeros)])
    np.testing.assert_allclose(served.store.vectors(served.name, "half")[1], zeros, rtol=1e-6)
    found = {hit.text: hit.scores for hit in served.store.search(served.name, replace(word("word"), vector=zeros[1]))}
    assert found["first word"]["similarity"] == 0.0 and found["second word"]["similarity"] == pytest.approx(1.0)
    assert {hit.scores["similarity"] for hit in served.store.search(served.name, replace(word("word"), vector=zeros[0]))} == {0.0}
    assert served.store.audit(served.name).vectors == 1


VALUES: list[Scalar | list[str]] = [1, -1, 0, 1.5, 2**53, 2**53 + 1, -(2**62), 1e300, "1", "", "b", "ba", "林", True, ["x", "b"], None]
ORDER: dict[Op, Callable[..., bool]] = {Op.GT: operator.gt, Op.GTE: operator.ge, Op.LT: operator.lt, Op.LTE: operator.le}


def test_ranges_of_metadata_compare_numbers_as_numbers_and_strings_as_strings(served: Served) -> None:
    documents = [document(f"d{i}", ["word"], metadata={"value": value, "other": 5}) for i, value in enumerate(VALUES)]
    served.store.write(served.name, documents)
    for op, compare in ORDER.items():
        for bound in (0, 1.5, 2**53, 2**53 + 1, -(2**62), "b", "", "林"):
            found = served.store.search(served.name, replace(word("word", k=50), filters=(Filter("value", op, bound),)))
            kind = str if isinstance(bound, str) else (int, float)
            members = [value if isinstance(value, list) else [value] for value in VALUES]
            fits = [any(isinstance(v, kind) and not isinstance(v, bool) and compare(v, bound) for v in values) for values in members]
            assert {hit.document_id for hit in found} == {f"d{i}" for i, fit in enumerate(fits) if fit}, (op, bound)


def test_a_thousand_metadata_names_do_not_grow_the_mapping(served: Served) -> None:
    served.store.write(served.name, [document("wide", ["word"], metadata={f"name {i}": i for i in range(1500)})])
    query = replace(word("word"), filters=(Filter("name 1499", Op.GTE, 1499), Filter("name 0", Op.EQ, 0)))
    assert [hit.document_id for hit in served.store.search(served.name, query)] == ["wide"]


def test_thousands_of_documents_are_deleted_in_bounded_pieces(served: Served) -> None:
    names = [f"d{i}" for i in range(3000)]
    vectors = np.ones((1, DIMENSION), dtype=np.float32)
    for start in range(0, 3000, 1000):
        served.store.write(served.name, [document(name, ["word"], vectors=vectors) for name in names[start : start + 1000]])
    served.store.write(served.name, [document("stays", ["word"])])
    served.proxy.seen.clear()
    assert served.store.delete(served.name, [*names, "unknown"]) == 3000
    assert max(len(seen.body) for seen in served.proxy.seen) < 5_100_000 and len(served.proxy.seen) < 30
    left = served.store.audit(served.name)
    assert (left.documents, left.chunks, served.store.purge(served.name)) == (1, 1, 0)
    assert served.store.frequencies(served.name, ["word"]) == (1, {"word": 1})


def test_a_document_longer_than_one_record_keeps_its_text(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.stores.elasticsearch_rows.BODY_BYTES", 1000)
    letters = np.random.default_rng(1).integers(0x4E00, 0x9FFF, 9000)
    text = "".join(map(chr, letters))
    for version in (1, 2):
        served.store.write(served.name, [document("long", [text], version=version)])
    assert served.store.text(served.name, "long", 10, 5000) == text[10:5000]
    assert served.store.purge(served.name) == 0


def test_a_document_without_chunks_is_kept_and_counted(served: Served) -> None:
    served.store.write(served.name, [document("empty", ["word"])])
    served.store.write(served.name, [document("empty", [], version=2)])
    assert served.store.text(served.name, "empty") == ""
    left = served.store.audit(served.name)
    assert (left.documents, left.chunks, left.versions) == (1, 0, {"empty": 2})
    assert served.store.spans(served.name, "empty") == ()


def test_a_collection_keeps_its_dimension_and_a_question_must_have_it(served: Served) -> None:
    served.store.ensure(CollectionSpec(served.name, DIMENSION))
    with pytest.raises(Conflict):
        served.store.ensure(CollectionSpec(served.name, DIMENSION + 1))
    with pytest.raises(Unsupported):
        served.store.ensure(CollectionSpec(new_name(), 5000))
    with pytest.raises(BrokenContract):
        served.store.search(served.name, StoreQuery(vector=np.ones(3, dtype=np.float32)))


def test_collections_are_made_under_the_operators_template(served: Served) -> None:
    """Shards and replicas come from the template; the store adds the dimension."""
    wanted = orjson.loads(orjson.dumps(template()))
    wanted["template"]["settings"]["index"]["number_of_replicas"] = 0
    call = served.store._client.call
    call("PUT", "/_index_template/dujiang", wanted)
    name = new_name()
    try:
        served.store.ensure(CollectionSpec(name, DIMENSION))
        served.store.write(name, [document("one", ["word"])])
        assert len(served.store.search(name, replace(word("word"), vector=vector_of("word")))) == 1
        settings = call("GET", f"/{name}/_settings")
        assert [s["settings"]["index"]["number_of_replicas"] for s in settings.values()] == ["0"]  # type: ignore[attr-defined]
    finally:
        served.store.drop(name)
        call("DELETE", "/_index_template/dujiang")


def test_the_time_limit_is_exact_to_the_microsecond(served: Served) -> None:
    moment = datetime(1999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    timed = document("turn", ["word"])
    served.store.write(served.name, [replace(timed, chunks=(replace(timed.chunks[0], valid_from=moment),))])
    assert len(served.store.search(served.name, replace(word("word"), as_of=moment))) == 1
    assert served.store.search(served.name, replace(word("word"), as_of=moment.replace(microsecond=999_998))) == []
