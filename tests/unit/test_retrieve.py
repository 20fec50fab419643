"""Candidates are united, scored alike, merged over collections, and every loss is written down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.contracts import Mode, Question
from pipeline.errors import Unavailable, Unsupported
from pipeline.retrieve import Retrieval, fuse, search
from tests.fakes_answer import HashEmbedder, hit, target

TRIP = "Lin Cen approved the trip to Basalt Bay by high-speed train."
RULES = "Every trip needs an approval by the head of the department."
LUNCH = "The canteen serves noodles on Tuesdays."
ASKED = Question("Who approved the trip to Basalt Bay?", ("handbook",), k=3)

bm25 = st.lists(st.floats(0, 50), min_size=1, max_size=20)


@given(bm25, st.floats(0, 1), st.floats(0, 1), st.randoms(use_true_random=False))
def test_fused_scores_stay_in_zero_to_one_and_follow_both_sides(lexical: list[float], share: float, reach: float, random: object) -> None:
    semantic = np.array([random.uniform(-1, 1) for _ in lexical])  # type: ignore[attr-defined]
    fused = fuse(np.array(lexical), semantic, lexical_weight=share, reach=reach)
    assert fused.shape == semantic.shape
    assert (fused >= 0).all() and (fused <= 1 + 1e-9).all()


def test_fusion_refuses_lists_that_do_not_match() -> None:
    with pytest.raises(ValueError, match="shapes"):
        fuse(np.zeros(2), np.zeros(3), lexical_weight=0.5)
    with pytest.raises(ValueError, match="outside"):
        fuse(np.zeros(2), np.zeros(2), lexical_weight=1.5)


@pytest.mark.parametrize("mode", [Mode.PARTICIPLE, Mode.SEMANTIC, Mode.HYBRID])
def test_every_mode_finds_the_passage_and_scores_it_in_zero_to_one(mode: Mode) -> None:
    result = search(replace(ASKED, mode=mode), [target(LUNCH, RULES, TRIP)])
    assert result.hits[0].text == TRIP
    assert all(0.0 <= one.score <= 1.0 for one in result.hits)
    assert [one.score for one in result.hits] == sorted((one.score for one in result.hits), reverse=True)
    assert result.hits[0].collection == "handbook"


def test_full_text_needs_no_embedder() -> None:
    embedder = HashEmbedder()
    search(replace(ASKED, mode=Mode.PARTICIPLE), [target(TRIP, embedder=embedder)])
    assert embedder.calls == 0


def test_hybrid_keeps_candidates_that_share_no_term() -> None:
    result = search(ASKED, [target(TRIP, LUNCH)], options=Retrieval(min_similarity=-1.0))
    assert {one.text for one in result.hits} == {TRIP, LUNCH}


def test_a_full_text_score_tells_how_much_of_the_question_the_best_hit_holds() -> None:
    near = search(replace(ASKED, mode=Mode.PARTICIPLE), [target(TRIP, LUNCH)]).hits[0].score
    far = search(replace(ASKED, mode=Mode.PARTICIPLE, text="Who approved the glacier survey in Iceland?"), [target(TRIP, LUNCH)]).hits[0].score
    assert near > 0.8 > 0.5 > far


def test_a_threshold_is_kept_and_never_relaxed() -> None:
    result = search(replace(ASKED, score_threshold=0.99), [target(RULES, LUNCH)])
    assert result.hits == ()


def test_an_empty_result_is_tried_again_with_lower_limits_and_says_so() -> None:
    place = target("the trip", "noodles")
    question = replace(ASKED, mode=Mode.PARTICIPLE)
    result = search(question, [place], options=Retrieval(min_match=0.9))
    assert [query.min_match for query in place.store.queries] == [0.9, 0.1]  # type: ignore[attr-defined]
    assert result.hits[0].text == "the trip"
    assert any("relaxed" in step.degraded for step in result.steps)


def test_the_similarity_limit_is_relaxed_too_for_an_embedder_behind_a_service() -> None:
    place = target(LUNCH, embedder=HashEmbedder(in_process=False))
    result = search(replace(ASKED, mode=Mode.SEMANTIC), [place])
    assert [query.min_similarity for query in place.store.queries] == [0.2, 0.17]  # type: ignore[attr-defined]
    assert any(step.degraded == "nothing met similarity 0.2: relaxed to similarity 0.17" for step in result.steps)


def test_collections_with_different_embedders_get_one_query_vector_each() -> None:
    small, large, again = HashEmbedder("small", dimension=64), HashEmbedder("large", dimension=256), HashEmbedder("large", dimension=256)
    targets = [
        target(TRIP, collection="a", embedder=small),
        target(RULES, collection="b", embedder=large),
        target(LUNCH, collection="c", embedder=again),
    ]
    result = search(replace(ASKED, collections=("a", "b", "c")), targets)
    assert (small.calls, large.calls + again.calls) == (1, 1)
    assert [len(one.store.queries[0].vector) for one in targets] == [64, 256, 256]  # type: ignore[attr-defined]
    assert result.hits[0].collection == "a"


@pytest.mark.parametrize("mode", [Mode.PARTICIPLE, Mode.HYBRID])
def test_a_collection_that_hardly_touches_the_question_does_not_take_the_front(mode: Mode) -> None:
    beside = target("Lunch breaks on a trip are paid.", LUNCH, collection="canteen")
    result = search(replace(ASKED, mode=mode), [beside, target(TRIP, RULES)], options=Retrieval(min_match=0.0))
    assert result.hits[0].text == TRIP
    assert next(one.score for one in result.hits if one.collection == "canteen") < 0.6 * result.hits[0].score


def test_equal_scores_are_ordered_by_key_and_ordinal() -> None:
    from tests.fakes_answer import ListStore

    embedder = HashEmbedder()
    bodies = [hit(TRIP + mark, key=key, ordinal=n) for key, n, mark in (("b", 0, " "), ("a", 1, "  "), ("a", 0, "   "))]
    place = replace(target(TRIP, embedder=embedder), store=ListStore(bodies, embedder))  # type: ignore[arg-type]
    # three spans of two documents: none hides another
    place.store.hits = [replace(one, start=n * 100, end=n * 100 + len(one.text)) for n, one in enumerate(bodies)]  # type: ignore[attr-defined]
    assert [(one.key, one.ordinal) for one in search(ASKED, [place]).hits] == [("a", 0), ("a", 1), ("b", 0)]


def test_the_same_text_and_mostly_overlapping_windows_are_shown_once() -> None:
    from tests.fakes_answer import ListStore

    embedder = HashEmbedder()
    bodies = [hit(TRIP), hit(TRIP, key="z-copy"), hit(TRIP[10:] + "..", ordinal=1, start=10), hit(RULES, ordinal=2, start=400)]
    place = replace(target(TRIP, embedder=embedder), store=ListStore(bodies, embedder))  # type: ignore[arg-type]
    found = search(replace(ASKED, k=10), [place]).hits
    assert [one.start for one in found] == [0, 400]


def test_hybrid_without_its_embedder_falls_back_to_full_text_and_says_so() -> None:
    embedder = HashEmbedder(in_process=False)
    place = target(TRIP, RULES, embedder=embedder)
    embedder.fault = Unavailable("away", dependency=True)
    result = search(ASKED, [place])
    assert result.hits[0].text == TRIP
    assert [step.degraded for step in result.steps if step.stage == "embed"] == [
        "embedder hash is away (unavailable): its collections are searched by full text only"
    ]
    with pytest.raises(Unavailable):
        search(replace(ASKED, mode=Mode.SEMANTIC), [place])


def test_the_embedders_tokens_are_counted_and_unreported_ones_stay_unknown() -> None:
    remote = search(ASKED, [target(TRIP, embedder=HashEmbedder(in_process=False))]).usage["query"]
    local = search(ASKED, [target(TRIP)]).usage["query"]
    assert (remote.total_tokens, remote.requests) == (7, 1)
    assert (local.total_tokens, local.requests) == (None, 0)


def test_graph_mode_says_that_the_graph_is_not_built_until_one_is_given() -> None:
    question = replace(ASKED, mode=Mode.GRAPH)
    with pytest.raises(Unsupported, match="no graph is built"):
        search(question, [target(TRIP)])

    class Graph:
        def find(self, question: object, targets: Sequence[object], k: int) -> object:
            hits = [hit("Lin Cen leads the survey.", key="graph", score=0.3, scores={"graph": 0.3}, kind="entity")]
            return SimpleNamespace(hits=hits, detail={"linked": ["lincen"]})

    found = search(question, [target(TRIP)], graph=Graph()).hits  # type: ignore[arg-type]
    assert [one.kind for one in found] == ["entity", "text"]


class Backwards:
    name = "backwards"

    def __init__(self, fault: Exception | None = None, scores: list[float] | None = None) -> None:
        self.fault, self.scores, self.read = fault, scores, [""]

    def rerank(self, question: str, passages: Sequence[str]) -> list[float]:
        self.read = list(passages)
        if self.fault:
            raise self.fault
        return self.scores if self.scores is not None else [n / len(passages) for n in range(len(passages))]


def test_a_reranker_orders_the_hits_anew_and_its_score_is_the_score() -> None:
    before = search(ASKED, [target(TRIP, RULES)])
    after = search(ASKED, [target(TRIP, RULES)], reranker=Backwards())
    assert [one.text for one in after.hits] == [one.text for one in reversed(before.hits)]
    assert after.hits[0].score == after.hits[0].scores["rerank"] == 0.5
    assert "fused" in after.hits[0].scores


@pytest.mark.parametrize("reranker", [Backwards(Unavailable("away")), Backwards(scores=[1.0]), Backwards(scores=[float("nan"), 1.0])])
def test_a_reranker_that_fails_leaves_the_order_and_says_so(reranker: Backwards) -> None:
    before = search(ASKED, [target(TRIP, RULES)])
    after = search(ASKED, [target(TRIP, RULES)], reranker=reranker)
    assert [one.text for one in after.hits] == [one.text for one in before.hits]
    assert any(step.stage == "rerank" and "order of retrieval is kept" in step.degraded for step in after.steps)


def test_the_trace_shows_what_was_asked_and_who_stood_where() -> None:
    step = next(step for step in search(ASKED, [target(TRIP, RULES)]).steps if step.stage == "retrieve")
    assert step.detail["mode"] == "hybrid" and step.detail["k"] == 3
    assert step.detail["candidates"][0]["key"] == "file:///handbook/0.md"  # type: ignore[index]
    assert step.seconds >= 0


def test_a_store_that_is_away_is_an_error_of_the_search() -> None:
    place = target(TRIP)
    place.store.fault = Unavailable("store away", dependency=True)  # type: ignore[attr-defined]
    with pytest.raises(Unavailable):
        search(ASKED, [place])
