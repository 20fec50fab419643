"""Where sentences end, in English and Chinese, without a model."""

from __future__ import annotations

import re

from pipeline.contracts import Span

_CLOSERS = "\"'”’」』）)】》\\]"
_END = re.compile(
    r"[。！？…．!?.\n](?:"
    rf"(?<=[。！？…．!?])[。！？…．!?]*[{_CLOSERS}]*"
    rf"|(?<=\.)(?<!\.\.)\.*+[{_CLOSERS}]*(?=\s|$)"
    r"|(?<=\n)(?:\s*\n|(?=[ \t]*(?:[-*+•·]|\d+[.)、]|\||#)[ \t]*\S))"
    r")"
)
"""Every place that may end a sentence: marks, blank lines, and the line before a list item, table row or heading."""

_WORD_BEFORE = re.compile(r"[A-Za-z.]+$")
_SHORT = frozenset(
    "dr mr mrs ms prof st sr jr vs etc e.g i.e cf al no nos fig figs eq sec ch vol pp p ed eds inc ltd co corp dept univ approx ca gen col lt sgt "
    "rev hon capt jan feb mar apr jun jul aug sep sept oct nov dec mon tue wed thu fri sat sun a.m p.m u.s u.k u.n ph.d m.d b.a m.a d.c".split()
)
_LONGEST_SHORT = 12


def sentences(text: str) -> list[Span]:
    """Spans of the sentences in order, without the blanks around them; together they hold all that is not blank.

    A point inside a number, after an abbreviation or an initial, or before a lower-case word ends none.
    """
    spans: list[Span] = []
    begin = 0
    for match in _END.finditer(text):
        start, end = match.span()
        if text[start] not in ".!?" or _ends(text, match):
            _add(spans, text, begin, end)
            begin = end
    _add(spans, text, begin, len(text))
    return spans


def _add(spans: list[Span], text: str, start: int, end: int) -> None:
    piece = text[start:end]
    body = piece.strip()
    if body:
        start += len(piece) - len(piece.lstrip())
        spans.append((start, start + len(body)))


def _ends(text: str, match: re.Match[str]) -> bool:
    mark = match[0]
    follows = text[match.end() : match.end() + 4]
    if mark[0] in "!?":
        # "?a=b" and "!important" go on; a full-width neighbour ends it
        if follows and not follows[0].isspace():
            return ord(follows[0]) > 0x2E7F
        return not follows.lstrip()[:1].islower()
    if follows.lstrip()[:1].islower():
        return False
    if len(mark.rstrip("\"'”’」』）)】》]")) > 1:
        return True
    before = _WORD_BEFORE.search(text, max(0, match.start() - _LONGEST_SHORT), match.start())
    if before is None:
        # the number of a list item: "1. Install"
        return not _is_list_number(text, match.start())
    word = before[0].strip(".")
    return not (word.lower() in _SHORT or (len(word) == 1 and word.isupper() and word != "I"))


def _is_list_number(text: str, point: int) -> bool:
    line = text[max(0, point - 8) : point].rpartition("\n")
    if not line[1] and point > 8:
        return False
    return line[2].strip().isdigit()
