"""Chunks by their places, on every store: what a graph's ranking names is shown only as far as the asker's limits let it through."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pipeline.contracts import Filter, Op, StoreQuery
from pipeline.protocols import Store
from tests.contract.test_stores import SLUICE, collection, sluices, store, url
from tests.stored import numbered

__all__ = ["collection", "sluices", "store", "url"]


def test_chunks_come_in_the_order_they_were_asked_for_and_what_is_not_there_is_left_out(store: Store, sluices: str) -> None:
    first, second = SLUICE[0], SLUICE[1]
    places = [(second.document_id, 0), (first.document_id, 0), (first.document_id, 999), ("nobody", 0)]
    hits = store.chunks(sluices, places, StoreQuery())
    assert [(hit.document_id, hit.ordinal) for hit in hits] == places[:2]
    assert hits[0].text == second.chunks[0].text and hits[0].chunk_id == second.chunks[0].chunk_id and hits[0].title == second.title
    assert store.chunks(sluices, [], StoreQuery()) == []


def test_filters_and_the_asked_time_hold_for_places_too(store: Store, sluices: str) -> None:
    places = [(document.document_id, 0) for document in SLUICE]
    key = SLUICE[0].key
    only = store.chunks(sluices, places, StoreQuery(filters=(Filter("key", Op.EQ, key),)))
    assert [hit.key for hit in only] == [key]
    assert store.chunks(sluices, places, StoreQuery(as_of=datetime(1900, 1, 1, tzinfo=UTC))) == []


@pytest.mark.parametrize("versions", [(1, 2), (2, 1)])
def test_only_the_visible_version_is_shown(store: Store, collection: str, versions: tuple[int, int]) -> None:
    for version in versions:
        store.write(collection, [numbered(1, version)])
    (hit,) = store.chunks(collection, [(numbered(1).document_id, 0)], StoreQuery())
    assert hit.version == 2
    store.delete(collection, [numbered(1).document_id])
    assert store.chunks(collection, [(numbered(1).document_id, 0)], StoreQuery()) == []
