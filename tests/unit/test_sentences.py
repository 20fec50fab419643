"""A sentence ends where a reader says it ends: not in a number, not after a title, in both languages and in their mixture."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.sentences import sentences


def cut(text: str) -> list[str]:
    return [text[start:end] for start, end in sentences(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It grew by 3.5 percent. Then it fell.", ["It grew by 3.5 percent.", "Then it fell."]),
        ("Version 2.0.1 is out. Install it.", ["Version 2.0.1 is out.", "Install it."]),
        ("Dr. Lin met Mr. Cen at 5 p.m. on Monday. They agreed.", ["Dr. Lin met Mr. Cen at 5 p.m. on Monday.", "They agreed."]),
        ("Some fruits, e.g. Apples, are red. Others, i.e. Limes, are not.", ["Some fruits, e.g. Apples, are red.", "Others, i.e. Limes, are not."]),
        ("增长了3.5%。随后下降！为什么？", ["增长了3.5%。", "随后下降！", "为什么？"]),
        ("请联系Dr. Lin，他在3.5楼。Thanks. 再见。", ["请联系Dr. Lin，他在3.5楼。", "Thanks.", "再见。"]),
        ("他说：“走吧。”然后走了。", ["他说：“走吧。”", "然后走了。"]),
        ('He said "Go." Then he left.', ['He said "Go."', "Then he left."]),
        ("等等……好吧。Wait... no.", ["等等……", "好吧。", "Wait... no."]),
        ("见 https://a.example/b?c=d.e 一文。完。", ["见 https://a.example/b?c=d.e 一文。", "完。"]),
        ("使用v2.0版本。支持e.g. Redis等。", ["使用v2.0版本。", "支持e.g. Redis等。"]),
        ("The U.S. Army left. J. K. Rowling wrote.", ["The U.S. Army left.", "J. K. Rowling wrote."]),
        ("1. Install it.\n2. Run it.", ["1. Install it.", "2. Run it."]),
        ("报告完成。The end! 真的?是的", ["报告完成。", "The end!", "真的?", "是的"]),
    ],
)
def test_sentences_end_where_a_reader_says(text: str, expected: list[str]) -> None:
    assert cut(text) == expected


@given(st.text(alphabet='林岑。！？. !?\nDre.g35"”…-1)', max_size=80))
def test_together_they_hold_all_that_is_not_blank_once_and_in_order(text: str) -> None:
    spans = sentences(text)
    assert all(start < end and text[start:end] == text[start:end].strip() for start, end in spans)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    assert "".join("".join(text[start:end] for start, end in spans).split()) == "".join(text.split())
