from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import llm
from pipeline.contracts import Completion, Usage
from pipeline.llm.extractive import NO_ANSWER, ExtractiveLLM
from pipeline.protocols import Generation
from pipeline.settings import Settings

FLOODS = """# 历史洪水

第二大洪水发生在2013年7月9日，石桥站最高水位6.21米，没有超过危险水位。
1998年8月21日凌晨四点，石桥站的水位升到7.84米，这是建站以来的最高值。下游农田被淹，没有人员死亡。
2009年，十一个村成立了合作社。"""
GAUGES = """Batteries
The battery of a radar gauge is replaced every 18 months, in April or October.
The battery of the radio lasts three years. Seals are looked at every month."""
LEVELS = """date | Upper Ford | Stone Bridge
2026-07-13 | 2.85 | 4.60
2026-07-14 | 3.85 | 5.62
2026-07-15 | 2.70 | 4.20"""
CONTACTS = """- Duty room in Nankou: 555-0110, answered day and night.
- Keepers of Qingshan Reservoir: 555-0120.
1. Call the county office last."""
STATIONS = """code: BS3
warning level: 5.5
danger level: 6.8"""
ALL = (FLOODS, GAUGES, LEVELS, CONTACTS, STATIONS)


def messages(question: str, *passages: str) -> list[tuple[str, str]]:
    """As `pipeline.prompt` renders them."""
    shown = "\n\n".join(f'<passage number="{n}" source="file {n}, lines 1-9">\n{text}\n</passage>' for n, text in enumerate(passages, 1))
    return [
        ("system", "Answer from the passages."),
        ("user", "an earlier question"),
        ("assistant", "an answer"),
        ("user", f"{shown}\n\n<question>\n{question}\n</question>"),
    ]


def answer(question: str, *passages: str) -> Completion:
    return ExtractiveLLM().complete(messages(question, *(passages or ALL)), Generation())


@pytest.mark.parametrize(
    ("question", "first"),
    [
        ("1998年洪水时石桥站的最高水位是多少？", "1998年8月21日凌晨四点，石桥站的水位升到7.84米，这是建站以来的最高值。 [1]"),
        ("１９９８年石橋站的最高水位是多少？", "1998年8月21日凌晨四点，石桥站的水位升到7.84米，这是建站以来的最高值。 [1]"),
        ("合作社是哪一年成立的？", "2009年，十一个村成立了合作社。 [1]"),
        ("How often is the battery of a radar gauge replaced?", "The battery of a radar gauge is replaced every 18 months, in April or October. [2]"),
        ("How long does the radio's battery last?", "The battery of the radio lasts three years. [2]"),
        ("What is the number of the duty room?", "Duty room in Nankou: 555-0110, answered day and night. [4]"),
        ("What is the danger level?", "danger level: 6.8 [5]"),
    ],
)
def test_the_sentence_that_answers_comes_first_with_its_marker(question: str, first: str) -> None:
    made = answer(question)
    assert made.text.splitlines()[0] == first
    assert made.finish_reason == "stop" and made.model == "extractive"


@pytest.mark.parametrize("day", ["14 July 2026", "July 14, 2026", "2026-07-14", "14th Jul 2026"])
def test_a_row_of_a_table_is_quoted_under_its_header(day: str) -> None:
    made = answer(f"What was the level at Stone Bridge on {day}?")
    assert made.text.splitlines()[:2] == ["date | Upper Ford | Stone Bridge [3]", "2026-07-14 | 3.85 | 5.62 [3]"]


@pytest.mark.parametrize("question", ["Which composer wrote the opera Turandot?", "谁写了歌剧图兰朵？", "？？？", "", "qqq"])
def test_what_the_evidence_does_not_hold_is_not_answered(question: str) -> None:
    made = answer(question)
    assert (made.text, made.finish_reason) == ("", NO_ANSWER)


@pytest.mark.parametrize(
    "sent", [[], [("user", "no frames at all")], [("system", "<question>\nx\n</question>")], [("user", "<question>\nradar gauge\n</question>")]]
)
def test_a_prompt_without_passages_or_question_has_no_answer(sent: list[tuple[str, str]]) -> None:
    assert ExtractiveLLM().complete(sent, Generation()).finish_reason == NO_ANSWER


def test_the_language_of_the_question_is_preferred_where_both_say_it() -> None:
    english, chinese = "Station BS3 reached 5.62 m on 2026-07-14.", "BS3 站在 2026-07-14 达到 5.62 米。"
    for passages in ((english, chinese), (chinese, english)):
        assert answer("BS3 2026-07-14 达到多少米？", *passages).text.startswith("BS3 站")
        assert answer("What did BS3 reach on 2026-07-14?", *passages).text.startswith("Station BS3")


def test_a_second_sentence_is_added_only_for_what_the_first_leaves_out() -> None:
    both = answer(
        "Who keeps the Stone Bridge station, and when was the Willow Bend station built?",
        "Liu Mei keeps the Stone Bridge station. The tea was good.",
        "The Willow Bend station was built in 2011.",
    )
    assert both.text == "Liu Mei keeps the Stone Bridge station. [1]\nThe Willow Bend station was built in 2011. [2]" or both.text.splitlines() == [
        "The Willow Bend station was built in 2011. [2]",
        "Liu Mei keeps the Stone Bridge station. [1]",
    ]
    one = answer("Who keeps the Stone Bridge station?", "Liu Mei keeps the Stone Bridge station.", "Liu Mei keeps the Stone Bridge station.")
    assert one.text == "Liu Mei keeps the Stone Bridge station. [1]"


def test_the_sentence_after_a_question_in_the_text_answers_it() -> None:
    made = answer("How is a gauge sealed?", "How is a gauge sealed?\nWith a rubber ring for every gauge, sealed twice.\n\nOther gauges exist.")
    assert "rubber ring" in made.text.splitlines()[0]


def test_a_stream_gives_the_same_answer_in_pieces() -> None:
    sent = messages("How often is the battery of a radar gauge replaced, and that of the radio?", *ALL)
    got = list(ExtractiveLLM().stream(sent, Generation()))
    last = got.pop()
    assert isinstance(last, Completion)
    assert "".join(piece for piece in got if isinstance(piece, str)) == last.text == ExtractiveLLM().complete(sent, Generation()).text


def test_no_tokens_are_claimed() -> None:
    assert answer("danger level").usage == Usage()


def test_it_is_the_default_and_answers_the_same_in_every_process() -> None:
    assert llm.create(Settings()).name == "extractive"
    asked = [messages(question, *ALL) for question in ("石桥站水位", "battery radio gauge radar", "station level number")]
    script = (
        "from pipeline.llm.extractive import ExtractiveLLM; from pipeline.protocols import Generation\n"
        f"print('|'.join(ExtractiveLLM().complete(sent, Generation()).text for sent in {asked!r}))"
    )
    made = {
        subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True).stdout
        for seed in "12"
    }
    assert len(made) == 1 and "|" in made.pop()


TEXT = st.text(alphabet='石桥站水位 Gauge level 12.5m。！?\n|#-: \ud800😀<>[]"', max_size=200)


@settings(deadline=None, max_examples=150)
@given(question=TEXT, passages=st.lists(TEXT, min_size=1, max_size=4))
def test_every_line_is_verbatim_in_the_passage_that_its_marker_names(question: str, passages: list[str]) -> None:
    made = answer(question, *passages)
    assert bool(made.text) == (made.finish_reason == "stop")
    for quote, number in re.findall(r"(.+?) \[(\d+)\](?:\n|\Z)", made.text, re.DOTALL):
        assert quote in passages[int(number) - 1]
    assert len(re.findall(r" \[\d+\](?:\n|\Z)", made.text)) <= 6
