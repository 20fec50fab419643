"""Markers lead to verbatim spans; the reader's words are never touched; code is never cited."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import cite
from pipeline.contracts import Evidence
from pipeline.prompt import lead_length
from tests.fakes_answer import evidence, hit

TRIP = "The plan was drafted in May. Lin Cen approved the trip to Basalt Bay on 3 June. Tickets cost 1,200 yuan."
ZH = "出差计划在五月起草。林岑批准了这次玄武湾出差，乘坐高铁。费用为1200元。"
PASSAGES = evidence(TRIP, ZH)


def quotes(answer: str, passages: tuple[Evidence, ...] = PASSAGES) -> list[tuple[int, str, str]]:
    cited = cite.cite(answer, passages)
    return [(one.marker, cited.text[one.answer_start : one.answer_end], one.quote) for one in cited.citations]


@pytest.mark.parametrize("marker", ["[1]", "【1】", "[^1]", "[ 1 ]", "【1†source】"])
def test_every_usual_form_of_a_marker_leads_to_the_best_sentence(marker: str) -> None:
    assert quotes(f"Lin Cen approved the trip to Basalt Bay {marker}. Nothing else is known.") == [
        (1, f"Lin Cen approved the trip to Basalt Bay {marker}.", "Lin Cen approved the trip to Basalt Bay on 3 June.")
    ]


@pytest.mark.parametrize("markers", ["[1][2]", "[1, 2]", "[1，2]", "[1、2]"])
def test_several_markers_of_one_sentence_each_get_their_quote(markers: str) -> None:
    found = quotes(f"林岑批准了这次玄武湾出差{markers}。")
    assert [number for number, _, _ in found] == [1, 2]
    assert found[1][2] == "林岑批准了这次玄武湾出差，乘坐高铁。"


def test_a_marker_behind_the_full_stop_belongs_to_the_sentence_before_it() -> None:
    assert [span for _, span, _ in quotes("Tickets cost 1,200 yuan. [1] Lin Cen approved the trip.[1] The end.")] == [
        "Tickets cost 1,200 yuan.",
        "Lin Cen approved the trip.",
    ]
    assert [span for _, span, _ in quotes("费用为1200元。[2]林岑批准了出差。[2]")] == ["费用为1200元。", "林岑批准了出差。"]


def test_a_marker_that_opens_a_line_belongs_to_what_follows() -> None:
    assert quotes("Summary:\n[1] Lin Cen approved the trip.\n- [2] 费用为1200元")[0][1] == "Lin Cen approved the trip."


@pytest.mark.parametrize(
    "answer",
    [
        "Use `x[1]` here.",
        "``a[1] ` b``",
        "```python\nrows[1]\n```",
        "~~~\nrows[1]\n~~~\n",
        "```\nrows[1] never closed",
        "[1](https://x.example) is a link",
        "[1]: https://x.example",
        "in [2024] and [1234]",
    ],
)
def test_code_links_and_years_hold_no_markers(answer: str) -> None:
    assert cite.strip_markers(answer) == answer
    assert not [one for one in cite.cite(answer, PASSAGES).citations if one.quote not in TRIP + ZH]
    assert cite.cite(answer, ()).citations == ()


def test_markers_around_code_still_count() -> None:
    assert [number for number, _, _ in quotes("Run `rows[2]` as Lin Cen approved [1].\n\n```\nx[2]\n```\nTickets cost 1,200 yuan [1].")] == [1, 1]


def test_a_marker_to_no_passage_is_recorded_and_cites_nothing() -> None:
    cited = cite.cite("Lin Cen approved the trip [1]. Mars is red [7][0].", PASSAGES)
    assert cited.dropped == (7, 0)
    assert [one.marker for one in cited.citations] == [1]
    assert cited.text == "Lin Cen approved the trip [1]. Mars is red [7][0]."


def test_markers_are_added_behind_supported_sentences_when_the_reader_set_none() -> None:
    cited = cite.cite("Lin Cen approved the trip to Basalt Bay. Mars is red. `Tickets cost 1,200 yuan`", PASSAGES)
    assert cited.text == "Lin Cen approved the trip to Basalt Bay.[1] Mars is red. `Tickets cost 1,200 yuan`"
    assert (cited.inserted, [one.quote for one in cited.citations]) == (1, ["Lin Cen approved the trip to Basalt Bay on 3 June."])


def test_added_markers_stay_out_of_fenced_code() -> None:
    answer = "林岑批准了这次玄武湾出差。\n```\n林岑批准了这次玄武湾出差。\n```\n"
    assert cite.cite(answer, PASSAGES).text == "林岑批准了这次玄武湾出差。[2]\n```\n林岑批准了这次玄武湾出差。\n```\n"


def test_a_reader_that_only_quotes_gets_its_whole_quote_even_over_lines() -> None:
    body = "Fares\nLin Cen approved the trip\nto Basalt Bay on 3 June. More."
    found = quotes("Lin Cen approved the trip\nto Basalt Bay on 3 June. [1]\nMore. [1]", evidence(body))
    assert [quote for _, _, quote in found] == ["Lin Cen approved the trip\nto Basalt Bay on 3 June.", "More."]


def test_a_table_row_is_quoted_as_a_line_and_its_header_is_not() -> None:
    rows = "Train | 1,200\nBus | 300"
    one = hit(rows, start=40, lead="Means | Price", line_start=5, line_end=6)
    passage = Evidence(1, one, f"Means | Price\n{rows}", 40, 40 + len(rows))
    citation = cite.cite("The bus costs 300 [1].", (passage,)).citations[0]
    assert (citation.quote, citation.start_char, citation.line_start, citation.line_end) == ("Bus | 300", 54, 6, 6)


def test_what_was_cut_off_is_never_quoted() -> None:
    one = PASSAGES[0]
    short = replace(one, text=TRIP[:28], end=28, truncated=True)
    assert quotes("Lin Cen approved the trip [1].", (short,))[0][2] == "The plan was drafted in May."


def test_an_answer_in_another_language_keeps_its_citation() -> None:
    cited = cite.cite("林岑批准了这次出差[1]。", evidence(TRIP))
    assert cited.citations[0].quote in TRIP
    assert cited.grounding.score == 1.0


def test_grounding_is_the_share_of_sentences_with_support() -> None:
    assert cite.cite("Lin Cen approved the trip [1]. Mars is red and far away.", PASSAGES).grounding.score == 0.5
    assert cite.cite("Volcanoes erupt under glaciers sometimes [1].", PASSAGES).grounding.score == 0.0
    assert cite.cite("", PASSAGES).grounding.score == 0.0


def test_numbers_and_names_that_stand_in_no_passage_are_listed() -> None:
    answer = "1. Lin Cen paid 1200 yuan [1], not 1,300.50, and Dr. Okafor saw 《红楼梦》 on 3 June 2031. However, it was 1200.0."
    assert cite.unsupported(answer, PASSAGES) == ("1,300.50", "Okafor", "红楼梦", "2031")
    assert cite.unsupported("费用为１２００元，另加500元[2]。", PASSAGES) == ("500",)


ALPHABET = "林岑批准了。高铁，！ ab. T?\n`~[]【】^12,:()|😀"


@given(st.text(alphabet=ALPHABET, max_size=120), st.lists(st.text(alphabet=ALPHABET, min_size=1, max_size=80), max_size=3))
def test_any_answer_keeps_its_words_and_every_quote_is_verbatim_where_it_says(answer: str, bodies: list[str]) -> None:
    passages = evidence(*bodies)
    cited = cite.cite(answer, passages)
    assert cite.strip_markers(cited.text) == cite.strip_markers(answer)
    assert cited.text == answer or cited.inserted
    assert 0.0 <= cited.grounding.score <= 1.0
    for one in cited.citations:
        passage = passages[one.marker - 1]
        assert passage.start <= one.start_char <= one.end_char <= passage.end
        assert bodies[one.marker - 1][one.start_char : one.end_char] == one.quote
        assert one.quote in passage.text[lead_length(passage) :]
        assert 0 <= one.answer_start <= one.answer_end <= len(cited.text)
