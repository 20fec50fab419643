"""A server of its own that asks for a password, takes little at once, is stopped, and comes back."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from pipeline.contracts import CollectionSpec, IndexedDocument
from pipeline.errors import RateLimited, Unauthorised, Unavailable
from pipeline.stores.elasticsearch import ElasticsearchStore
from tests.integration.elasticsearch_documents import DIMENSION, document, new_name, word
from tests.servers import Lacking, lacking
from tests.servers.elasticsearch import Elasticsearch

PASSWORD = "s3cret:pass@word"
SETTINGS = {"xpack.security.enabled": "true", "xpack.security.http.ssl.enabled": "false", "indexing_pressure.memory.limit": "64kb"}


@pytest.fixture(scope="module")
def server() -> Iterator[Elasticsearch]:
    try:
        server = Elasticsearch("9.5.4", settings=SETTINGS, bootstrap_password=PASSWORD)
    except Lacking as reason:
        lacking("Elasticsearch", str(reason))
    try:
        server.start()
        yield server
    finally:
        server.close()


def opened(server: Elasticsearch, password: str = "s3cret%3Apass%40word") -> ElasticsearchStore:
    url = server.url.replace("//", f"//elastic:{password}@")
    return ElasticsearchStore(url, timeout_s=20, pauses_s=(0.0, 0.0), sleep=lambda seconds: None)


def until_written(store: ElasticsearchStore, name: str, wanted: IndexedDocument, *, within_s: float = 60) -> None:
    """As the engine does: a server that answers again may still be opening its indices."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            store.write(name, [wanted])
            return
        except Unavailable:
            if time.monotonic() > deadline:
                raise


def test_wrong_credentials_are_told_without_repeating_them(server: Elasticsearch) -> None:
    for store in (opened(server, "wr0ng"), ElasticsearchStore(server.url)):
        with pytest.raises(Unauthorised) as problem:
            store.search("dujiang-x-g1", word("word"))
        assert "wr0ng" not in str(problem.value) + problem.value.hint and "DUJIANG_STORE_URL" in problem.value.hint
        store.close()


def test_a_server_that_takes_no_more_at_once_is_a_rate_limit(server: Elasticsearch) -> None:
    store, name = opened(server), new_name()
    store.ensure(CollectionSpec(name, DIMENSION))
    with pytest.raises(RateLimited) as problem:
        store.write(name, [document("large", ["word " * 1000] * 40)])
    assert not problem.value.costs_attempt and "s3cret" not in str(problem.value)
    assert [outcome.written for outcome in store.write(name, [document("small", ["word"])])] == [True]
    store.close()


def test_a_server_that_goes_away_and_comes_back_costs_no_attempt_and_loses_nothing(server: Elasticsearch) -> None:
    store, name = opened(server), new_name()
    store.ensure(CollectionSpec(name, DIMENSION))
    store.write(name, [document("before", ["word one"])])
    server.stop()
    fresh = opened(server)
    for attempt in (
        lambda: store.write(name, [document("during", ["word two"])]),
        lambda: store.search(name, word("word")),
        lambda: fresh.ensure(CollectionSpec(name, DIMENSION)),
    ):
        with pytest.raises(Unavailable) as problem:
            attempt()
        assert not problem.value.costs_attempt
        assert "DUJIANG_STORE_URL" in problem.value.hint and "s3cret" not in str(problem.value)
    server.start()
    until_written(store, name, document("during", ["word two"]))
    assert {hit.document_id for hit in fresh.search(name, word("word"))} == {"before", "during"}
    store.close()
    fresh.close()
