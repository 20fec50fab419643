"""Where a block that exceeds the budget may be cut: rows, lines, delimiters, sentences, then tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from pipeline.chunk.ruler import Ruler
from pipeline.contracts import Span
from pipeline.sentences import sentences

BACK = 32
"""Tokens a cut may move back to fall beside a blank or a mark instead of inside a word."""


def read_delimiter(delimiter: str) -> re.Pattern[str] | None:
    r"""Pattern that ends at each place where text may be cut first; None without any.

    Every character counts by itself, save strings in backticks, which count whole; ``\n`` and ``\t`` may be written out.
    """
    marks: list[str] = re.findall(r"`([^`]+)`", delimiter)
    marks += re.sub(r"`[^`]+`", "", delimiter.replace("\\n", "\n").replace("\\t", "\t")).replace("`", "")
    if not marks:
        return None
    return re.compile("(?:" + "|".join(re.escape(mark) for mark in sorted(set(marks), key=len, reverse=True)) + ")+")


def at_delimiters(text: str, start: int, end: int, pattern: re.Pattern[str]) -> list[Span]:
    """Pieces of a span, each with the delimiter that ends it."""
    return trimmed(text, pairwise([start, *(match.end() for match in pattern.finditer(text, start, end)), end]))


def at_lines(text: str, start: int, end: int) -> list[Span]:
    """Lines of a span, their indentation kept."""
    pieces: list[Span] = []
    while start < end:
        stop = text.find("\n", start, end)
        stop = end if stop < 0 else stop
        if text[start:stop].strip():
            pieces.append((start, start + len(text[start:stop].rstrip())))
        start = stop + 1
    return pieces


def at_sentences(text: str, start: int, end: int) -> list[Span]:
    """Sentences of a span."""
    return [(start + first, start + last) for first, last in sentences(text[start:end])]


def at_tokens(ruler: Ruler, start: int, end: int, limit: int) -> Iterator[Span]:
    """Pieces of at most `limit` tokens, cut beside a blank or a mark where there is one near, else between two characters."""
    text = ruler.text
    [(first, last)] = ruler.spans([(start, end)])
    while last - first > limit or ruler.exact(start, end) > limit:
        stop = _stop(ruler, start, end, first, min(limit, last - first - 1), limit)
        yield from trimmed(text, [(start, stop)])
        start = stop
        while start < end and text[start].isspace():
            start += 1
        if start == end:
            return
        first = ruler.spans([(start, end)])[0][0]
    yield start, end


def _stop(ruler: Ruler, start: int, end: int, first: int, step: int, limit: int) -> int:
    """End of the longest piece from `start`: by itself it can count more than in its place, so it is measured."""
    for held in range(max(step, 1), 0, -1):
        stop = _soft(ruler, first, first + held)
        if stop <= start:
            stop = int(ruler.places[first + held])
        if start < stop <= end and ruler.exact(start, stop) <= limit:
            return stop
    return start + 1


def _soft(ruler: Ruler, first: int, last: int) -> int:
    """The best place to cut among the last tokens before `last`."""
    text, places = ruler.text, ruler.places
    for at in range(last, max(first + (last - first) // 2, last - BACK), -1):
        place = int(places[at])
        if place >= len(text) or (not (text[place].isalnum() and text[place - 1].isalnum()) and ruler.edge(place) == place):
            return place
    return ruler.edge(int(places[last]))


def trimmed(text: str, spans: Iterable[Span]) -> list[Span]:
    """The spans without blanks at their ends; empty ones fall out."""
    kept: list[Span] = []
    for start, end in spans:
        piece = text[start:end]
        body = piece.strip()
        if body:
            start += len(piece) - len(piece.lstrip())
            kept.append((start, start + len(body)))
    return kept
