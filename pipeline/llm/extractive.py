"""A reader without a model: it quotes the sentences of the evidence that share most with the question.

It understands the frames of `prompt` (``<passage number="1" …>``, ``<question>``), answers with one to three verbatim
sentences, each with its marker, and always answers the same way. What it cannot find it does not say.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline import text as language
from pipeline.contracts import Completion, Span, Usage
from pipeline.errors import Unsupported
from pipeline.protocols import Generation
from pipeline.settings import Settings

NAME = "extractive"
REVISION = "1"
"""Raise it when the same evidence would get another answer."""
NO_ANSWER = "no_answer"
"""`Completion.finish_reason` when no sentence answers; the text is empty."""

LEAST = 0.27
"""Share of the question's weight that the best sentence must hold, what stands around it included. Measured with six passages:
with the right one taken away, 78 % of cmrc2018's and 70 % of DRCD's questions are refused; with it there, 1 and 4 %."""
_MOST = 3
_LONGEST = 600
"""Characters of one quoted sentence; a longer unit is cut at its end."""
_CONTEXT = 0.35
"""A term beside the sentence counts this share of one inside it; one in the header of a row counts `_COLUMN`."""
_COLUMN = 0.7
_OTHER_YEAR = 0.3
"""What is left of a score when the question names a year and the sentence another one."""
_SECOND = 0.5
"""A further sentence must score this share of the best one's …"""
_NEWS = 0.12
"""… and add this share of the question's weight."""

_PASSAGE = re.compile(r'<passage number="(\d+)"(?: source="([^"]*)")?[^>\n]*>\n(.*?)\n</passage>', re.DOTALL)
_QUESTION = re.compile(r"<question>\n(.*)\n</question>", re.DOTALL)
_HEADING = re.compile(r"^\s{0,3}(#{1,6}\s+)(?=\S)")
_ITEM = re.compile(r"^\s*(?:[-*+•·]|\d{1,3}[.)、]|[（(]\d{1,3}[)）])\s+(?=\S)")
_PAIR = re.compile(r"^[^|。.!?！？:：\n]{1,40}[:：]\s*\S")
_TITLE = re.compile(r"^\s*[^\sa-z][^\n]*[^\s.。!！?？,，;；:：、…\"”」』)）]\s*$")
"""A line on its own that ends without a mark; wrapped prose is longer, and its last line has one."""
_RULE = re.compile(r"^[\s|:+=\-_*#`~]*$")
_ASKS = re.compile(r"[?？]\s*$")

_AMOUNT = re.compile(
    r"how (?:many|much|long|often|far|large|big|high|deep|old)|what (?:percentage|share|number|price|cost|amount)"
    r"|多少|几|多[长久大高深远]|比例|费用|价格|金额",
    re.I,
)
_MOMENT = re.compile(r"\bwhen\b|what (?:year|date|day|time|month)|何时|什么时[候间]|哪[一]?[年天日月]|日期|几[月号点]", re.I)
_YEAR = re.compile(r"(?<!\d)(?:1[5-9]|20)\d\d(?!\d)")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = r"(Jan|Feb|Mar|Apr|May|June?|July?|Aug|Sept?|Oct|Nov|Dec)[a-z]*\.?"
_YMD = re.compile(r"(?<!\d)(\d{4})\s*[-/.年]\s*(\d{1,2})\s*[-/.月]\s*(\d{1,2})(?!\d)")
_DMY = re.compile(rf"(?<!\d)(\d{{1,2}})(?:st|nd|rd|th)?\s+{_MONTH},?\s+(\d{{4}})(?!\d)", re.I)
_MDY = re.compile(rf"\b{_MONTH}\s+(\d{{1,2}})(?:st|nd|rd|th)?,?\s+(\d{{4}})(?!\d)", re.I)
_PERSON = re.compile(r"\bwho(?:m|se)?\b", re.I)
_FIGURE = re.compile(r"\d|[一二三四五六七八九十百千万亿两]")
_DATED = re.compile(
    r"\d{4}|\d[:：]\d\d|[\d一二三四五六七八九十]\s*[年月日号]|\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|mon|tues|wednes|thurs|fri|satur|sun)[a-z]*\b",
    re.I,
)
_NAMED = re.compile(r"\b[A-Z][a-z]+\s+(?:[A-Z]\.\s*)?[A-Z][a-z]+")


@dataclass(frozen=True, slots=True)
class _Unit:
    """A sentence, list item, table row or key-value line of a passage."""

    marker: int
    rank: int
    text: str
    kind: str
    """prose, row, pair, heading."""
    terms: frozenset[str]
    context: frozenset[str]
    """Terms of what stands around it: source, heading, the sentence before."""
    header: str = ""
    """A row's header line."""
    columns: frozenset[str] = frozenset()
    """Terms of `header`."""


@dataclass(frozen=True, slots=True)
class _Scored:
    score: float
    share: float
    """Of the question's weight, context included at its discount."""
    own: frozenset[str]
    unit: _Unit


def build(settings: Settings) -> ExtractiveLLM:
    """Nothing to load."""
    return ExtractiveLLM()


class ExtractiveLLM:
    """Without state, so threads share it freely."""

    name = NAME
    revision = REVISION

    def complete(self, messages: Sequence[tuple[str, str]], options: Generation) -> Completion:
        """Answer from the passages of the last message that holds a question; ``finish_reason`` is stop or no_answer.

        Raises Unsupported where JSON is asked for: nothing is written here, only quoted.
        """
        if options.schema is not None:
            raise Unsupported("the extractive reader only quotes: this needs a model", hint="Name one with DUJIANG_LLM.", code="no_model")
        text = "\n".join(_answer(messages))
        return Completion(text, NAME, Usage(), "stop" if text else NO_ANSWER)

    def stream(self, messages: Sequence[tuple[str, str]], options: Generation) -> Iterator[str | Completion]:
        """A piece per sentence."""
        pieces = _answer(messages)
        for place, piece in enumerate(pieces):
            yield piece if place == len(pieces) - 1 else f"{piece}\n"
        yield Completion("\n".join(pieces), NAME, Usage(), "stop" if pieces else NO_ANSWER)


def _answer(messages: Sequence[tuple[str, str]]) -> list[str]:
    """One quoted sentence with its marker each; empty when nothing answers."""
    sent = next((text for role, text in reversed(messages) if role == "user" and _QUESTION.search(text)), "")
    asked = _QUESTION.search(sent)
    if asked is None:
        return []
    question = asked[1].strip()
    units = [
        unit for rank, found in enumerate(_PASSAGE.finditer(sent[: asked.start()])) for unit in _units(int(found[1]), rank, found[2] or "", found[3])
    ]
    weights = _weights(question, units)
    if not units or not weights:
        return []
    ranked = sorted((_score(unit, weights, question) for unit in units), key=lambda one: (-one.score, one.unit.rank))
    if ranked[0].share < LEAST or not ranked[0].own:
        return []
    # two rows of one table share their header
    return list(dict.fromkeys(piece for one in _chosen(ranked, weights) for piece in _quoted(one.unit)))


def _weights(question: str, units: Sequence[_Unit]) -> Mapping[str, float]:
    """Weight of each term of the question: rare among the sentences counts more, characters less than words."""
    words, grams = language.query_terms(question)
    shares = {term: 0.2 if len(term) == 1 else 0.6 for term in grams} | dict.fromkeys(words, 1.0)
    total = len(units)
    seen = Counter(term for unit in units for term in unit.terms)
    # a number or date that is asked for is no detail
    shares |= dict.fromkeys(filter(_exact, shares), 2.0) | dict.fromkeys(_dates(question), 2.0)
    return {term: share * math.log(1.0 + (total - seen[term] + 0.5) / (seen[term] + 0.5)) for term, share in shares.items()}


def _exact(term: str) -> bool:
    return term.isdigit()


def _dates(text: str) -> set[str]:
    """Whole dates as ``@2026-07-14``, so that different spellings meet."""
    found = [(year, month, day) for year, month, day in _YMD.findall(text)]
    found += [(year, str(_MONTHS.index(month[:3].lower()) + 1), day) for day, month, year in _DMY.findall(text)]
    found += [(year, str(_MONTHS.index(month[:3].lower()) + 1), day) for month, day, year in _MDY.findall(text)]
    return {f"@{year}-{int(month):02d}-{int(day):02d}" for year, month, day in found}


def _score(unit: _Unit, weights: Mapping[str, float], question: str) -> _Scored:
    own = frozenset(term for term in unit.terms if term in weights)
    columns = frozenset(term for term in unit.columns if term in weights) - own
    around = frozenset(term for term in unit.context if term in weights) - own - columns
    share = (_sum(weights, own) + _COLUMN * _sum(weights, columns) + _CONTEXT * _sum(weights, around)) / math.fsum(weights.values())
    score = share / (0.85 + 0.15 * max(1.0, len(unit.terms) / 60))
    if not own:
        score = 0.0
    if unit.kind == "heading" or _ASKS.search(unit.text):
        score *= 0.4
    years = set(_YEAR.findall(unit.text))
    if years and not years & set(_YEAR.findall(question)) and _YEAR.search(question):
        score *= _OTHER_YEAR
    for asks, holds in ((_AMOUNT, _FIGURE), (_MOMENT, _DATED), (_PERSON, _NAMED)):
        if asks.search(question) and holds.search(unit.text):
            score *= 1.2
    if language.language(unit.text) == language.language(question):
        score *= 1.15
    # the order of the passages is retrieval's own judgement
    return _Scored(score * (1.0 + 0.15 / (1 + unit.rank)), share, own, unit)


def _sum(weights: Mapping[str, float], terms: Iterable[str]) -> float:
    """Exact, so that the order of a set, which differs between processes, cannot decide a tie."""
    return math.fsum(weights[term] for term in terms)


def _chosen(ranked: Sequence[_Scored], weights: Mapping[str, float]) -> list[_Scored]:
    """The best sentence, then those that are nearly as good and say of the question what is not said yet."""
    best = ranked[0]
    chosen, covered = [best], set(best.own)
    for one in ranked[1:]:
        if len(chosen) == _MOST or one.score < _SECOND * best.score:
            break
        news = _sum(weights, one.own - covered) / math.fsum(weights.values())
        if news >= _NEWS and one.unit.kind != "heading":
            chosen.append(one)
            covered |= one.own
    return chosen


def _quoted(unit: _Unit) -> list[str]:
    lines = [unit.header, unit.text] if unit.header else [unit.text]
    return [f"{line[:_LONGEST].rstrip()} [{unit.marker}]" for line in lines]


def _units(marker: int, rank: int, source: str, passage: str) -> Iterator[_Unit]:
    around = _terms(source)
    heading: frozenset[str] = frozenset()
    before: frozenset[str] = frozenset()
    header, columns = "", frozenset[str]()
    for start, end, kind in _spans(passage):
        text = passage[start:end]
        terms = _terms(text)
        if kind == "heading":
            heading = terms
        if kind != "row":
            header, columns = "", frozenset[str]()
        elif not header:
            header, columns, kind = text, terms, "heading"
        yield _Unit(marker, rank, text, kind, terms, around | heading | before, header if kind == "row" else "", columns)
        before = terms if kind == "prose" else frozenset()


def _terms(text: str) -> frozenset[str]:
    words, grams = language.terms(text)
    return frozenset(words.split()).union(grams.split(), _dates(text))


def _spans(passage: str) -> Iterator[tuple[int, int, str]]:
    """(start, end, kind) of the units, in order; lines of prose that follow each other are one text."""
    block: Span | None = None
    at = 0
    for line in passage.splitlines(keepends=True):
        start, at = at, at + len(line)
        kind, skip = _kind(line)
        if kind == "prose":
            block = (block[0] if block else start, at)
            continue
        if block:
            yield from _sentences(passage, block)
            block = None
        if kind == "item":
            yield from _sentences(passage, (start + skip, at))
        elif kind != "blank":
            yield from _trimmed(passage, start + skip, at, kind)
    if block:
        yield from _sentences(passage, block)


def _kind(line: str) -> tuple[str, int]:
    """Kind of a line, and how many characters of mark-up stand in front of its text."""
    if _RULE.match(line):
        return "blank", 0
    if found := _HEADING.match(line):
        return "heading", found.end()
    if " | " in line or line.lstrip().startswith("|"):
        return "row", 0
    if found := _ITEM.match(line):
        return "item", found.end()
    if _PAIR.match(line) and len(line) <= 200:
        return "pair", 0
    if _TITLE.match(line) and len(line) <= (20 if language.language(line) == "zh" else 40):
        return "heading", 0
    return "prose", 0


def _sentences(passage: str, block: Span) -> Iterator[tuple[int, int, str]]:
    start, end = block
    for first, last in language.sentences(passage[start:end]):
        yield from _trimmed(passage, start + first, start + last, "prose")


def _trimmed(passage: str, start: int, end: int, kind: str) -> Iterator[tuple[int, int, str]]:
    text = passage[start:end]
    start += len(text) - len(text.lstrip())
    end -= len(text) - len(text.rstrip())
    if start < end:
        yield start, end, kind
