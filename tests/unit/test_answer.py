"""A question becomes a cited answer or a refusal with its reason, once for all who ask the same."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import orjson
import pytest

from pipeline import packs, prompt
from pipeline.answer import Reading, ask, gather, read, stream
from pipeline.cache import MemoryCache
from pipeline.contracts import Answer, Filter, Op, Question, Usage
from pipeline.errors import BrokenContract, RateLimited, Unavailable
from pipeline.grounding import Policy
from pipeline.retrieve import Target
from pipeline.shapes import answer_json, hit_json, search_json
from tests.fakes_answer import AwayCache, HashEmbedder, Reader, target

TRIP = "Lin Cen approved the trip to Basalt Bay by high-speed train. Tickets cost 1,200 yuan."
LUNCH = "The canteen serves noodles on Tuesdays."
ASKED = Question("Who approved the trip to Basalt Bay?", ("handbook",), k=3)
SAYS = "Lin Cen approved the trip [1]."


@pytest.fixture
def place() -> Target:
    return target(TRIP, LUNCH)


def whole(pieces: Iterator[str | Answer]) -> tuple[list[str], Answer]:
    *texts, answer = pieces
    assert isinstance(answer, Answer) and all(isinstance(piece, str) for piece in texts)
    return texts, answer  # type: ignore[return-value]


def test_an_answer_comes_with_its_quote_its_usage_and_every_step(place: Target) -> None:
    answer = ask(ASKED, [place], Reader(SAYS))
    assert (answer.text, answer.refused, answer.reason, answer.cache) == (SAYS, False, "", "off")
    assert answer.citations[0].quote == "Lin Cen approved the trip to Basalt Bay by high-speed train."
    assert TRIP[answer.citations[0].start_char : answer.citations[0].end_char] == answer.citations[0].quote
    assert answer.usage["reader"] == Usage(10, 5, 15, requests=1)
    assert set(answer.usage) == {"build", "query", "rerank", "reader"}
    assert answer.usage["rerank"].total_tokens is None
    assert [step.stage for step in answer.steps] == ["cache", "understand", "embed", "retrieve", "refuse", "prompt", "llm", "cite"]
    assert answer.grounding.score == 1.0


def test_one_pack_can_be_given_to_several_readers(place: Target) -> None:
    pack = gather(replace(ASKED, assist=("rewrite", "keywords")), [place])
    again = packs.load_pack(packs.dump_pack(pack))
    assert again == pack
    assert read(again, Reader(SAYS)).citations == read(pack, Reader(SAYS)).citations
    assert read(pack, Reader("Nobody knows.")).citations == ()


def test_a_packs_hash_is_that_of_its_evidence_not_of_when_it_was_gathered(place: Target) -> None:
    pack = gather(ASKED, [place])
    again = packs.load_pack(packs.dump_pack(gather(ASKED, [place])))
    assert pack.steps != again.steps and packs.digest(pack) == packs.digest(again) and len(packs.digest(pack)) == 64
    assert packs.digest(replace(pack, evidence=pack.evidence[:1])) != packs.digest(pack)
    assert packs.digest(gather(replace(ASKED, k=1), [place])) != packs.digest(pack)


def test_a_pack_from_json_is_read_by_several_readers_each_with_its_own_words_and_the_same_evidence(place: Target) -> None:
    pack = gather(ASKED, [place])
    kept, before = packs.dump_pack(pack), packs.digest(pack)
    readers = [Reader(SAYS), Reader("Tickets cost 1,200 yuan [1].", name="reader:b"), Reader("NO_ANSWER nothing said.", name="reader:c")]
    answers = [read(packs.load_pack(kept), reader) for reader in readers]
    assert [answer.text for answer in answers] == [SAYS, "Tickets cost 1,200 yuan [1].", "nothing said."]
    assert len({reader.prompts[0][-1] for reader in readers}) == 1, "all were sent the same"  # type: ignore[misc]
    assert all(answer.evidence == pack.evidence for answer in answers) and packs.digest(pack) == before
    assert len(place.store.queries) == 1  # type: ignore[attr-defined]


def test_packs_and_answers_survive_json_with_filters_times_and_history(place: Target) -> None:
    question = replace(
        ASKED,
        filters=(Filter("title", Op.IN, ("handbook-0", "x")),),
        as_of=datetime.fromisoformat("2026-01-01T00:30:00+08:00"),
        history=(("user", "hi"),),
    )
    pack = gather(question, [place])
    again = packs.load_pack(packs.dump_pack(pack))
    assert again.question == question and again.question.as_of is not None
    assert again.question.as_of.isoformat() == "2026-01-01T00:30:00+08:00"
    answer = read(pack, Reader(SAYS))
    assert packs.load_answer(packs.dump_answer(answer)) == packs.load_answer(packs.dump_answer(packs.load_answer(packs.dump_answer(answer))))
    with pytest.raises(BrokenContract):
        packs.load_pack(b'{"question": 1}')
    with pytest.raises(BrokenContract):
        packs.load_answer(b"\xff")


@pytest.mark.parametrize(("text", "begins"), [("How deep is the Mariana trench?", "Nothing in"), ("马里亚纳海沟有多深？", "在“handbook”中")])
def test_a_foreign_question_is_refused_in_its_language_with_what_was_searched_and_how_near_it_came(place: Target, text: str, begins: str) -> None:
    reader = Reader(SAYS)
    answer = ask(replace(ASKED, text=text), [place], reader)
    assert answer.refused and answer.citations == () and reader.prompts == []
    assert answer.text == answer.reason and answer.reason.startswith(begins) and "handbook" in answer.reason
    step = next(step for step in answer.steps if step.stage == "refuse")
    assert step.detail["threshold"] == 0.25 and step.detail["source"] == "embedder profile"
    assert not ask(replace(ASKED, text=text), [place], reader, options=Reading(refuse_below=0.0)).refused or answer.evidence == ()


def test_the_threshold_is_the_embedders_own_unless_one_is_set() -> None:
    strict = target(TRIP, LUNCH, embedder=HashEmbedder(refuse_below=0.99))
    assert ask(ASKED, [strict], Reader(SAYS)).refused
    assert not ask(ASKED, [strict], Reader(SAYS), options=Reading(refuse_below=0.2)).refused


def test_a_reader_that_finds_no_answer_is_a_refusal_in_both_of_its_ways(place: Target) -> None:
    extractive = ask(ASKED, [place], Reader("", finish="no_answer"))
    model = ask(ASKED, [place], Reader("NO_ANSWER: the passages do not say who paid.[1]"))
    assert extractive.refused and extractive.reason == "The passages that were found do not hold the answer."
    assert model.refused and model.text == "the passages do not say who paid."
    assert extractive.citations == model.citations == ()
    zh = ask(replace(ASKED, text="谁 approved the trip to Basalt Bay 呢，是谁批准的？"), [place], Reader("", finish="no_answer"))
    assert zh.refused and zh.reason.endswith("。")


def test_a_readers_failure_keeps_its_type(place: Target) -> None:
    with pytest.raises(RateLimited):
        ask(ASKED, [place], Reader(fault=RateLimited("slow down", after=3)), cache=MemoryCache())
    with pytest.raises(BrokenContract, match="empty answer"):
        ask(ASKED, [place], Reader(" "))


def test_streamed_pieces_are_the_readers_text_and_the_answer_comes_last(place: Target) -> None:
    texts, answer = whole(stream(ASKED, [place], Reader(SAYS)))
    assert "".join(texts) == SAYS == answer.text and len(texts) > 1
    texts, answer = whole(stream(ASKED, [place], Reader("NO_ANSWER nothing said.")))
    assert texts == [answer.text] == ["nothing said."] and answer.refused
    texts, answer = whole(stream(ASKED, [place], Reader("NO, he did [1].", pieces=15)))
    assert "".join(texts) == answer.text == "NO, he did [1]."


def test_the_same_question_is_answered_from_the_cache_without_search_or_reader(place: Target) -> None:
    cache, reader = MemoryCache(), Reader(SAYS)
    first = ask(ASKED, [place], reader, cache=cache)
    searches = len(place.store.queries)  # type: ignore[attr-defined]
    second = ask(ASKED, [place], reader, cache=cache)
    texts, third = whole(stream(ASKED, [place], reader, cache=cache))
    assert (first.cache, second.cache, third.cache) == ("miss", "hit", "hit")
    assert (len(reader.prompts), len(place.store.queries)) == (1, searches)  # type: ignore[attr-defined]
    assert second.text == first.text == "".join(texts) and second.citations == first.citations and second.evidence == first.evidence
    assert second.usage["reader"] == Usage()


@pytest.mark.parametrize(
    "changed",
    [
        {"tenant": "other"},
        {"text": "Who approved a trip to Basalt Bay?"},
        {"k": 2},
        {"filters": (Filter("a", Op.NE, 1),)},
        {"temperature": 0.5},
        {"system": "Be kind."},
        {"history": (("user", "hi"),)},
        {"score_threshold": 0.1},
        {"as_of": datetime(2026, 1, 1, tzinfo=UTC)},
    ],
)
def test_whatever_changes_an_answer_is_a_miss(place: Target, changed: dict[str, object]) -> None:
    cache, reader = MemoryCache(), Reader(SAYS)
    ask(ASKED, [place], reader, cache=cache)
    assert ask(replace(ASKED, **changed), [place], reader, cache=cache).cache == "miss"  # type: ignore[arg-type]


def test_another_reader_or_another_asker_is_a_miss(place: Target) -> None:
    cache = MemoryCache()
    ask(ASKED, [place], Reader(SAYS), cache=cache, access="team-a")
    assert ask(ASKED, [place], Reader(SAYS), cache=cache, access="team-b").cache == "miss"
    assert ask(ASKED, [place], Reader(SAYS, name="reader:other"), cache=cache, access="team-a").cache == "miss"
    assert ask(ASKED, [place], Reader(SAYS, revision="2"), cache=cache, access="team-a").cache == "miss"
    assert ask(ASKED, [place], Reader(SAYS), cache=cache, access="team-a").cache == "hit"


def test_a_changed_revision_is_searched_anew_but_unchanged_evidence_is_not_read_twice(place: Target) -> None:
    cache, reader = MemoryCache(), Reader(SAYS)
    ask(ASKED, [place], reader, cache=cache)
    searches = len(place.store.queries)  # type: ignore[attr-defined]
    answer = ask(ASKED, [replace(place, revision=2)], reader, cache=cache)
    assert answer.cache == "miss"
    assert len(place.store.queries) == searches + 1  # type: ignore[attr-defined]
    assert len(reader.prompts) == 1
    assert next(step for step in answer.steps if step.stage == "llm").detail["cached"] is True
    assert answer.usage["reader"] == Usage()


def test_another_readers_turn_uses_the_evidence_that_is_known(place: Target) -> None:
    cache = MemoryCache()
    ask(ASKED, [place], Reader(SAYS), cache=cache)
    searches = len(place.store.queries)  # type: ignore[attr-defined]
    answer = ask(replace(ASKED, system="Be kind."), [place], Reader(SAYS, name="reader:other"), cache=cache)
    assert len(place.store.queries) == searches and not answer.refused  # type: ignore[attr-defined]


def test_purging_a_collection_forgets_the_answers_that_used_it(place: Target) -> None:
    cache, reader = MemoryCache(), Reader(SAYS)
    other = target(LUNCH, collection="canteen")
    both = replace(ASKED, collections=("handbook", "canteen"))
    ask(both, [place, other], reader, cache=cache)
    assert cache.purge(packs.cache_group("default", "canteen")) > 0
    assert ask(both, [place, other], reader, cache=cache).cache == "miss"


def test_a_cache_that_is_down_costs_time_only_and_the_trace_says_so(place: Target) -> None:
    answer = ask(ASKED, [place], Reader(SAYS), cache=AwayCache())  # type: ignore[arg-type]
    assert answer.text == SAYS and answer.cache == "off"
    assert "answer cache off" in answer.steps[0].degraded


def test_an_entry_that_cannot_be_read_is_computed_anew(place: Target) -> None:
    class Rotten(MemoryCache):
        def get(self, key: str) -> bytes | None:
            return b"rotten" if super().get(key) else None

    cache = Rotten()
    assert [ask(ASKED, [place], Reader(SAYS), cache=cache).cache for _ in range(2)] == ["miss", "miss"]


def test_an_answer_that_lost_something_for_the_moment_is_not_kept_for_long() -> None:
    class Watched(MemoryCache):
        def put(self, key: str, value: bytes, *, ttl_s: float, group: str = "") -> None:
            kept[key.partition(".")[0]] = ttl_s
            super().put(key, value, ttl_s=ttl_s, group=group)

    kept: dict[str, float] = {}
    embedder = HashEmbedder(in_process=False)
    place = target(TRIP, embedder=embedder)
    embedder.fault = Unavailable("away", dependency=True)
    ask(ASKED, [place], Reader(SAYS), cache=Watched(), options=Reading(refuse_below=0.1))
    assert "pack" not in kept and kept["answer"] <= 5


def test_many_who_ask_at_once_are_answered_by_one_reading(place: Target) -> None:
    cache, ready, answers = MemoryCache(), threading.Barrier(8), list[Answer]()

    class Slow(Reader):
        def complete(self, messages, options):  # type: ignore[no-untyped-def]
            inside.wait(0.05)
            return super().complete(messages, options)

    inside, reader = threading.Event(), Slow(SAYS)

    def work() -> None:
        ready.wait()
        answers.append(ask(ASKED, [place], reader, cache=cache))

    threads = [threading.Thread(target=work) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join(30) for thread in threads]
    assert len(reader.prompts) == 1
    assert sorted(answer.cache for answer in answers) == ["hit"] * 7 + ["miss"]


def test_a_stream_that_is_left_early_frees_those_who_wait(place: Target) -> None:
    cache = MemoryCache()
    pieces = stream(ASKED, [place], Reader(SAYS), cache=cache)
    next(pieces)
    pieces.close()  # type: ignore[attr-defined]
    assert ask(ASKED, [place], Reader(SAYS), cache=cache).cache == "miss"


def test_shapes_are_json_and_say_what_was_lost(place: Target) -> None:
    answer = ask(ASKED, [place], Reader(SAYS), cache=AwayCache())  # type: ignore[arg-type]
    shape = orjson.loads(orjson.dumps(answer_json(answer, trace=True)))
    assert {"answer", "refused", "reason", "citations", "grounding", "usage", "cache", "trace"} <= set(shape)
    citation = shape["citations"][0]
    assert {"marker", "chunk_id", "document_id", "title", "url", "page", "start_char", "end_char", "quote", "answer_start", "answer_end"} <= set(
        citation
    )
    assert shape["usage"]["reader"]["total_tokens"] == 15 and shape["usage"]["build"]["total_tokens"] is None
    assert shape["degraded"] and shape["trace"][0]["stage"] == "cache"
    assert answer_json(answer)["trace"] is None
    pack = gather(ASKED, [place])
    one = orjson.loads(orjson.dumps(hit_json(pack.hits[0])))
    assert {"chunk_id", "document_id", "ordinal", "title", "url", "score", "scores", "text", "start_char", "end_char"} <= set(one)
    assert {"page", "heading_path", "highlight", "metadata", "collection"} <= set(one)
    from pipeline.retrieve import search

    assert set(orjson.loads(orjson.dumps(search_json(search(ASKED, [place]))))) >= {"query", "mode", "hits", "trace"}


def test_the_prompt_version_is_part_of_what_the_trace_shows(place: Target) -> None:
    step = next(step for step in ask(ASKED, [place], Reader(SAYS)).steps if step.stage == "prompt")
    assert step.detail["version"] == prompt.version() and step.detail["budget"] == prompt.PASSAGE_TOKENS


HALF = "Lin Cen approved the trip [1]. Mars is red and far away."


def test_an_answer_below_the_threshold_is_flagged_and_given(place: Target) -> None:
    answer = ask(ASKED, [place], Reader(HALF), options=Reading(grounding=Policy(0.6)))
    assert (answer.text, answer.refused, answer.grounding.flagged, answer.grounding.threshold) == (HALF, False, True, 0.6)
    assert "the passages support 50%" in answer.steps[-1].degraded
    shape = answer_json(answer)["grounding"]
    assert isinstance(shape, dict) and shape["flagged"] is True and shape["unsupported_sentences"] == ["Mars is red and far away."]
    assert not ask(ASKED, [place], Reader(HALF), options=Reading(grounding=Policy(0.5))).grounding.flagged
    assert not ask(ASKED, [place], Reader(HALF)).grounding.flagged


def test_an_answer_below_the_threshold_is_withheld_where_that_is_asked_for(place: Target) -> None:
    answer = ask(ASKED, [place], Reader(HALF), options=Reading(grounding=Policy(0.6, "refuse")))
    assert answer.refused and answer.citations == () and answer.grounding.flagged
    assert "Mars is red and far away." in answer.reason and "Lin Cen" not in answer.reason and "50%" in answer.reason
    assert not ask(ASKED, [place], Reader(SAYS), options=Reading(grounding=Policy(0.6, "refuse"))).refused


def test_a_stream_shows_nothing_of_an_answer_that_is_withheld(place: Target) -> None:
    strict = Reading(grounding=Policy(0.6, "refuse"))
    texts, answer = whole(stream(ASKED, [place], Reader(HALF), options=strict))
    assert texts == [answer.text] and answer.refused
    texts, answer = whole(stream(ASKED, [place], Reader(SAYS), options=strict))
    assert texts == [SAYS] and not answer.refused
    texts, answer = whole(stream(ASKED, [place], Reader(HALF), options=Reading(grounding=Policy(0.6))))
    assert "".join(texts) == HALF and len(texts) > 1


def test_another_policy_judges_anew_but_neither_searches_nor_reads_again(place: Target) -> None:
    cache, reader = MemoryCache(), Reader(HALF)
    assert not ask(ASKED, [place], reader, cache=cache).grounding.flagged
    searches = len(place.store.queries)  # type: ignore[attr-defined]
    for policy in (Policy(0.6), Policy(0.6, "refuse"), Policy(0.4)):
        answer = ask(ASKED, [place], reader, cache=cache, options=Reading(grounding=policy))
        assert (answer.cache, answer.grounding.threshold) == ("miss", policy.threshold)
        again = ask(ASKED, [place], reader, cache=cache, options=Reading(grounding=policy))
        assert (again.cache, again.grounding, again.refused) == ("hit", answer.grounding, answer.refused)
    assert (len(reader.prompts), len(place.store.queries)) == (1, searches)  # type: ignore[attr-defined]
