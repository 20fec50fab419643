"""From real files to cited answers, over the embedded store, hashed vectors and the extractive reader."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline import chunk, embed, llm
from pipeline.answer import ask, stream
from pipeline.cache import MemoryCache
from pipeline.contracts import Answer, CollectionSpec, Filter, IndexedDocument, Mode, Op, Question, RawDocument, SourceItem
from pipeline.identity import content_hash, document_id, index_name
from pipeline.index import index
from pipeline.parse import parse
from pipeline.retrieve import Target, search
from pipeline.settings import Settings
from pipeline.stores import open_store

HANDBOOK = Path(__file__).parents[2] / "samples" / "handbook"
SETTINGS = Settings(embedder="hashed", llm="extractive")
READER = llm.create(SETTINGS)
INDEX = index_name("default", "handbook", 1)
FLOOD = "1998年洪水时石桥站的最高水位是多少？"
BATTERY = "How often is the battery of a radar gauge replaced?"
OPERA = "Which composer wrote the opera Turandot?"


def indexed(path: Path) -> IndexedDocument:
    data = path.read_bytes()
    key = path.as_uri()
    name = document_id("default", "handbook", key)
    parsed = parse(RawDocument(SourceItem(key, title=path.name, path=path.name), data, content_hash(data)))
    chunks = chunk.chunk(parsed, name, chunk.create("sections"))
    vectors = embed.create(SETTINGS).encode([one.searched for one in chunks]).vectors
    return IndexedDocument(name, 1, key, parsed.title, "", parsed, chunks, vectors, {"suffix": path.suffix})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    store = open_store(f"sqlite:///{tmp_path_factory.mktemp('store')}", writer=True)
    embedder = embed.create(SETTINGS)
    documents = [indexed(path) for path in sorted(HANDBOOK.iterdir())]
    store.ensure(CollectionSpec(INDEX, documents[0].vectors.shape[1]))
    index(store, INDEX, documents)
    yield Target("handbook", INDEX, 1, store, embedder)
    store.close()


def asked(text: str, **changed: object) -> Question:
    return replace(Question(text, ("handbook",)), **changed)  # type: ignore[arg-type]


def test_a_chinese_question_is_answered_with_a_verbatim_quote_and_its_line(place: Target) -> None:
    answer = ask(asked(FLOOD), [place], READER)
    assert not answer.refused and "7.84" in answer.text
    assert any("历史洪水" in one.title and "7.84" in one.quote and one.line_start == 6 for one in answer.citations)


def test_an_english_question_leads_to_the_page(place: Target) -> None:
    answer = ask(asked(BATTERY), [place], READER)
    assert not answer.refused and "18 months" in answer.text
    assert any(one.page == 2 for one in answer.citations) or any("equipment" in one.title for one in answer.citations)


def test_every_quote_stands_in_the_document_at_its_offsets(place: Target) -> None:
    for text in (FLOOD, BATTERY, "值班员多久之内通知下游村庄？", "Who operates the sluices of Qingshan Reservoir?"):
        answer = ask(asked(text), [place], READER)
        assert answer.citations, text
        for one in answer.citations:
            assert place.store.text(INDEX, one.document_id, one.start_char, one.end_char) == one.quote
            assert any(one.quote in passage.text for passage in answer.evidence if passage.marker == one.marker)


@pytest.mark.parametrize("mode", [Mode.PARTICIPLE, Mode.SEMANTIC, Mode.HYBRID])
def test_a_foreign_question_is_refused_in_every_mode(place: Target, mode: Mode) -> None:
    answer = ask(asked(OPERA, mode=mode), [place], READER)
    assert answer.refused and answer.citations == ()
    assert "handbook" in answer.reason or answer.reason.startswith("The passages")


def test_a_traditional_question_finds_the_simplified_text(place: Target) -> None:
    answer = ask(asked("1998年洪水時石橋站的最高水位是多少？"), [place], READER)
    assert "7.84" in answer.text


def test_filters_narrow_the_search_before_it_begins(place: Target) -> None:
    found = search(asked(FLOOD, filters=(Filter("suffix", Op.EQ, ".pdf"),)), [place]).hits
    assert all(one.metadata["suffix"] == ".pdf" for one in found)
    nothing = search(asked(FLOOD, filters=(Filter("suffix", Op.EQ, ".xyz"),)), [place])
    assert nothing.hits == () and any(step.degraded for step in nothing.steps)


def test_search_and_stream_agree_with_ask(place: Target) -> None:
    cache = MemoryCache()
    *pieces, last = stream(asked(BATTERY), [place], READER, cache=cache)
    assert isinstance(last, Answer) and "".join(map(str, pieces)) == last.text
    again = ask(asked(BATTERY), [place], READER, cache=cache)
    assert again.cache == "hit" and again.citations == last.citations
    best = search(asked(BATTERY), [place]).hits
    assert last.evidence[0].hit.chunk_id == best[0].chunk_id
