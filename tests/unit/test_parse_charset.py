from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import Malformed, PipelineError
from pipeline.parse.charset import decode, plausible

SIMPLE = "都江堰是两千多年前修建的水利工程，不用大坝就能分水、排沙和灌溉，到现在还在使用。"
TRADITIONAL = "都江堰是兩千多年前修建的水利工程，不用大壩就能分水、排沙和灌溉，到現在還在使用。"


@pytest.mark.parametrize("charset", ["utf-8", "utf-8-sig", "gbk", "gb18030", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
@pytest.mark.parametrize("length", [8, 20, len(SIMPLE)])
def test_simplified_chinese_is_recognised_from_a_few_characters(charset: str, length: int) -> None:
    assert decode(SIMPLE[:length].encode(charset))[0] == SIMPLE[:length]


@pytest.mark.parametrize("charset", ["big5", "cp950", "utf-16-le"])
@pytest.mark.parametrize("length", [8, 20, len(TRADITIONAL)])
def test_traditional_chinese_is_recognised_from_a_few_characters(charset: str, length: int) -> None:
    assert decode(TRADITIONAL[:length].encode(charset))[0] == TRADITIONAL[:length]


@pytest.mark.parametrize(
    ("text", "charset"),
    [
        ("日本語のテキストファイルです。東京は今日も晴れです。", "cp932"),
        ("日本語のテキストファイルです。東京は今日も晴れです。", "euc-jp"),
        ("日本語のテキストファイルです。", "iso2022_jp"),
        ("안녕하세요. 이것은 한국어 문서입니다.", "cp949"),
        ("Привет, это обычный русский текст о погоде.", "cp1251"),
        ("Le café était fermé à Noël, déjà l'été dernier.", "latin-1"),
        ("El niño comió piñas en España", "cp1252"),
        ("plain words in wide characters", "utf-16-le"),
        ("plain words in wide characters", "utf-16-be"),
    ],
)
def test_other_languages_are_read_right(text: str, charset: str) -> None:
    assert decode(text.encode(charset))[0] == text


def test_a_last_character_cut_in_the_middle_is_dropped() -> None:
    assert decode(SIMPLE.encode()[:-1]) == (SIMPLE[:-1], "utf-8")
    assert decode(SIMPLE.encode("gb18030")[:-1])[0] == SIMPLE[:-1]


def test_one_bad_byte_in_a_long_text_is_replaced_and_the_rest_read() -> None:
    data = (SIMPLE * 60).encode()
    text, charset = decode(data[:300] + b"\xff" + data[300:])
    assert charset == "utf-8" and text.count("\ufffd") == 1


def test_a_wrong_declaration_does_not_win_over_the_bytes() -> None:
    assert decode(SIMPLE.encode(), "gb2312") == (SIMPLE, "utf-8")
    assert decode(SIMPLE.encode("gb18030"), "latin-1") == (SIMPLE, "gb18030")


def test_a_right_declaration_decides_what_the_bytes_leave_open() -> None:
    text = "أعرب الاتحاد الجزائري"
    assert decode(text.encode("iso8859-6"), "ISO-8859-6") == (text, "iso8859-6")


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("size", [40, 400, 4000])
def test_noise_is_refused_instead_of_shown_as_characters(seed: int, size: int) -> None:
    data = random.Random(seed).randbytes(size)
    assert not plausible(data)
    with pytest.raises(Malformed) as caught:
        decode(data)
    assert caught.value.code == "unknown_charset" and "UTF-8" in caught.value.hint


@given(st.text(min_size=1))
def test_utf8_comes_back_as_it_was(text: str) -> None:
    try:
        read, charset = decode(b"\xef\xbb\xbf" + text.encode())
    except PipelineError:
        return
    assert (read, charset) == (text, "utf-8")
