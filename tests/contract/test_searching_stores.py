"""What searching asks of either store: limits that are really lowered, both sides kept, surroundings that are verbatim."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from pipeline.contracts import CollectionSpec, EmbeddedChunks, IndexedDocument, Mode, Question, Section, Vectors
from pipeline.identity import index_name
from pipeline.index import index
from pipeline.protocols import EmbedderProfile, Store
from pipeline.retrieve import Retrieval, Target, search
from pipeline.stores import open_store
from pipeline.tuning import Tuning
from tests.contract.test_stores import SERVERS
from tests.stored import DIMENSION, stored

NEAR, FAR = 0.18, 0.1
ASKED = Question("Who mends the sluice, the weir, the lock and the dam?", ("works",), k=5)


def at(cosine: float) -> Vectors:
    """A unit vector with that cosine to every question's."""
    found = np.zeros(DIMENSION, dtype=np.float32)
    found[0], found[1] = cosine, np.sqrt(1.0 - cosine**2)
    return found


class Fixed:
    """Every question has the same vector; behind a service, so that least similarities hold."""

    profile = EmbedderProfile("fixed", "1", DIMENSION, 8192, 64, 100_000, 0.5, 0.3, False)

    def encode(self, texts: Sequence[str]) -> EmbeddedChunks:
        return EmbeddedChunks(np.stack([at(1.0)] * len(texts)), "fixed", "1")

    encode_queries = encode


@pytest.fixture(scope="module", params=sorted(SERVERS))
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    server = SERVERS[request.param]
    url = request.getfixturevalue(server) if server else f"sqlite:///{tmp_path_factory.mktemp('searched') / 'store'}"
    store: Store = open_store(url, writer=True)
    name = index_name("tests", "searched", 1)
    store.drop(name)
    store.ensure(CollectionSpec(name, DIMENSION))
    turns = [f"Turn {number}: " + text for number, text in enumerate(("the keel", "the mast", "a boat with a rudder", "the oar", "the sail"))]
    index(
        store,
        name,
        [
            stored("keeper.md", "Lin Cen keeps the sluice in order, says the register of keepers.", vectors=np.stack([at(FAR)])),
            stored("noodles.md", "The canteen serves noodles.", vectors=np.stack([at(NEAR)])),
            on_one_page(stored("boats.md", *turns, vectors=np.stack([at(-0.5)] * 5), dates=[(day(n + 1), None) for n in range(5)])),
        ],
    )
    yield Target("works", name, 1, store, Fixed())
    store.drop(name)
    store.close()


def day(number: int) -> datetime:
    return datetime(2026, 5, number, tzinfo=UTC)


def on_one_page(document: IndexedDocument) -> IndexedDocument:
    """All of it on page 1, in dated sections, the last three of them under a heading of their own."""
    sections = tuple(
        Section(one.start, one.end, page=1, at=day(number + 1), heading_path=("Later",) if number >= 2 else ("Early",))
        for number, one in enumerate(document.parsed.sections)
    )
    chunks = tuple(replace(chunk, page=1, page_end=1) for chunk in document.chunks)
    return replace(document, parsed=replace(document.parsed, sections=sections), chunks=chunks)


def test_too_few_terms_are_accepted_on_the_second_try_only(target: Target) -> None:
    found = search(replace(ASKED, mode=Mode.PARTICIPLE), [target], options=Retrieval(min_match=0.9))
    assert [hit.key for hit in found.hits] == ["keeper.md"]
    assert [step.degraded for step in found.steps if step.degraded] == ["nothing met min_match 0.9: relaxed to min_match 0.1"]
    strict = search(
        replace(ASKED, mode=Mode.PARTICIPLE, text="mends weir lock dam masonry gravel sluice"), [target], options=Retrieval(min_match=0.1)
    )
    assert [hit.key for hit in strict.hits] == ["keeper.md"] and not any(step.degraded for step in strict.steps)


def test_one_term_of_eleven_is_too_few_even_then(target: Target) -> None:
    question = "sluice barge quay harbour anchor rope tide wharf crane pilot lighthouse"
    assert search(replace(ASKED, mode=Mode.PARTICIPLE, text=question), [target]).hits == ()


def test_a_cosine_between_both_limits_is_found_on_the_second_try_only(target: Target) -> None:
    found = search(replace(ASKED, mode=Mode.SEMANTIC), [target])
    assert [hit.key for hit in found.hits] == ["noodles.md"]
    assert [step.degraded for step in found.steps if step.degraded] == ["nothing met similarity 0.2: relaxed to similarity 0.17"]
    assert search(replace(ASKED, mode=Mode.SEMANTIC), [target], options=Retrieval(min_similarity=0.19)).hits == found.hits


@pytest.mark.parametrize("merge", ["weighted", "rrf"])
def test_what_only_one_side_finds_stays(target: Target, merge: str) -> None:
    found = search(replace(ASKED, text="keeper of the sluice", merge=merge), [target], options=Retrieval(min_similarity=0.15))
    assert {hit.key for hit in found.hits} == {"keeper.md", "noodles.md"}
    assert all(0.0 < hit.score <= 1.0 for hit in found.hits)


@pytest.mark.parametrize(("widen", "shown"), [("1", (1, 3)), ("2", (0, 4)), ("8", (0, 4)), ("section", (2, 4)), ("off", (2, 2))])
def test_a_hit_is_shown_with_its_surroundings_verbatim(target: Target, widen: str, shown: tuple[int, int]) -> None:
    found = search(replace(ASKED, text="boat rudder", mode=Mode.PARTICIPLE, widen=widen), [target])
    hit = found.hits[0]
    assert hit.text == target.store.text(target.index, hit.document_id, hit.start, hit.end)
    assert hit.text.startswith(f"Turn {shown[0]}") and f"Turn {shown[1]}" in hit.text and f"Turn {shown[1] + 1}" not in hit.text


def test_surroundings_end_where_the_question_s_time_does(target: Target) -> None:
    found = search(replace(ASKED, text="boat rudder", mode=Mode.PARTICIPLE, as_of=day(4), widen="8"), [target])
    assert found.hits[0].text.startswith("Turn 0") and "Turn 3" in found.hits[0].text and "Turn 4" not in found.hits[0].text


def test_the_collection_widens_where_the_question_says_nothing(target: Target) -> None:
    tuned = replace(target, tuning=Tuning(widen="1"))
    question = replace(ASKED, text="boat rudder", mode=Mode.PARTICIPLE)
    assert "Turn 1" in search(question, [tuned]).hits[0].text
    assert "Turn 1" not in search(replace(question, widen="off"), [tuned]).hits[0].text
