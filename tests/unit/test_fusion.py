"""Ranks as an alternative to figures; settings of a collection against those of a question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import answer
from pipeline.cache import MemoryCache
from pipeline.contracts import Hit, Mode, Question, Section, Span
from pipeline.errors import BadRequest, Unavailable
from pipeline.fusion import reciprocal
from pipeline.retrieve import Target, search
from pipeline.tuning import Tuning, dump, load
from pipeline.widen import Shown, widen
from tests.fakes_answer import HashEmbedder, Reader, hit, target

TRIP = "Lin Cen approved the trip to Basalt Bay by high-speed train."
RULES = "Every trip needs an approval by the head of the department."
LUNCH = "The canteen serves noodles on Tuesdays."
ASKED = Question("Who approved the trip to Basalt Bay?", ("handbook",), k=3)

figures = st.lists(st.tuples(st.floats(-1, 50), st.floats(-1, 1)), max_size=20)


@given(figures)
def test_ranks_give_scores_in_zero_to_one_that_no_better_hit_can_undercut(sides: list[tuple[float, float]]) -> None:
    lexical, semantic = np.array([a for a, _ in sides]), np.array([b for _, b in sides])
    merged = reciprocal(lexical, semantic)
    assert ((merged >= 0) & (merged <= 1)).all()
    for one, (a, b) in enumerate(sides):
        for other, (c, d) in enumerate(sides):
            assert not (a >= c and b >= d and merged[one] < merged[other])


def test_the_first_of_both_sides_is_worth_one_and_that_of_one_side_half() -> None:
    assert reciprocal(np.array([9.0, 0.0, 3.0]), np.array([0.9, 0.0, 0.2])).tolist() == pytest.approx([1.0, 0.0, 61 / 62])
    assert reciprocal(np.array([9.0, 0.0]), np.array([0.0, 0.1])).tolist() == [0.5, 0.5]


def test_a_good_question_scores_above_a_foreign_one_by_ranks_too() -> None:
    places = [target(TRIP, RULES, LUNCH)]
    near = search(replace(ASKED, merge="rrf"), places).hits[0]
    far = search(replace(ASKED, merge="rrf", text="Which glacier survey was approved in Iceland?"), places).hits[0]
    assert near.text == TRIP and near.score > 0.6 > far.score


def test_collections_that_disagree_are_weighted_and_it_is_said_so() -> None:
    one, other = (replace(target(text, collection=name), tuning=Tuning(merge=merge)) for text, name, merge in disagreeing())
    found = search(replace(ASKED, collections=("a", "b")), [one, other])
    step = next(step for step in found.steps if step.stage == "retrieve")
    assert step.detail["merge"] == "weighted" and "different merge strategies" in step.degraded
    asked = search(replace(ASKED, collections=("a", "b"), merge="rrf"), [one, other])
    assert next(step for step in asked.steps if step.stage == "retrieve").detail["merge"] == "rrf" and not any(s.degraded for s in asked.steps)


def disagreeing() -> list[tuple[str, str, str]]:
    return [(TRIP, "a", "rrf"), (RULES, "b", "weighted")]


def test_ranks_are_not_merged_where_an_embedder_is_away() -> None:
    embedder = HashEmbedder()
    embedder.fault = Unavailable("away")
    found = search(replace(ASKED, merge="rrf"), [target(TRIP, embedder=embedder)])
    step = next(step for step in found.steps if step.stage == "retrieve")
    assert step.detail["merge"] == "weighted" and "embedder is away" in step.degraded and found.hits


def test_a_collections_settings_hold_until_the_question_has_its_own() -> None:
    place = target(TRIP, RULES, LUNCH)
    strict = replace(place, tuning=Tuning(score_threshold=0.99, lexical_weight=0.0))
    assert search(ASKED, [strict]).hits == ()
    assert search(replace(ASKED, score_threshold=0.0), [strict]).hits
    by_vectors = search(replace(ASKED, score_threshold=0.0), [strict]).hits
    by_both = search(replace(ASKED, score_threshold=0.0, lexical_weight=0.5), [strict]).hits
    assert [one.score for one in by_vectors] != [one.score for one in by_both]
    assert [one.score for one in by_both] == [one.score for one in search(ASKED, [place]).hits]


def test_a_threshold_holds_for_the_hits_of_its_own_collection() -> None:
    strict = replace(target(TRIP, collection="a"), tuning=Tuning(score_threshold=1.0))
    found = search(replace(ASKED, collections=("a", "b")), [strict, target(RULES, collection="b")])
    assert {one.collection for one in found.hits} == {"b"}


@pytest.mark.parametrize("wrong", [{"merge": "sum"}, {"widen": "9"}, {"widen": "all"}, {"widen": "²"}, {"lexical_weight": 1.5}])
def test_what_cannot_be_asked_for_is_refused_by_name(wrong: dict[str, object]) -> None:
    name = next(iter(wrong))
    with pytest.raises(BadRequest) as refused:
        search(replace(ASKED, **wrong), [target(TRIP)])  # type: ignore[arg-type]
    assert refused.value.pointer == f"/{name}"
    with pytest.raises(BadRequest):
        Tuning(**wrong)  # type: ignore[arg-type]


def test_settings_come_back_from_the_ledger_as_they_were() -> None:
    tuned = Tuning(5, 0.2, "rrf", 0.0, "section")
    assert load(dump(tuned)) == tuned and load(dump(Tuning())) == Tuning() and dump(Tuning()) == "{}"


class Paper:
    """One document of ten-character chunks."""

    def __init__(self, chunks: int) -> None:
        self.body = "".join(f"chunk {number:03} " for number in range(chunks))
        self.cuts = [(at, at + 9) for at in range(0, 10 * chunks, 10)]
        self.gone = False

    def spans(self, collection: str, document_id: str) -> tuple[tuple[str, Span], ...]:
        if self.gone:
            raise Unavailable("away")
        return tuple((f"{document_id}#{number}", cut) for number, cut in enumerate(self.cuts))

    def sections(self, collection: str, document_id: str, start: int = 0, end: int | None = None) -> tuple[Section, ...]:
        return (Section(0, len(self.body)),)

    def text(self, collection: str, document_id: str, start: int = 0, end: int | None = None) -> str:
        return self.body[start:end]

    def hit(self, number: int, end: int = 0) -> Hit:
        first, last = self.cuts[number]
        return hit(self.body[first : end or last], ordinal=number, start=first, collection="handbook")


def around(paper: Paper, hits: Sequence[Hit], how: str, budget: int = 1000) -> tuple[tuple[Hit, ...], str]:
    found, step = widen(hits, {"handbook": Shown(paper, "x", how)}, budget_tokens=budget)  # type: ignore[arg-type]
    return found, step.degraded if step else ""


@given(st.lists(st.integers(0, 19), min_size=1, max_size=8, unique=True), st.sampled_from(["1", "3", "8", "section"]), st.integers(0, 120))
def test_widened_hits_are_verbatim_and_never_overlap(numbers: list[int], how: str, budget: int) -> None:
    paper = Paper(20)
    given_hits = [paper.hit(number) for number in numbers]
    found, _ = around(paper, given_hits, how, budget)
    assert [one.chunk_id for one in found] == [one.chunk_id for one in given_hits]
    shown = sorted((one.start, one.end) for one in found)
    assert all(first[1] <= second[0] for first, second in pairwise(shown))
    assert all(one.text == paper.body[one.start : one.end] for one in found)
    assert all(wide.start <= bare.start and bare.end <= wide.end for wide, bare in zip(found, given_hits, strict=True))


def test_the_best_hit_is_widened_first_and_none_beyond_the_budget() -> None:
    paper = Paper(30)
    found, _ = around(paper, [paper.hit(20), paper.hit(5)], "2", budget=24)
    assert len(found[0].text) > len(found[1].text) >= 9
    assert [one.text for one in around(paper, [paper.hit(20)], "2", budget=1)[0]] == [paper.hit(20).text]


def test_what_two_hits_share_is_shown_with_the_better_one() -> None:
    paper = Paper(10)
    found, _ = around(paper, [paper.hit(4), paper.hit(3, end=45)], "1")
    assert (found[1].start, found[1].end) == (20, 40) and found[0].start == 40


def test_surroundings_that_cannot_be_read_cost_nothing_but_themselves() -> None:
    paper = Paper(10)
    paper.gone = True
    found, lost = around(paper, [paper.hit(4)], "1")
    assert [one.text for one in found] == [paper.hit(4).text] and "could not be read" in lost


def test_a_calibrated_threshold_comes_before_the_embedders_and_after_the_settings() -> None:
    place: Target = replace(target(TRIP, RULES), calibrated=0.99)
    refused = answer.gather(ASKED, [place])
    assert refused.refused and judged(refused.steps)["source"] == "calibrated"
    assert judged(answer.gather(ASKED, [target(TRIP)]).steps)["source"] == "embedder profile"
    given_one = answer.gather(ASKED, [place], options=answer.Reading(refuse_below=0.0))
    assert not given_one.refused and judged(given_one.steps)["source"] == "setting"
    by_words = answer.gather(replace(ASKED, mode=Mode.PARTICIPLE), [place])
    assert not by_words.refused and judged(by_words.steps)["source"] == "full text"


def judged(steps: Sequence[object]) -> dict[str, object]:
    return next(dict(step.detail) for step in steps if step.stage == "refuse")  # type: ignore[attr-defined]


def test_an_answer_found_with_other_settings_is_not_served_again() -> None:
    place, reader, cache = target(TRIP, RULES), Reader("Lin Cen approved it [1]."), MemoryCache()
    for changed in (place, replace(place, tuning=Tuning(top_k=1)), replace(place, calibrated=0.01)):
        assert answer.ask(ASKED, [changed], reader, cache=cache).cache == "miss"
    for asked in (replace(ASKED, merge="rrf"), replace(ASKED, lexical_weight=0.2), replace(ASKED, widen="off")):
        assert answer.ask(asked, [place], reader, cache=cache).cache == "miss"
    assert answer.ask(ASKED, [place], reader, cache=cache).cache == "hit"
