"""What every registered store must do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.contracts import CollectionSpec, Filter, Hit, IndexedDocument, Op, Scalar, StoreQuery
from pipeline.errors import BrokenContract, Conflict, NotFound
from pipeline.identity import index_name, text_hash
from pipeline.index import index
from pipeline.protocols import Store
from pipeline.stores import STORES, open_store
from pipeline.stores.filters import matches
from pipeline.text import query_terms
from tests.stored import DIMENSION, lexical, numbered, stored, vector_of

SERVERS = {"sqlite": "", "elasticsearch+http": "elasticsearch_url"}
"""Scheme → fixture that gives the URL of a real server; empty for a folder of the test's own."""
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
def collection(store: Store) -> Iterator[str]:
    """A new empty collection."""
    name = new_collection(store)
    yield name
    store.drop(name)


def new_collection(store: Store, dimension: int = DIMENSION) -> str:
    name = index_name("tests", f"contract {id(store)} {next(_numbers)}", 1)
    store.drop(name)
    store.ensure(CollectionSpec(name, dimension))
    return name


def keys(hits: list[Hit]) -> list[str]:
    return [hit.key for hit in hits]


def everything(store: Store, collection: str, *filters: Filter, **options: object) -> set[str]:
    """Keys of all documents that pass, by asking for what all chunks of a test say."""
    return set(keys(store.search(collection, lexical("sluice", k=100, filters=filters, **options))))


SLUICE = [
    stored(
        "a.md",
        "The sluice gate was repaired in March.",
        "Its keeper is called Lin Cen.",
        title="Report",
        url="https://example.org/a",
        metadata={"year": 2024, "lang": "en", "tags": ["water", "works"], "final": True},
    ),
    stored("b.md", "The sluice is older than the bridge.", title="Bridge", metadata={"year": 2019, "lang": "en", "score": 3.5}),
    stored("c.md", "水闸 sluice 于三月维修。", metadata={"year": "2024", "lang": "zh", "tags": ["water"], "final": False}),
    stored("d.md", "No metadata, but a sluice."),
]


def test_every_scheme_has_a_suite() -> None:
    covered = {STORES[scheme] for scheme in SERVERS}
    assert covered == set(STORES.values())


def test_writing_twice_changes_nothing(store: Store, collection: str) -> None:
    first = index(store, collection, SLUICE)
    before = store.audit(collection)
    second = index(store, collection, SLUICE)
    assert first == second and all(outcome.written for outcome in first)
    assert store.audit(collection) == before
    assert (before.documents, before.chunks, before.vectors) == (4, 5, 5)


def test_a_newer_version_replaces_the_older_one_whole(store: Store, collection: str) -> None:
    store.write(collection, [numbered(1)])
    outcome = store.write(collection, [stored("doc-00001", "only one paragraph now", version=2)])
    assert [(o.written, o.chunks, o.version) for o in outcome] == [(True, 1, 2)]
    audit = store.audit(collection)
    assert (audit.documents, audit.chunks, audit.versions[outcome[0].document_id]) == (1, 1, 2)
    assert store.search(collection, lexical("number1")) == []
    assert len(store.spans(collection, outcome[0].document_id)) == 1


def test_an_older_version_never_wins(store: Store, collection: str) -> None:
    store.write(collection, [stored("a", "the new text", version=7)])
    before = store.audit(collection)
    outcome = store.write(collection, [stored("a", "the old text", version=6), stored("b", "a neighbour")])
    assert [o.written for o in outcome] == [False, True]
    assert store.text(collection, outcome[0].document_id).startswith("the new text")
    assert store.audit(collection).versions[outcome[0].document_id] == before.versions[outcome[0].document_id] == 7


def test_versions_of_one_document_in_one_call_leave_the_highest(store: Store, collection: str) -> None:
    store.write(collection, [numbered(1, 2), numbered(1, 3), numbered(1, 1)])
    assert list(store.audit(collection).versions.values()) == [3]
    assert store.audit(collection).chunks == 3


def test_deleting_a_document_leaves_nothing_of_it(store: Store, collection: str) -> None:
    store.write(collection, SLUICE)
    gone = SLUICE[0].document_id
    assert store.delete(collection, [gone, "unknown", gone]) == 1
    assert store.delete(collection, [gone]) == 0
    assert "a.md" not in everything(store, collection)
    assert gone not in store.audit(collection).versions
    assert store.spans(collection, gone) == () and store.vectors(collection, gone)[0] == ()
    with pytest.raises(NotFound):
        store.document(collection, gone)
    assert "a.md" not in keys(store.search(collection, StoreQuery(vector=SLUICE[0].vectors[0])))


def test_ten_thousand_documents_can_be_deleted_in_one_call(store: Store, collection: str) -> None:
    documents = [stored(f"doc-{number:05}", f"sluice number{number}") for number in range(10_000)]
    for start in range(0, len(documents), 1000):
        store.write(collection, documents[start : start + 1000])
    assert store.audit(collection).documents == 10_000
    assert store.delete(collection, [document.document_id for document in documents[1:]]) == 9_999
    assert store.audit(collection).chunks == 1
    assert everything(store, collection) == {"doc-00000"}


YEAR_2024: list[tuple[Filter, set[str]]] = [
    (Filter("year", Op.EQ, 2024), {"a.md"}),
    (Filter("year", Op.EQ, 2024.0), {"a.md"}),
    (Filter("year", Op.EQ, "2024"), {"c.md"}),
    (Filter("year", Op.NE, 2024), {"b.md", "c.md", "d.md"}),
    (Filter("year", Op.GT, 2019), {"a.md"}),
    (Filter("year", Op.GTE, 2019), {"a.md", "b.md"}),
    (Filter("year", Op.LT, 2024), {"b.md"}),
    (Filter("year", Op.LTE, "2024"), {"c.md"}),
    (Filter("year", Op.IN, (2019, "2024")), {"b.md", "c.md"}),
    (Filter("score", Op.GT, 3), {"b.md"}),
    (Filter("lang", Op.IN, ("zh", "fr")), {"c.md"}),
    (Filter("tags", Op.EQ, "water"), {"a.md", "c.md"}),
    (Filter("tags", Op.NE, "works"), {"b.md", "c.md", "d.md"}),
    (Filter("final", Op.EQ, True), {"a.md"}),
    (Filter("final", Op.EQ, 1), set()),
    (Filter("final", Op.EXISTS, True), {"a.md", "c.md"}),
    (Filter("final", Op.EXISTS, False), {"b.md", "d.md"}),
    (Filter("key", Op.EQ, "b.md"), {"b.md"}),
    (Filter("key", Op.GTE, "c"), {"c.md", "d.md"}),
    (Filter("title", Op.IN, ("Report", "Bridge")), {"a.md", "b.md"}),
    (Filter("title", Op.EXISTS, False), {"c.md", "d.md"}),
    (Filter("url", Op.NE, "https://example.org/a"), {"b.md", "c.md", "d.md"}),
    (Filter("document_id", Op.EQ, SLUICE[3].document_id), {"d.md"}),
    (Filter("lang", Op.EQ, "en' OR '1'='1"), set()),
    (Filter("x') OR 1=1 --", Op.EQ, "y"), set()),
    (Filter('"]}); DROP TABLE documents; --', Op.EXISTS, True), set()),
]


@pytest.fixture(scope="module")
def sluices(store: Store) -> Iterator[str]:
    """The four documents, for tests that change nothing."""
    name = new_collection(store)
    store.write(name, SLUICE)
    yield name
    store.drop(name)


@pytest.mark.parametrize(
    ("condition", "expected"), YEAR_2024, ids=lambda value: f"{value.name} {value.op} {value.value}" if isinstance(value, Filter) else ""
)
def test_filters_compare_by_type(store: Store, sluices: str, condition: Filter, expected: set[str]) -> None:
    assert everything(store, sluices, condition) == expected


_SCALARS = st.one_of(
    st.sampled_from(["2024", "en", "zh", "water", "", "b.md"]), st.sampled_from([2019, 2024, 2024.0, 3.5, 3, 0, -1, 10**15]), st.booleans()
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    asked=st.lists(
        st.builds(
            Filter,
            st.sampled_from(["year", "lang", "tags", "final", "score", "absent", "key", "title"]),
            st.sampled_from([Op.EQ, Op.NE, Op.GT, Op.GTE, Op.LT, Op.LTE]),
            _SCALARS,
        ),
        max_size=2,
    )
)
def test_filters_mean_what_the_shared_semantics_say(store: Store, sluices: str, asked: list[Filter]) -> None:
    def passes(document: IndexedDocument) -> bool:
        fields = {"document_id": document.document_id, "key": document.key, "title": document.title, "url": document.url}
        return matches(asked, document.metadata, fields)

    assert everything(store, sluices, *asked) == {document.key for document in SLUICE if passes(document)}


def test_filters_apply_before_the_best_are_chosen(store: Store, collection: str) -> None:
    """One wanted document behind fifty better ones is found on both sides with k = 1."""
    rest = [stored(f"near-{number}", "sluice sluice sluice", metadata={"want": False}) for number in range(50)]
    store.write(collection, [*rest, stored("far", "a sluice among many other words that dilute it", metadata={"want": True})])
    only = (Filter("want", Op.EQ, True),)
    assert keys(store.search(collection, lexical("sluice", k=1, filters=only))) == ["far"]
    assert keys(store.search(collection, StoreQuery(vector=vector_of("sluice sluice sluice"), k=1, filters=only))) == ["far"]


def test_full_text_ranks_the_passage_that_says_it(store: Store, sluices: str) -> None:
    found = store.search(sluices, lexical("Who is the keeper?", k=5))
    assert (found[0].key, found[0].ordinal) == ("a.md", 1)
    assert set(found[0].scores) == {"lexical"} and found[0].scores["lexical"] > 0
    assert "«keeper»" in found[0].highlight


def test_a_hit_carries_what_a_citation_needs(store: Store, collection: str) -> None:
    document = stored("t.csv", "Lin | 5", "Cen | 7", lead="name | days", title="Days", url="https://example.org/t", metadata={"n": 1, "tags": ["x"]})
    store.write(collection, [document])
    (hit,) = store.search(collection, lexical("Cen", k=1))
    chunk = document.chunks[1]
    assert (hit.text, hit.start, hit.end) == (chunk.text, chunk.start, chunk.end)
    assert document.parsed.text[hit.start : hit.end] == hit.text == store.text(collection, hit.document_id, hit.start, hit.end)
    assert (hit.chunk_id, hit.document_id, hit.version, hit.ordinal) == (chunk.chunk_id, document.document_id, 1, 1)
    assert (hit.title, hit.url, hit.lead, hit.kind, hit.tokens) == ("Days", "https://example.org/t", "name | days", "text", len(chunk.text))
    assert (hit.page, hit.line_start, hit.line_end, hit.heading_path) == (2, 3, 3, ("Top", "Sub"))
    assert dict(hit.metadata) == {"n": 1, "tags": ["x"]} and hit.vector is None


def test_simplified_question_finds_traditional_text(store: Store, collection: str) -> None:
    store.write(collection, [stored("t", "林岑批准這次出差搭高鐵。"), stored("u", "會議改到星期三。")])
    assert keys(store.search(collection, lexical("谁批准这次出差搭高铁？", k=1))) == ["t"]
    assert keys(store.search(collection, lexical("會議什麼時候開？", k=1))) == ["u"]


def test_terms_are_never_read_as_query_syntax(store: Store, sluices: str) -> None:
    for term in ('"', "AND", "NOT sluice", "words:sluice", "*", "(", "sluice*", "", "\x00", "NEAR(a b)", "{words}"):
        assert everything(store, sluices) == {"a.md", "b.md", "c.md", "d.md"}
        store.search(sluices, StoreQuery(words=(term,), grams=(term,)))


def test_vectors_rank_by_cosine(store: Store, sluices: str) -> None:
    wanted = SLUICE[1].vectors[0]
    found = store.search(sluices, StoreQuery(vector=wanted * 3, k=3))
    assert len(found) == 3 and found[0].key == "b.md"
    assert found[0].scores == {"similarity": pytest.approx(1.0, abs=1e-5)}
    figures = [hit.scores["similarity"] for hit in found]
    assert figures == sorted(figures, reverse=True)


def test_hybrid_gives_both_scores_for_every_candidate(store: Store, sluices: str) -> None:
    wanted = SLUICE[3].vectors[0]
    words, grams = query_terms("keeper")
    found = {(hit.key, hit.ordinal): hit for hit in store.search(sluices, StoreQuery(words, grams, wanted, k=1))}
    assert set(found) == {("a.md", 1), ("d.md", 0)}
    assert found["d.md", 0].scores["lexical"] == 0.0
    assert found["a.md", 1].scores["lexical"] > 0.0
    assert found["d.md", 0].scores["similarity"] == pytest.approx(1.0, abs=1e-5)
    assert found["a.md", 1].scores["similarity"] == pytest.approx(float(SLUICE[0].vectors[1] @ wanted), abs=1e-5)


def test_hybrid_lexical_score_is_that_of_full_text_alone(store: Store, sluices: str) -> None:
    words, grams = query_terms("old sluice bridge")
    alone = {(h.key, h.ordinal): h.scores["lexical"] for h in store.search(sluices, StoreQuery(words, grams, k=10))}
    for hit in store.search(sluices, StoreQuery(words, grams, vector_of("x"), k=2)):
        assert hit.scores["lexical"] == pytest.approx(alone.get((hit.key, hit.ordinal), 0.0), rel=1e-5)


def test_min_similarity_holds_back_what_is_not_near(store: Store, sluices: str) -> None:
    wanted = SLUICE[0].vectors[0]
    found = store.search(sluices, StoreQuery(vector=wanted, k=10, min_similarity=0.99))
    assert [(hit.key, hit.ordinal) for hit in found] == [("a.md", 0)]


def test_min_match_asks_for_a_share_of_the_terms(store: Store, collection: str) -> None:
    store.write(collection, [stored("both", "gate keeper"), stored("one", "gate only")])
    assert keys(store.search(collection, StoreQuery(words=("gate", "keeper"), min_match=1.0))) == ["both"]
    assert set(keys(store.search(collection, StoreQuery(words=("gate", "keeper"), min_match=0.5)))) == {"both", "one"}


def test_ties_go_by_key_and_ordinal(store: Store, collection: str) -> None:
    same = [stored(f"k{number}", "exactly the same", "exactly the same") for number in (3, 1, 2)]
    store.write(collection, same)
    found = store.search(collection, lexical("exactly the same", k=3))
    assert [(hit.key, hit.ordinal) for hit in found] == [("k1", 0), ("k1", 1), ("k2", 0)]


def test_vectors_come_back_on_request(store: Store, sluices: str) -> None:
    (hit,) = store.search(sluices, lexical("keeper", k=1, with_vectors=True))
    assert hit.vector is not None and hit.vector.shape == (DIMENSION,)
    np.testing.assert_allclose(hit.vector, SLUICE[0].vectors[1], atol=1e-6)
    hashes, vectors = store.vectors(sluices, SLUICE[0].document_id)
    assert hashes == tuple(text_hash(chunk.searched) for chunk in SLUICE[0].chunks)
    np.testing.assert_allclose(vectors, SLUICE[0].vectors, atol=1e-6)
    assert store.vectors(sluices, "unknown")[1].shape == (0, DIMENSION)


def test_wrong_dimension_is_refused_naming_both(store: Store, collection: str) -> None:
    wrong = stored("w", "text", vectors=np.ones((1, DIMENSION + 1), dtype=np.float32))
    with pytest.raises(BrokenContract) as refused:
        store.write(collection, [wrong])
    assert str(DIMENSION) in refused.value.detail and str(DIMENSION + 1) in refused.value.detail
    with pytest.raises(BrokenContract):
        store.search(collection, StoreQuery(vector=np.ones(DIMENSION + 1, dtype=np.float32)))
    with pytest.raises(Conflict):
        store.ensure(CollectionSpec(collection, DIMENSION + 1))
    assert store.audit(collection).documents == 0


@pytest.mark.parametrize("vectors", [np.ones((1, DIMENSION)), np.ones((3, DIMENSION)), np.full((2, DIMENSION), np.nan), np.ones(DIMENSION)])
def test_vectors_that_do_not_fit_the_chunks_are_refused(store: Store, collection: str, vectors: np.ndarray) -> None:
    with pytest.raises(BrokenContract):
        index(store, collection, [stored("w", "one", "two", vectors=vectors.astype(np.float32))])
    assert store.audit(collection).documents == 0


def test_a_vector_of_zeros_counts_as_none(store: Store, collection: str) -> None:
    store.write(collection, [stored("z", "nothing", "something", vectors=np.stack([np.zeros(DIMENSION, np.float32), vector_of("something")]))])
    audit = store.audit(collection)
    assert (audit.chunks, audit.vectors) == (2, 1)
    assert [hit.ordinal for hit in store.search(collection, StoreQuery(vector=vector_of("q")))] == [1]
    assert store.search(collection, lexical("nothing", vector=np.zeros(DIMENSION, np.float32)))[0].scores["similarity"] == 0.0


def test_several_writer_processes_lose_nothing(url: str, store: Store, collection: str) -> None:
    command = [sys.executable, "-m", "tests.stored", url, collection]
    root = Path(__file__).parents[2]
    writers = [subprocess.Popen([*command, str(first), "20"], cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for first in (0, 20, 10)]
    for writer in writers:
        _, errors = writer.communicate(timeout=120)
        assert writer.returncode == 0, errors.decode()
    audit = store.audit(collection)
    assert (audit.documents, audit.chunks, audit.vectors) == (40, 120, 120)
    assert {hit.key for hit in store.search(collection, lexical("number39", k=3))} == {"doc-00039"}


def test_digest_does_not_depend_on_the_order_of_writing(store: Store, collection: str) -> None:
    store.write(collection, SLUICE)
    other = new_collection(store)
    for document in reversed(SLUICE):
        store.write(other, [replace(document, version=5)])
    assert store.audit(other).digest == store.audit(collection).digest
    store.write(other, [stored("d.md", "No metadata, but a sluice", version=6)])
    assert store.audit(other).digest != store.audit(collection).digest
    store.drop(other)


def test_digest_is_the_same_in_another_store(store: Store, collection: str, tmp_path: Path) -> None:
    second = open_store(f"sqlite:///{tmp_path / 'second'}", writer=True)
    second.ensure(CollectionSpec("same", DIMENSION))
    documents = [*SLUICE, stored("e", "headed", search_text="Heading", version=3)]
    second.write("same", documents)
    store.write(collection, documents)
    assert store.audit(collection) == second.audit("same")
    second.close()


def test_documents_come_back_whole(store: Store, collection: str) -> None:
    document = stored("whole", "第一段。", "second 😀 paragraph", title="T")
    store.write(collection, [document])
    name, text = document.document_id, document.parsed.text
    assert store.document(collection, name) == document.parsed
    assert store.text(collection, name) == text
    assert store.text(collection, name, 2, 9) == text[2:9]
    assert store.text(collection, name, 3) == text[3:] and store.text(collection, name, 4, 10_000) == text[4:]
    assert store.sections(collection, name) == document.parsed.sections
    first = document.parsed.sections[0]
    assert store.sections(collection, name, first.start, first.end) == (first,)
    assert store.spans(collection, name) == tuple((chunk.chunk_id, (chunk.start, chunk.end)) for chunk in document.chunks)
    for call in (store.text, store.sections, store.document):
        with pytest.raises(NotFound):
            call(collection, "unknown")


def test_a_document_without_chunks_is_kept(store: Store, collection: str) -> None:
    empty = stored("empty")
    assert store.write(collection, [empty])[0].written
    assert store.document(collection, empty.document_id).text == ""
    audit = store.audit(collection)
    assert (audit.documents, audit.chunks) == (1, 0)
    assert store.delete(collection, [empty.document_id]) == 1


def test_an_empty_collection_answers_with_nothing(store: Store, collection: str) -> None:
    assert store.search(collection, lexical("sluice", vector=vector_of("x"))) == []
    assert store.search(collection, StoreQuery()) == []
    assert store.frequencies(collection, ["sluic"]) == (0, {"sluic": 0})
    audit = store.audit(collection)
    assert (audit.documents, audit.chunks, audit.vectors, dict(audit.versions)) == (0, 0, 0, {})
    assert store.write(collection, []) == [] and store.delete(collection, []) == 0


def test_a_dropped_collection_is_gone_and_can_be_made_anew(store: Store) -> None:
    name = new_collection(store)
    store.write(name, SLUICE)
    store.search(name, StoreQuery(vector=vector_of("x")))
    store.drop(name)
    store.drop(name)
    for call in (lambda: store.audit(name), lambda: store.search(name, lexical("sluice")), lambda: store.write(name, SLUICE)):
        with pytest.raises(NotFound):
            call()
    store.ensure(CollectionSpec(name, 4))
    assert store.search(name, StoreQuery(vector=np.ones(4, dtype=np.float32))) == []
    store.drop(name)


def test_frequencies_count_chunks_that_hold_a_term(store: Store, collection: str) -> None:
    store.write(collection, [stored("f", "gate gate keeper", "gate", "水闸")])
    words, _ = query_terms("gate keeper absent")
    total, counts = store.frequencies(collection, [*words, "水", "水闸"])
    assert total == 3
    assert [counts[term] for term in (*words, "水", "水闸")] == [2, 1, 0, 1, 1]
    store.delete(collection, [stored("f").document_id])
    assert store.frequencies(collection, words)[1][words[0]] == 0


def test_as_of_shows_what_was_known_then(store: Store, collection: str) -> None:
    """Undated chunks are left out: nobody can say that they were known."""
    march = datetime(2026, 3, 1, 0, 30, tzinfo=timezone(timedelta(hours=8)))
    dates = [(march, None), (march + timedelta(days=1), march + timedelta(days=3)), (None, None)]
    store.write(collection, [stored("turns", "sluice one", "sluice two", "sluice three", dates=dates)])

    def shown(moment: datetime) -> list[int]:
        by_terms = {hit.ordinal for hit in store.search(collection, lexical("sluice", k=10, as_of=moment))}
        by_vector = {hit.ordinal for hit in store.search(collection, StoreQuery(vector=vector_of("q"), k=10, as_of=moment))}
        assert by_terms == by_vector
        return sorted(by_terms)

    utc = datetime(2026, 2, 28, 16, 30, tzinfo=UTC)
    assert shown(utc - timedelta(microseconds=1)) == []
    assert shown(utc) == [0]
    assert shown(utc + timedelta(days=2)) == [0, 1]
    assert shown(utc + timedelta(days=3)) == [0]


def test_a_reader_sees_what_a_writer_wrote_since(url: str, store: Store, collection: str) -> None:
    reader = open_store(url, writer=False)
    assert reader.search(collection, StoreQuery(vector=vector_of("x"))) == []
    store.write(collection, [numbered(1), numbered(2)])
    assert len(reader.search(collection, StoreQuery(vector=vector_of("x"), k=10))) == 6
    store.write(collection, [numbered(1, 2)])
    store.delete(collection, [numbered(2).document_id])
    found = reader.search(collection, StoreQuery(vector=vector_of("x"), k=10))
    assert {(hit.key, hit.version) for hit in found} == {("doc-00001", 2)} and len(found) == 3
    with pytest.raises(Conflict):
        reader.write(collection, [numbered(3)])
    reader.close()


def test_scores_follow_every_write(store: Store, collection: str) -> None:
    """What is remembered between searches never outlives a write: each state equals a collection built anew."""
    build: Callable[[int, int], IndexedDocument] = numbered
    for step in range(1, 6):
        store.write(collection, [build(number, step) for number in range(step)])
        store.delete(collection, [build(step - 2, 1).document_id])
        fresh = new_collection(store)
        live = [build(number, step) for number in range(step) if number != step - 2]
        store.write(fresh, live)
        query = StoreQuery(vector=vector_of("q"), k=50)
        one, other = store.search(collection, query), store.search(fresh, query)
        assert [(h.key, h.ordinal, h.text) for h in one] == [(h.key, h.ordinal, h.text) for h in other]
        assert store.audit(collection).digest == store.audit(fresh).digest
        store.drop(fresh)


_VALUES: list[Scalar] = ["é", "\U0001f600", 10**18, 10**18 + 1, -0.0, 1e-300]


@pytest.mark.parametrize("value", _VALUES)
def test_unusual_values_are_found_again(store: Store, collection: str, value: Scalar) -> None:
    store.write(collection, [stored("v", "sluice", metadata={'odd "name" \' $.x': value})])
    assert everything(store, collection, Filter('odd "name" \' $.x', Op.EQ, value)) == {"v"}
    assert everything(store, collection, Filter('odd "name" \' $.x', Op.NE, value)) == set()
