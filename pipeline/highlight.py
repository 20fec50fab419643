"""Where in a passage a question's terms stand densest, and a short excerpt of that place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from pipeline.text import fold

OPEN, CLOSE = "«", "»"
"""Around each matched term: plain characters, so that an excerpt is safe to show anywhere."""
EXCERPT = 120
"""Most characters of an excerpt, marks left out."""
NEAR = 60
"""Characters within which terms count as said together: about one sentence of Chinese, ten words of English."""
_ENDING = 4
"""Letters that a word may have after its stem."""
_WORD = re.compile(r"[a-z0-9]+")
_BREAK = re.compile(r"[\s。！？；.!?;]")


def highlight(text: str, words: Sequence[str], grams: Sequence[str]) -> str:
    """The densest part of `text`, at most `EXCERPT` characters, with matches marked «…»; the beginning where nothing matches.

    Args:
        words, grams: a question's terms as `text.query_terms` makes them. A single character is marked only where no longer term matches.
    """
    terms = [term for term in dict.fromkeys((*words, *grams)) if len(term) > 1 or term in words]
    found = occurrences(text, terms) or occurrences(text, grams)
    start, stop, _ = _densest(found, {term: float(len(term)) for *_, term in found}, EXCERPT)
    start, stop = _excerpt(text, start, stop)
    pieces: list[str] = []
    place = start
    for left, right in _joined((left, right) for left, right, _ in found if left >= start and right <= stop):
        pieces += [text[place:left], OPEN, text[left:right], CLOSE]
        place = right
    shown = "".join([*pieces, text[place:stop]])
    return ("…" if start else "") + " ".join(shown.split()) + ("…" if stop < len(text) else "")


def densest(text: str, weights: Mapping[str, float], *, near: int = NEAR) -> tuple[int, int, float]:
    """(start, end, weight) of the stretch of at most `near` characters whose distinct terms weigh most; (0, 0, 0.0) where none occurs."""
    return _densest(occurrences(text, weights), weights, near)


def occurrences(text: str, terms: Iterable[str]) -> list[tuple[int, int, str]]:
    """(start, end, term) wherever a folded term stands in `text`, in order. Latin terms are stems and match at the beginning of a word."""
    terms = list(terms)
    if not terms:
        return []
    folded = _aligned(text)
    found: list[tuple[int, int, str]] = []
    latin: list[str] = []
    for term in terms:
        if term.isascii():
            latin.append(term)
            continue
        at = folded.find(term)
        while at >= 0:
            found.append((at, at + len(term), term))
            at = folded.find(term, at + 1)
    if latin:
        found += _words(folded, latin)
    found.sort()
    return found


def _words(folded: str, terms: Sequence[str]) -> Iterable[tuple[int, int, str]]:
    by_start: dict[str, list[str]] = {}
    for term in terms:
        by_start.setdefault(term[:2], []).append(term)
    for match in _WORD.finditer(folded):
        word = match[0]
        fitting = [term for term in by_start.get(word[:2], ()) if word.startswith(term) and len(word) - len(term) <= _ENDING]
        if fitting:
            yield match.start(), match.end(), max(fitting, key=len)


def _aligned(text: str) -> str:
    """`text` folded where that keeps every character's place, else lower-cased where that does."""
    folded = fold(text)
    return folded if len(folded) == len(text) else _lower(text)


def _lower(text: str) -> str:
    lower = text.lower()
    return lower if len(lower) == len(text) else text


def _densest(found: Sequence[tuple[int, int, str]], weights: Mapping[str, float], near: int) -> tuple[int, int, float]:
    best = (0, 0, 0.0)
    inside: dict[str, int] = {}
    weight, first = 0.0, 0
    for start, end, term in found:
        if not inside.get(term):
            weight += weights[term]
        inside[term] = inside.get(term, 0) + 1
        # what is too far back goes, and what stands again further on
        while found[first][0] < start and (end - found[first][0] > near or inside[found[first][2]] > 1):
            gone = found[first][2]
            inside[gone] -= 1
            if not inside[gone]:
                weight -= weights[gone]
            first += 1
        if weight > best[2] + 1e-9:
            best = (found[first][0], end, weight)
    return best


def _excerpt(text: str, start: int, stop: int) -> tuple[int, int]:
    """Widen a stretch to `EXCERPT`, from the beginning of a sentence where one begins shortly before it."""
    room = max(0, EXCERPT - (stop - start))
    left = max(0, start - room // 2)
    breaks = [match.end() for match in _BREAK.finditer(text, left, start)]
    if left and breaks:
        left = breaks[0]
    return left, min(len(text), max(stop, left + EXCERPT))


def _joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
