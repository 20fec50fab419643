"""Tokens are OpenAI's own, and cuts never damage a character."""

from __future__ import annotations

import functools
import gzip
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import tokens, vocabulary
from pipeline.errors import BrokenContract, Unsupported

ALPHABET = "ab Z9.,'\n\t  /_<|>世界林岑批准。，한국어カナ😀👩\u200d👧e\u0301\ud800\udfff<|endoftext|>"
ENCODINGS = ["cl100k_base", "o200k_base"]


@functools.cache
def sizes() -> dict[int, int]:
    return {rank: len(token) for token, rank in vocabulary.ranks("cl100k_base").items()}


def test_known_ids_are_those_that_openai_publishes() -> None:
    assert tokens.encode("hello world") == [15339, 1917]
    assert tokens.encode("tiktoken is great!") == [83, 1609, 5963, 374, 2294, 0]
    assert tokens.encode("hello world", "o200k_base") == [24912, 2375]


def test_an_altered_vocabulary_is_refused(tmp_path: Path) -> None:
    raw = gzip.decompress((vocabulary.FOLDER / "cl100k_base.tiktoken.gz").read_bytes())
    (tmp_path / "cl100k_base.tiktoken.gz").write_bytes(gzip.compress(raw.replace(b"IQ== 0", b"IQ== 1", 1)))
    with pytest.raises(BrokenContract, match="hash"):
        vocabulary.ranks("cl100k_base", tmp_path)


@pytest.mark.parametrize("content", [None, b"", b"not gzip at all", b"\x1f\x8b\x08\x00cut"])
def test_a_missing_or_damaged_vocabulary_is_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "o200k_base.tiktoken.gz").write_bytes(content)
    with pytest.raises(BrokenContract) as caught:
        vocabulary.ranks("o200k_base", tmp_path)
    assert caught.value.code == "damaged_vocabulary"


def test_an_unknown_encoding_is_named_with_the_known_ones() -> None:
    with pytest.raises(Unsupported) as caught:
        tokens.count("x", "p50k_base")
    assert "cl100k_base" in caught.value.hint


def test_the_vocabulary_needs_no_cache_and_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    def refuse(*_: object) -> None:
        raise AssertionError("tried to connect")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    for name in ENCODINGS:
        shutil.copy(vocabulary.FOLDER / f"{name}.tiktoken.gz", tmp_path)
        assert len(vocabulary.ranks(name, tmp_path)) > 100_000


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_special_tokens_in_a_text_are_plain_text(encoding: str) -> None:
    text = "before <|endoftext|> after <|fim_prefix|>"
    ids = tokens.encode(text, encoding)
    assert max(ids) < 199_998
    assert len(tokens.starts(text, encoding)) == len(ids) + 1 == tokens.count(text, encoding) + 1


@pytest.mark.parametrize("encoding", ENCODINGS)
@settings(deadline=None)
@given(text=st.text(alphabet=ALPHABET, max_size=300))
def test_every_token_begins_at_a_character_and_all_of_them_cover_the_text(encoding: str, text: str) -> None:
    starts = tokens.starts(text, encoding)
    assert starts == sorted(starts)
    assert (starts[0], starts[-1]) == (0, len(text))
    assert len(starts) == tokens.count(text, encoding) + 1 == len(tokens.encode(text, encoding)) + 1
    assert "".join(text[a:b] for a, b in pairwise(starts)) == text


@settings(deadline=None)
@given(text=st.text(alphabet=ALPHABET.replace("\ud800", "").replace("\udfff", ""), max_size=300))
def test_offsets_agree_with_the_bytes_of_each_token(text: str) -> None:
    raw, at, expected = text.encode(), 0, []
    for token in tokens.encode(text):
        head = raw[:at]
        expected.append(len(head.decode(errors="ignore")))
        at += sizes()[token]
    assert tokens.starts(text) == [*expected, len(text)]


@pytest.mark.parametrize("encoding", ENCODINGS)
@settings(deadline=None)
@given(text=st.text(alphabet=ALPHABET, max_size=200), limit=st.integers(0, 40))
def test_a_cut_text_is_a_prefix_within_the_limit(encoding: str, text: str, limit: int) -> None:
    prefix = tokens.cut(text, limit, encoding)
    assert text.startswith(prefix)
    assert tokens.count(prefix, encoding) <= limit
    assert prefix == text or tokens.count(text, encoding) > limit


@pytest.mark.parametrize("encoding", ENCODINGS)
@settings(deadline=None)
@given(text=st.text(alphabet=ALPHABET + "\r!?()、：don'll12345", max_size=120), data=st.data())
def test_tokens_on_one_side_of_a_seam_do_not_depend_on_the_other(encoding: str, text: str, data: st.DataObject) -> None:
    places = [place for place in range(len(text)) if tokens.is_seam(text, place)]
    if places:
        place = data.draw(st.sampled_from(places))
        assert tokens.count(text, encoding) == tokens.count(text[:place], encoding) + tokens.count(text[place:], encoding)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_long_texts_are_encoded_in_slices_with_the_same_result(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "The river was divided, not dammed.\n都江堰分水，不筑坝。二千年！\n    def flow(x): return x / 2\n" * 60
    whole, places = tokens.encode(text, encoding), tokens.starts(text, encoding)
    monkeypatch.setattr(tokens, "SLICE", 97)
    assert tokens.encode(text, encoding) == whole
    assert tokens.starts(text, encoding) == places
    assert tokens.count(text, encoding) == len(whole)


@pytest.mark.parametrize("text", [" " * 1_200_000, "x" * 300_000, "世" * 200_000, "\u00a0" * 900_000], ids=["blanks", "letters", "han", "no-break"])
def test_a_huge_run_of_one_kind_is_counted_without_a_crash(text: str) -> None:
    assert tokens.starts(text, "o200k_base")[-1] == len(text)
