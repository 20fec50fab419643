"""Search terms, the same for every store: folding of scripts, words, characters and bigrams, parts of compounds.

A term holds letters and digits only, so that SQLite's unicode61 and Elasticsearch's whitespace tokenizer
both keep it as one token.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

import numpy as np

from pipeline.sentences import sentences

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["fold", "language", "query_terms", "sentences", "terms", "terms_many"]

LONGEST = 64
"""Characters kept of one Latin term: a blob of base64 must not become a term that a store refuses."""

_HAN = r"\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_HIRAGANA = r"\u3041-\u3096\u309b-\u309f"
_KATAKANA = r"\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"
_KANA = _HIRAGANA + _KATAKANA
_HANGUL = r"\u3131-\u318e\uac00-\ud7a3"

_ASCII_WORD = re.compile(r"[A-Za-z0-9]+(?:(?:_+|[.\-'@]|,(?=[0-9]{3}(?![0-9])))[A-Za-z0-9]+)*(?:\+\+|#)?")
_LETTER = rf"[^\W_{_HAN}{_KANA}{_HANGUL}]"
_WORD = re.compile(rf"{_LETTER}+(?:(?:_+|[.\-'’@]|,(?=[0-9]{{3}}(?![0-9]))){_LETTER}+)*(?:\+\+|#)?")
_CJK_RUN = re.compile(f"[{_HAN}{_KANA}]+")
_KANA_RUN = re.compile(f"[{_HIRAGANA}]+|[{_KATAKANA}]+")
_HANGUL_RUN = re.compile(f"[{_HANGUL}]+")
_HAN_ONE = re.compile(f"[{_HAN}]")

_INVISIBLE = dict.fromkeys([0xAD, 0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF])
_ODD = re.compile(
    "[\u00ad\u200b-\u200d\u2060\ufeff\ud800-\udfff\uf900-\ufaff\ufb00-\ufb06\uff0d\uff0e\uff10-\uff19\uff21-\uff3a\uff3f\uff41-\uff5a\uff66-\uff9f\u1100-\u11ff]+"
    "|.[\u0300-\u036f\u3099\u309a]+"
)
"""What must be brought into its usual form first: full width, ligatures, loose accents and jamo, invisible marks."""

_WIDE = {0x3000: " ", **{code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}}
_WIDTH = re.compile("[\u3000\uff01-\uff5e]+")
_SURROGATE = re.compile("[\ud800-\udfff]")

_SEPARATOR = re.compile(r"[._\-'’@,]+")
_KIND = re.compile(r"[A-Za-z]+|[0-9]+")
_PIECE = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_PARTICLE = re.compile(r"(?<=..)(?:에서는|에서|에게|으로|까지|부터|처럼|보다|이나|이란|이라|에는|[을를은는이가의에와과도로만])$")
"""What Korean hangs on a noun; cut off as a stemmer would, when two syllables are left."""
_POINT = "\u02d1"
"""A letter that stands for the point of 3.5, so that it is another term than 35."""


def fold(text: str) -> str:
    """Traditional to Simplified Chinese (OpenCC t2s), full width to half width, lower case."""
    if text.isascii():
        return text.lower()
    return _simplify(_WIDTH.sub(_narrow, _SURROGATE.sub("\ufffd", text))).lower()


def terms(text: str) -> tuple[str, str]:
    """(words, grams), each space-joined, for `Chunk.words` and `Chunk.grams`.

    words: Chinese words, kana runs, Hangul runs without particles, stemmed words of other scripts; of a compound (``SUB_WORKFLOW``,
    ``apache.org``, ``iPhone15``) both the whole, written as one, and its parts.
    grams: Chinese characters and bigrams, kana with them, Hangul bigrams, the parts of compounds.
    """
    if text.isascii():
        return _spaced(_ASCII_WORD.findall(text))
    text = _simplify(_usual(text))
    words, grams = _spaced(_WORD.findall(text))
    runs = " ".join(_CJK_RUN.findall(text))
    if runs:
        words += " " + " ".join(_segment(runs))
        grams += " " + _grams(runs)
    hangul = _HANGUL_RUN.findall(text)
    if hangul:
        words += " " + " ".join(_nouns(hangul))
        grams += " " + " ".join(_pairs(hangul))
    return words.strip(), grams.strip()


def terms_many(texts: Iterable[str]) -> list[tuple[str, str]]:
    """`terms` of each text, in order."""
    return [terms(text) for text in texts]


def query_terms(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(words, grams) of a question: distinct, in order of appearance by script, without stop words.

    Stop words stay when the question holds nothing else. Bigrams never reach over a dropped word.
    """
    words, grams = _question(text, _stop_words())
    if not words and not grams:
        words, grams = _question(text, frozenset())
    return tuple(dict.fromkeys(words)), tuple(dict.fromkeys(grams))


def language(text: str) -> str:
    """zh, ja, ko, en or "" by script: kana or Hangul in more than a tenth of the letters decides before Han does."""
    letters = sum(map(str.isalpha, text))
    if not letters:
        return ""
    kana = sum(map(len, _KANA_RUN.findall(text)))
    hangul = sum(map(len, _HANGUL_RUN.findall(text)))
    if max(kana, hangul) * 10 > letters:
        return "ja" if kana >= hangul else "ko"
    han = len(_HAN_ONE.findall(text))
    if han * 5 > letters:
        return "zh"
    latin = len(re.findall(r"[A-Za-z]", text))
    return "en" if latin * 2 > letters else ""


def _question(text: str, stop: frozenset[str]) -> tuple[list[str], list[str]]:
    text = _simplify(_usual(text))
    words: list[str] = []
    grams: list[str] = []
    for surface in _WORD.findall(text):
        found, parts = _analyse(surface)
        if found not in stop:
            words += found.split()
            grams += parts.split()
    runs: list[str] = []
    for run in _CJK_RUN.findall(text):
        segments = _segment(run)
        words += [word for word in segments if word not in stop]
        # words of a run with kana are not in the order of the text
        runs += [run] if _KANA_RUN.search(run) else "".join(" " if word in stop else word for word in segments).split()
    if runs:
        grams += _grams(" ".join(runs)).split()
    hangul = _HANGUL_RUN.findall(text)
    return [*words, *_nouns(hangul)], grams + list(_pairs(hangul))


def _spaced(surfaces: list[str]) -> tuple[str, str]:
    remember = max(map(len, surfaces), default=0) <= LONGEST
    pairs = list(map(_analysed if remember else _analyse, surfaces))
    return " ".join([pair[0] for pair in pairs]), " ".join([pair[1] for pair in pairs if pair[1]])


def _narrow(match: re.Match[str]) -> str:
    return match[0].translate(_WIDE)


def _usual(text: str) -> str:
    if text.isascii() or not _ODD.search(text):
        return text
    return _ODD.sub(_composed, text)


def _composed(match: re.Match[str]) -> str:
    return _SURROGATE.sub(" ", unicodedata.normalize("NFKC", match[0].translate(_INVISIBLE)))


def _simplify(text: str) -> str:
    return _converter()(text) if _HAN_ONE.search(text) else text


def _segment(runs: str) -> list[str]:
    import rjieba

    if not _KANA_RUN.search(runs):
        return " ".join(rjieba.cut(runs)).split()
    # the dictionary is Chinese: a run of kana is kept whole, as a word of its own
    return [*" ".join(rjieba.cut(_KANA_RUN.sub(" ", runs))).split(), *_KANA_RUN.findall(runs)]


def _grams(runs: str) -> str:
    """Each character, followed by the bigram it begins, of runs separated by single spaces."""
    codes = np.frombuffer(runs.encode("utf-32-le"), dtype=np.uint32)
    letter = codes != 32
    pair = letter.copy()
    pair[:-1] &= letter[1:]
    pair[-1] = False
    # per character: itself, a space, then itself again, the next one, a space
    cells = np.full((len(codes), 5), 32, dtype=np.uint32)
    cells[:, 0] = cells[:, 2] = codes
    cells[:-1, 3] = codes[1:]
    keep = np.empty((len(codes), 5), dtype=np.bool_)
    keep[:, :2] = letter[:, None]
    keep[:, 2:] = pair[:, None]
    return cells[keep].tobytes().decode("utf-32-le").rstrip()


def _nouns(runs: Iterable[str]) -> Iterable[str]:
    return (_PARTICLE.sub("", run) for run in runs)


def _pairs(runs: Iterable[str]) -> Iterable[str]:
    for run in runs:
        if len(run) == 1:
            yield run
        for at in range(len(run) - 1):
            yield run[at : at + 2]


@functools.lru_cache(maxsize=65_536)
def _analysed(surface: str) -> tuple[str, str]:
    return _analyse(surface)


def _analyse(surface: str) -> tuple[str, str]:
    """(words, parts) of one Latin word or compound; parts are empty unless it has several."""
    if surface.isalpha() and (surface.islower() or surface[1:].islower() or len(surface) == 1):
        return _term(surface), ""
    suffix = ""
    if surface[-1] in "+#":
        suffix = "plusplus" if surface[-1] == "+" else "sharp"
        surface = surface.rstrip("+#")
    pieces = _SEPARATOR.split(surface)
    if len(pieces) > 1 and pieces[-1] in {"s", "S"} and surface[-2] in "'’":
        del pieces[-1]
    parts: list[str] = []
    for piece in pieces:
        parts.append(piece)
        fine = _PIECE.findall(piece) if piece.isascii() else []
        # more changes than this between letters, cases and digits make a hash, not a name
        if 1 < len(fine) <= 4:
            parts += [part for part in (*_KIND.findall(piece), *fine) if len(part) > 1 or part.isdigit()]
    whole = _term((surface.replace(",", "") if "," in surface else _whole(pieces)) + suffix)
    distinct = [part for part in dict.fromkeys(map(_term, parts)) if part and part != whole]
    return " ".join([whole, *distinct]).strip(), " ".join(distinct)


def _whole(pieces: list[str]) -> str:
    joined = pieces[0]
    for piece in pieces[1:]:
        joined += _POINT + piece if joined[-1:].isdigit() and piece[:1].isdigit() else piece
    return joined


def _term(word: str) -> str:
    """One token: lower case, no accents, letters and digits only, stemmed when it is all ASCII letters."""
    word = word[:LONGEST].lower()
    if not word.isascii():
        plain = unicodedata.normalize("NFD", word) if word[0] < "\u0370" else word
        word = "".join(filter(str.isalnum, plain))
    return _stem(word) if word.isascii() and word.isalpha() else word


def _stem(word: str) -> str:
    return _stemmer()(word)


@functools.cache
def _stemmer() -> Callable[[str], str]:
    from Stemmer import Stemmer  # pyright: ignore[reportUnknownVariableType]

    # its own cache is off: _analysed is the bounded one
    return cast("Callable[[str], str]", Stemmer("english", 0).stemWord)  # pyright: ignore[reportUnknownMemberType]


@functools.cache
def _converter() -> Callable[[str], str]:
    from opencc import OpenCC

    return cast("Callable[[str], str]", OpenCC("t2s").convert)  # pyright: ignore[reportUnknownMemberType]


@functools.cache
def _stop_words() -> frozenset[str]:
    return frozenset(_term(word) for word in _ENGLISH_STOP.split()) | frozenset(_CHINESE_STOP.split())


_ENGLISH_STOP = """
a about an and any are as at be been being but by can could did do does doing for from had has have having he her hers him his how
i if in into is it its me might my no not of on or our ours shall she should so some such than that the their theirs them then there
these they this those through to too us was we were what when where which while who whom whose why will with would you your yours
"""
_CHINESE_STOP = """
的 了 和 与 及 或 是 在 有 也 都 就 而 而且 吗 呢 吧 啊 呀 嘛 之 其 于 以 把 被 让 给 对 对于 关于 由 从 向 到 为 为了 因 因为 所以 但 但是
这 那 这个 那个 这些 那些 这里 那里 它 他 她 它们 他们 她们 我 你 您 我们 你们 什么 什么样 甚么 哪 哪个 哪些 哪里 哪儿 谁 多少 几 怎么 怎样 怎么样
如何 为什么 为何 何 是否 是不是 有没有 请问 请 一个 一些 一下 还 还是 很 最 会 能 可以 应该 要 并 并且 等 着 过 地 得
"""
