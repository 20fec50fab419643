"""What Elasticsearch refuses, throttles or loses half way, against a real server behind a proxy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import orjson
import pytest

from pipeline.contracts import CollectionSpec
from pipeline.errors import BrokenContract, NotFound, RateLimited, Unavailable
from pipeline.stores.elasticsearch import ElasticsearchStore
from tests.integration.elasticsearch_documents import DIMENSION, document, new_name, with_bad_row, word
from tests.integration.elasticsearch_proxy import CutOff, Proxy, Request, proxied

Forward = Callable[[Request], bytes]


@pytest.fixture
def proxy(elasticsearch_url: str) -> Iterator[Proxy]:
    with proxied(elasticsearch_url) as running:
        yield running


@pytest.fixture
def collection(elasticsearch_url: str) -> Iterator[str]:
    name = new_name()
    store = ElasticsearchStore(elasticsearch_url)
    store.ensure(CollectionSpec(name, DIMENSION))
    yield name
    store.drop(name)
    store.close()


@pytest.fixture
def direct(elasticsearch_url: str) -> Iterator[ElasticsearchStore]:
    store = ElasticsearchStore(elasticsearch_url)
    yield store
    store.close()


@pytest.fixture
def through(proxy: Proxy) -> Iterator[ElasticsearchStore]:
    """A store whose requests pass the proxy, and which does not really wait between attempts."""
    store = ElasticsearchStore(proxy.url, pauses_s=(0.0, 0.0, 0.0), sleep=lambda seconds: None)
    yield store
    store.close()


def throttle(wanted: Callable[[str], bool], times: int) -> Callable[[Request, Forward], bytes | None]:
    """Answer 429 for the chosen row ids, as an overfull queue does, and pass the others on; each id so many times."""
    left: dict[str, int] = {}

    def rule(request: Request, forward: Forward) -> bytes | None:
        if not request.is_bulk:
            return None
        lines = request.body.splitlines(keepends=True)
        names = [line["index"]["_id"] for line in request.lines[::2] if "index" in line]  # type: ignore[index]
        if len(names) * 2 != len(lines):
            return None
        refused = [name for name in names if wanted(name) and left.setdefault(name, times) > 0]
        for name in refused:
            left[name] -= 1
        if not refused:
            return None
        passed = b"".join(b"".join(lines[2 * i : 2 * i + 2]) for i, name in enumerate(names) if name not in refused)
        items = iter(orjson.loads(forward(Request(request.method, request.path, passed)))["items"] if passed else [])
        error = {"status": 429, "error": {"type": "es_rejected_execution_exception", "reason": "rejected"}}
        answer = [{"index": error | {"_id": name}} if name in refused else next(items) for name in names]
        return orjson.dumps({"took": 1, "errors": True, "items": answer})

    return rule


def test_throttled_rows_are_sent_again_alone(proxy: Proxy, through: ElasticsearchStore, direct: ElasticsearchStore, collection: str) -> None:
    proxy.rule = throttle(lambda row: row.startswith("slow:"), times=2)
    documents = [document("quick", ["one word"] * 5), document("slow", ["other word"] * 3)]
    assert [outcome.written for outcome in through.write(collection, documents)] == [True, True]
    sent = [[line["index"]["_id"] for line in seen.lines[::2]] for seen in proxy.seen if seen.path.startswith(f"/{collection}/_bulk")]  # type: ignore[index]
    assert [len(ids) for ids in sent] == [8, 3, 3]
    assert len(direct.search(collection, word("word", k=20))) == 8


def test_rows_throttled_without_end_cost_no_attempt_and_show_nothing(
    proxy: Proxy, through: ElasticsearchStore, direct: ElasticsearchStore, collection: str
) -> None:
    proxy.rule = throttle(lambda row: row.startswith("slow:"), times=99)
    with pytest.raises(RateLimited) as problem:
        through.write(collection, [document("slow", ["other word"] * 3)])
    assert not problem.value.costs_attempt
    proxy.rule = None
    assert direct.search(collection, word("word")) == []


def test_a_refused_document_does_not_hold_up_its_neighbours(direct: ElasticsearchStore, collection: str) -> None:
    batch = [document("first", ["good word"]), with_bad_row(document("second", ["secret word", "more"])), document("third", ["good word"])]
    with pytest.raises(BrokenContract) as problem:
        direct.write(collection, batch)
    assert problem.value.document == "file:///second"
    assert "secret" not in str(problem.value)
    assert {hit.document_id for hit in direct.search(collection, word("word"))} == {"first", "third"}
    with pytest.raises(NotFound):
        direct.document(collection, "second")


def test_a_refused_update_leaves_the_old_version_shown(direct: ElasticsearchStore, collection: str) -> None:
    direct.write(collection, [document("only", ["old word"])])
    with pytest.raises(BrokenContract):
        direct.write(collection, [with_bad_row(document("only", ["new word"], version=2))])
    assert [hit.text for hit in direct.search(collection, word("word"))] == ["old word"]


@pytest.mark.parametrize("fault", ["dimension", "count", "nan", "surrogate", "long id"])
def test_a_document_that_breaks_the_contract_is_named_before_anything_of_it_is_sent(direct: ElasticsearchStore, collection: str, fault: str) -> None:
    good = document("bad", ["some word"])
    bad = {
        "dimension": replace(good, vectors=good.vectors[:, :4]),
        "count": replace(good, vectors=good.vectors[:0]),
        "nan": replace(good, vectors=good.vectors * float("nan")),
        "surrogate": replace(good, title="\ud800"),
        "long id": replace(good, document_id="x" * 600),
    }[fault]
    with pytest.raises(BrokenContract) as problem:
        direct.write(collection, [bad, document("good", ["some word"])])
    assert problem.value.document == bad.key
    assert [hit.document_id for hit in direct.search(collection, word("word"))] == ["good"]


def shown(store: ElasticsearchStore, collection: str) -> tuple[str, ...]:
    """What a reader sees of the document, by search and by text; the two must agree."""
    found = tuple(sorted(hit.text for hit in store.search(collection, word("word", k=20))))
    assert found == tuple(sorted(store.text(collection, "only").splitlines()))
    return found


OLD, NEW = ("old word one", "old word three", "old word two"), ("new word",)


def test_at_every_moment_of_a_write_a_reader_sees_one_version_whole(
    proxy: Proxy, through: ElasticsearchStore, direct: ElasticsearchStore, collection: str
) -> None:
    direct.write(collection, [document("only", OLD)])
    seen: list[tuple[str, ...]] = []

    def rule(request: Request, forward: Forward) -> bytes | None:
        seen.append(shown(direct, collection))
        return None

    proxy.rule = rule
    through.write(collection, [document("only", NEW, version=2)])
    flip = seen.index(NEW)
    assert seen == [OLD] * flip + [NEW] * (len(seen) - flip) and 0 < flip < len(seen) - 1


def test_a_writer_that_dies_at_any_request_leaves_one_version_whole_and_is_repeated_to_the_same_end(
    proxy: Proxy, through: ElasticsearchStore, direct: ElasticsearchStore, collection: str
) -> None:
    new = document("only", NEW, version=2)
    direct.write(collection, [new])
    expected = direct.audit(collection)
    for survived in range(40):
        direct.delete(collection, ["only"])
        direct.write(collection, [document("only", OLD)])
        passed = iter(range(survived))

        def rule(request: Request, forward: Forward, passed: Iterator[int] = passed) -> bytes | None:
            if next(passed, None) is None:
                raise CutOff
            return None

        proxy.rule = rule
        try:
            through.write(collection, [new])
        except Unavailable as problem:
            assert not problem.costs_attempt and "DUJIANG_STORE_URL" in problem.hint
        else:
            assert survived > 5
            return
        assert shown(direct, collection) in {NEW, OLD}
        direct.write(collection, [new])
        assert shown(direct, collection) == NEW
        assert direct.audit(collection) == expected
        assert direct.frequencies(collection, ["word"]) == (1, {"word": 1})
    pytest.fail("the write never came through")


def test_a_late_writer_of_an_older_version_never_wins(proxy: Proxy, through: ElasticsearchStore, direct: ElasticsearchStore, collection: str) -> None:
    """The newer version becomes visible just before the older one's head arrives."""
    direct.write(collection, [document("only", ["word of version 1"])])

    def rule(request: Request, forward: Forward) -> bytes | None:
        if request.is_bulk and b'"record":"head"' in request.body:
            proxy.rule = None
            direct.write(collection, [document("only", ["word of version 3"], version=3)])
        return None

    proxy.rule = rule
    (outcome,) = through.write(collection, [document("only", ["word of version 2", "second word"], version=2)])
    assert not outcome.written
    assert shown(direct, collection) == ("word of version 3",)
    assert direct.frequencies(collection, ["word"]) == (1, {"word": 1})
    assert direct.audit(collection).versions == {"only": 3}


def test_rows_of_a_version_that_is_still_being_written_are_left_alone(
    proxy: Proxy, through: ElasticsearchStore, direct: ElasticsearchStore, collection: str
) -> None:
    """A slower writer of an older version finishes between the newer one's rows and its head."""

    def rule(request: Request, forward: Forward) -> bytes | None:
        if request.is_bulk and b'"record":"head"' in request.body:
            proxy.rule = None
            direct.write(collection, [document("only", ["word of version 1"])])
        return None

    proxy.rule = rule
    (outcome,) = through.write(collection, [document("only", ["word of version 2", "second word"], version=2)])
    assert outcome.written
    assert shown(direct, collection) == ("second word", "word of version 2")
    assert direct.frequencies(collection, ["word"]) == (2, {"word": 2})


def test_hidden_rows_take_no_places_among_the_candidates(
    proxy: Proxy, through: ElasticsearchStore, direct: ElasticsearchStore, collection: str
) -> None:
    """Thirty half-written rows match better than the visible ones; both sides still return k visible rows."""
    direct.write(collection, [document(f"plain{i}", [f"word among several others {i}"]) for i in range(5)])

    def rule(request: Request, forward: Forward) -> bytes | None:
        if request.is_bulk and b'"record":"head"' in request.body:
            raise CutOff
        return None

    proxy.rule = rule
    with pytest.raises(Unavailable):
        through.write(collection, [document("half", ["word"] * 30)])
    proxy.rule = None
    query = replace(word("word", k=5), vector=document("half", ["word"]).vectors[0])
    assert {hit.document_id for hit in direct.search(collection, query)} == {f"plain{i}" for i in range(5)}
    assert direct.purge(collection) == 31
    assert direct.audit(collection).documents == 5


def test_a_write_to_a_dropped_collection_does_not_bring_an_index_back(direct: ElasticsearchStore, elasticsearch_url: str) -> None:
    name = new_name()
    direct.ensure(CollectionSpec(name, DIMENSION))
    direct.write(name, [document("one", ["word"])])
    other = ElasticsearchStore(elasticsearch_url)
    other.drop(name)
    for attempt in (lambda: direct.write(name, [document("two", ["word"])]), lambda: direct.search(name, word("word"))):
        with pytest.raises(NotFound):
            attempt()
    with pytest.raises(NotFound):
        other.audit(name)
    other.drop(name)
    other.close()
