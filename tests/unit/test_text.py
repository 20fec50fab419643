"""What is indexed is found again, whatever script, width, case or spelling the question uses."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import text as subject
from pipeline.text import fold, language, query_terms, sentences, terms, terms_many

ALPHABET = "abcXYZ019_-.@'’,+# \n\t系統管理員资料库林岑。，東京タワーカナ゙한국어는ＡＢ１ﬁé\u0301\u00ad\u200bİßЖ😀\ud800𠀀½²"


def found(question: str, passage: str) -> bool:
    """Whether every word of the question stands in the passage's terms."""
    words, grams = query_terms(question)
    have = [set(side.split()) for side in terms(passage)]
    return bool(words or grams) and set(words) <= have[0] and set(grams) <= have[1]


@pytest.mark.parametrize(
    ("question", "passage"),
    [
        ("workflow", "the SUB_WORKFLOW task"),
        ("SUB_WORKFLOW", "the SUB_WORKFLOW task"),
        ("apache", "see dolphinscheduler.apache.org for more"),
        ("dolphinscheduler.apache.org", "see dolphinscheduler.apache.org for more"),
        ("DSIP-1", "proposal DSIP-1 was accepted"),
        ("dsip1", "proposal DSIP-1 was accepted"),
        ("iphone 15", "der neue iPhone15"),
        ("http server", "class HTTPServer:"),
        ("email", "send an e-mail"),
        ("3.5", "released as version 3.5 today"),
        ("1000000", "it cost 1,000,000 yuan"),
        ("C++", "written in C++ by hand"),
        ("running", "it runs"),
        ("cafe", "the Café"),
        ("cafe", "the Cafe\u0301"),
        ("file", "a ﬁle from a PDF"),
        ("document", "a docu\u00adment"),
        ("apple", "Ａｐｐｌｅ"),
        ("李冰的妻子", "李冰与妻子"),
        ("系统管理员", "系統管理員"),
        ("系統管理員", "系统管理员"),
        ("資料庫在哪裡", "资料库在成都"),
        ("한국어", "한국어를 공부"),
        ("タワー", "東京タワーへ"),
        ("ﾀﾜｰ", "東京タワー"),
    ],
)
def test_a_question_finds_the_passage(question: str, passage: str) -> None:
    assert found(question, passage)


@pytest.mark.parametrize(("question", "passage"), [("3.5", "35"), ("C++", "plan C"), ("35", "3.5 m")])
def test_lookalikes_are_not_confused(question: str, passage: str) -> None:
    assert not found(question, passage)


@settings(deadline=None)
@given(text=st.text(alphabet=ALPHABET, max_size=120))
def test_every_term_is_one_token_for_sqlite_and_for_a_whitespace_tokenizer(text: str) -> None:
    for side in terms(text):
        for term in side.split(" ") if side else []:
            assert term
            assert term.isalnum()
            assert term == term.lower()
            assert len(term) <= subject.LONGEST + len("plusplus") or not term.isascii()


def test_sqlite_keeps_our_terms_whole() -> None:
    words, grams = terms("dolphinscheduler.apache.org v3.5.1 SUB_WORKFLOW 系統管理員 한국어 東京タワー café C++ 1,000")
    database = sqlite3.connect(":memory:")
    database.execute("create virtual table f using fts5(body, tokenize='unicode61')")
    database.execute("create virtual table v using fts5vocab(f, 'row')")
    database.execute("insert into f values (?)", (f"{words} {grams}",))
    kept = {term for (term,) in database.execute("select term from v")}
    database.close()
    assert kept == {*words.split(), *grams.split()}


@settings(deadline=None)
@given(texts=st.lists(st.text(alphabet=ALPHABET, max_size=60), max_size=6))
def test_terms_of_a_text_do_not_depend_on_its_neighbours(texts: list[str]) -> None:
    assert terms_many(texts) == [terms(text) for text in texts]


@settings(deadline=None)
@given(text=st.text(alphabet="系統管理員资料库林岑ab1_. \n", max_size=80))
def test_what_a_question_asks_for_is_part_of_what_the_same_text_indexes(text: str) -> None:
    words, grams = query_terms(text)
    assert set(grams) <= set(terms(text)[1].split())
    assert len(set(words)) == len(words)


def test_stop_words_are_dropped_unless_nothing_else_is_left() -> None:
    assert query_terms("what is the river")[0] == ("river",)
    assert query_terms("to be or not to be")[0] == ("to", "be", "or", "not")
    assert query_terms("什么是都江堰？")[0] == ("都江堰",)
    assert query_terms("的") == (("的",), ("的",))
    assert query_terms("?!") == ((), ())


def test_a_blob_of_five_megabytes_gives_no_term_that_a_store_refuses() -> None:
    words, grams = terms("QmFzZTY0" * 600_000)
    assert max(map(len, f"{words} {grams}".split())) <= subject.LONGEST


def test_the_memory_of_words_is_bounded() -> None:
    assert subject._analysed.cache_info().maxsize == 65_536  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("given", "folded"), [("ＡＢＣ，１", "abc,1"), ("系統 ABC", "系统 abc"), ("Straße", "straße"), ("a\u3000b", "a b"), ("\ud800林", "\ufffd林")]
)
def test_folding_joins_scripts_widths_and_cases(given: str, folded: str) -> None:
    assert fold(given) == folded


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Dr. Smith paid 3.5 dollars. He left! Why?", ["Dr. Smith paid 3.5 dollars.", "He left!", "Why?"]),
        ("Mr. J. Doe agrees, e.g. on No. 5. Fine.", ["Mr. J. Doe agrees, e.g. on No. 5.", "Fine."]),
        ("你好。世界！真的吗？是。", ["你好。", "世界！", "真的吗？", "是。"]),
        ("他说：“走。”然后走了。", ["他说：“走。”", "然后走了。"]),
        ("版本3.5发布了。See a.com?x=y now.", ["版本3.5发布了。", "See a.com?x=y now."]),
        ("1. Install it. Run it.\n2. Stop", ["1. Install it.", "Run it.", "2. Stop"]),
        ("One\n\nTwo", ["One", "Two"]),
        ('He said "Stop." Then left.', ['He said "Stop."', "Then left."]),
        ("", []),
        (" \n ", []),
    ],
)
def test_sentences_end_where_a_reader_would_end_them(text: str, expected: list[str]) -> None:
    assert [text[start:end] for start, end in sentences(text)] == expected


@given(text=st.text(alphabet='ab A.!?。！\n \t"”1-3J', max_size=200))
def test_sentences_hold_every_character_that_is_not_blank(text: str) -> None:
    covered: set[int] = set()
    last = 0
    for start, end in sentences(text):
        assert last <= start < end
        assert text[start:end] == text[start:end].strip()
        covered.update(range(start, end))
        last = end
    assert all(text[at].isspace() for at in set(range(len(text))) - covered)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("都江堰分水", "zh"),
        ("使用 Celery 和 Redis 的系統", "zh"),
        ("東京タワーへ行きます", "ja"),
        ("한국어를 공부해요", "ko"),
        ("a river", "en"),
        ("река", ""),
        ("123", ""),
        ("", ""),
    ],
)
def test_the_language_follows_the_script(text: str, name: str) -> None:
    assert language(text) == name
