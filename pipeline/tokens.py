"""Exact token counts and offsets, offline, with cuts that never fall inside a character."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pipeline.vocabulary import ranks, vocabulary

if TYPE_CHECKING:
    from tiktoken import Encoding

DEFAULT = "cl100k_base"
Offsets: TypeAlias = NDArray[np.int64]
"""Shape (tokens + 1,): character offset at which each token begins, then the text's length; never decreasing."""

SLICE = 65_536
"""Most characters given to the encoder at once: it is quadratic, or overflows its stack, on much longer runs of one kind."""

_SEAM = r"(?:[A-Za-z0-9\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fff\uac00-\ud7a3](?=[ \r\n\t,.;:!?()、。，；：！？（）])|\n(?=[^\s/]))"
_FIRST_SEAM = re.compile(_SEAM)
_LAST_SEAM = re.compile(rf"(?s:.*){_SEAM}")
"""A letter or digit before a blank or mark, a line break before something else: both vocabularies' patterns always split there."""

_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class _Codec:
    encoding: Encoding
    sizes: NDArray[np.int64]
    """Bytes of each token, by id."""


@functools.cache
def _codec(name: str) -> _Codec:
    from tiktoken import Encoding

    constants = vocabulary(name)
    merges = ranks(name)
    sizes = np.zeros(max(merges.values()) + 1, dtype=np.int64)
    sizes[np.fromiter(merges.values(), dtype=np.int64, count=len(merges))] = np.fromiter(map(len, merges), dtype=np.int64, count=len(merges))
    encoding = Encoding(name, pat_str=constants.pattern, mergeable_ranks=merges, special_tokens=dict(constants.special))
    return _Codec(encoding, sizes)


def encode(text: str, encoding: str = DEFAULT) -> list[int]:
    """Token ids; strings such as ``<|endoftext|>`` are plain text, a lone surrogate counts as U+FFFD.

    Equal to tiktoken's `encode_ordinary`, save where a run without any blank or punctuation after a letter or digit
    exceeds `SLICE` characters: it is encoded in pieces, which can move a few tokens at each seam.
    """
    codec = _codec(encoding).encoding
    if len(text) <= SLICE:
        return codec.encode_ordinary(_clean(text))
    return [token for piece in _slices(text) for token in codec.encode_ordinary(_clean(piece))]


def count(text: str, encoding: str = DEFAULT) -> int:
    """Number of tokens, as `encode` makes them."""
    codec = _codec(encoding).encoding
    if len(text) <= SLICE:
        return len(codec.encode_ordinary(_clean(text)))
    return sum(len(codec.encode_ordinary(_clean(piece))) for piece in _slices(text))


def starts(text: str, encoding: str = DEFAULT) -> list[int]:
    """Character offset at which each token begins, plus ``len(text)``.

    Tokens inside one character share its offset, so slicing at any two never splits a character.
    """
    result: list[int] = offsets(text, encoding).tolist()
    return result


def offsets(text: str, encoding: str = DEFAULT) -> Offsets:
    """`starts` as an array: 8 bytes a token instead of some 40."""
    codec = _codec(encoding)
    if len(text) <= SLICE:
        return _offsets(text, codec)
    parts: list[Offsets] = []
    begin = 0
    for piece in _slices(text):
        part = _offsets(piece, codec)
        part += begin
        parts.append(part[:-1])
        begin += len(piece)
    parts.append(np.array([len(text)], dtype=np.int64))
    return np.concatenate(parts)


def cut(text: str, limit: int, encoding: str = DEFAULT) -> str:
    """Longest prefix of at most `limit` tokens that ends between two characters.

    The prefix is measured by itself, since cutting inside a word can make it one token longer than in the whole.
    """
    if limit <= 0:
        return ""
    reach = limit * 8 + 64
    head = text[:reach]
    places = offsets(head, encoding)
    while len(places) - 1 <= limit + 8 and len(head) < len(text):
        reach *= 4
        head = text[:reach]
        places = offsets(head, encoding)
    last = min(limit, len(places) - 1)
    prefix = head[: int(places[last])]
    while prefix and count(prefix, encoding) > limit:
        last -= 1
        prefix = head[: int(places[last])]
    return prefix


def is_seam(text: str, place: int) -> bool:
    """Whether the tokens on each side of `place` never depend on what stands on the other."""
    return 0 < place < len(text) and _FIRST_SEAM.match(text, place - 1) is not None


def first_seam(text: str, start: int, end: int) -> int:
    """The first seam inside a span, or -1."""
    match = _FIRST_SEAM.search(text, start, end)
    return match.end() if match else -1


def last_seam(text: str, start: int, end: int) -> int:
    """The last seam inside a span, or -1."""
    match = _LAST_SEAM.match(text, start, end)
    return match.end() if match else -1


def _offsets(text: str, codec: _Codec) -> Offsets:
    text = _clean(text)
    ids = codec.encoding.encode_to_numpy(text, allowed_special=frozenset(), disallowed_special=frozenset())
    places = np.zeros(len(ids) + 1, dtype=np.int64)
    np.cumsum(codec.sizes[ids], out=places[1:])
    if text.isascii():
        return places
    raw = np.frombuffer(text.encode(), dtype=np.int8)
    # continuation bytes are 0x80-0xBF, which is below -64 as a signed byte
    character = np.empty(len(raw) + 1, dtype=np.int64)
    np.cumsum(raw >= -64, out=character[:-1])
    character[:-1] -= 1
    character[-1] = len(text)
    return character[places]


def _clean(text: str) -> str:
    """The text with lone surrogates, which have no UTF-8 form, replaced one for one."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text)
    return text


def _slices(text: str) -> Iterator[str]:
    begin = 0
    while len(text) - begin > SLICE:
        end = begin + SLICE
        # the last seam of the slice, looked for in ever larger tails, so that a text without any stays linear
        for tail in (256, 4096, SLICE):
            seam = last_seam(text, end - tail, end)
            if seam > begin:
                end = seam
                break
        yield text[begin:end]
        begin = end
    yield text[begin:]
