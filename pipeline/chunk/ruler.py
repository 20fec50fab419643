"""One document, encoded once: tokens of any slice without encoding it again."""

from __future__ import annotations

import functools
import unicodedata

import numpy as np

from pipeline import tokens
from pipeline.contracts import Span

REACH = 512
"""Characters in which a seam near an edge is looked for, before the whole slice is encoded instead."""
NEAR = 32
"""The same, tried first."""
CLUSTER = 64
"""Longest run of joined code points (accents, emoji sequences) that is kept together."""

_JOINER = "\u200d"


class Ruler:
    """Measures slices of one text in tokens of one encoding."""

    def __init__(self, text: str, encoding: str) -> None:
        self.text = text
        self.encoding = encoding
        self.places = tokens.offsets(text, encoding)
        self.size = len(self.places) - 1
        """Tokens of the whole text."""

    def spans(self, edges: list[Span]) -> list[Span]:
        """Token span of each character span: the tokens that hold at least one of its characters."""
        if not edges:
            return []
        array = np.array(edges, dtype=np.int64)
        left = np.searchsorted(self.places, array)
        begins, ends = left[:, 0], left[:, 1]
        begins = begins - (self.places[begins] != array[:, 0])
        firsts: list[int] = np.searchsorted(self.places, self.places[begins]).tolist()
        lasts: list[int] = ends.tolist()
        return list(zip(firsts, lasts, strict=True))

    def exact(self, start: int, end: int) -> int:
        """Tokens of ``text[start:end]`` taken by itself: only its two ends are encoded again."""
        text = self.text
        first, last = start, end
        if start > 0 and not tokens.is_seam(text, start):
            first = tokens.first_seam(text, start, min(end, start + REACH))
        if first >= 0 and end < len(text) and not tokens.is_seam(text, end):
            last = tokens.last_seam(text, max(first, end - NEAR), end)
            if last < 0:
                last = tokens.last_seam(text, max(first, end - REACH), end)
        if first < 0 or last < 0:
            return tokens.count(text[start:end], self.encoding)
        total = int(self.places.searchsorted(last)) - int(self.places.searchsorted(first))
        if first > start:
            total += _count(text[start:first], self.encoding)
        if last < end:
            total += _count(text[last:end], self.encoding)
        return total

    def edge(self, place: int) -> int:
        """The place itself, or the nearest one before it that does not part a letter from its marks."""
        text = self.text
        if not 0 < place < len(text) or text[place] < "\u0300":
            return place
        at = place
        while at > max(0, place - CLUSTER) and _joined(text[at - 1], text[at]):
            at -= 1
        return place if at > 0 and _joined(text[at - 1], text[at]) else at


def _count(text: str, encoding: str) -> int:
    return _remembered(text, encoding) if len(text) <= 8 else tokens.count(text, encoding)


@functools.lru_cache(maxsize=4096)
def _remembered(text: str, encoding: str) -> int:
    return tokens.count(text, encoding)


def _joined(before: str, after: str) -> bool:
    return (
        before == _JOINER
        or after == _JOINER
        or "\ufe00" <= after <= "\ufe0f"
        or "\U0001f3fb" <= after <= "\U0001f3ff"
        or "\u1160" <= after <= "\u11ff"
        or unicodedata.category(after)[0] == "M"
    )
