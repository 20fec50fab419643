"""From markers in an answer to verbatim spans of documents, and back: markers put in where a reader set none.

The answer's text is the reader's: markers may be added to it, nothing else changes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline import grounding as grounds
from pipeline import injection
from pipeline import markers as marks
from pipeline import text as language
from pipeline.contracts import Citation, Evidence, Grounding, Span
from pipeline.grounding import unsupported
from pipeline.markers import Marker, code_spans
from pipeline.markers import strip as strip_markers
from pipeline.prompt import lead_length, shield

__all__ = ["Cited", "cite", "code_spans", "strip_markers", "unsupported", "verbatim"]

LEFT = re.compile(r"[ \t]+(?=[.。!！?？,，;；])")
"""What a marker that was taken away leaves before a sentence's end."""
RANKS = ("graph", "pagerank")
"""Names in `Hit.scores` of what a graph makes of a passage."""
SUPPORTS = 0.34
"""Least share of a sentence's terms that a passage must hold to count as its support."""
INSERTS = 0.5
"""The same for a marker that the reader did not set."""
NEARLY = 0.9
"""A second passage is cited with the best one when it holds this much of the best one's share."""
MOST_INSERTED = 2
"""Markers put behind one sentence."""


@dataclass(frozen=True, slots=True)
class Cited:
    """An answer with its citations."""

    text: str
    """The reader's text; with markers added where it had set none that lead anywhere."""
    citations: tuple[Citation, ...]
    grounding: Grounding
    dropped: tuple[int, ...]
    """Numbers of the reader's markers that lead to no passage."""
    inserted: int
    """Markers added."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A sentence or line of a passage."""

    start: int
    """In the document."""
    text: str
    terms: frozenset[str]
    orders: bool = False
    """Speaks to the model: see `injection`. It supports nothing."""


class _Passages(dict[int, list[_Piece]]):
    """Marker → the passage's pieces, made when they are first asked for: most passages are never cited."""

    def __init__(self, evidence: Sequence[Evidence]) -> None:
        super().__init__()
        self.sent = {passage.marker: passage for passage in evidence}

    def __missing__(self, marker: int) -> list[_Piece]:
        made = self[marker] = _pieces(self.sent[marker])
        return made

    def every(self) -> list[tuple[int, list[_Piece]]]:
        return [(marker, self[marker]) for marker in self.sent]


def cite(answer: str, evidence: Sequence[Evidence]) -> Cited:
    """Resolve the markers of an answer, or add some when none leads to a passage."""
    passages = _Passages(evidence)
    markers = marks.find(answer)
    dropped = tuple(dict.fromkeys(number for marker in markers for number in marker.numbers if number not in passages.sent))
    inserted = 0
    if not any(number in passages.sent for marker in markers for number in marker.numbers):
        answer, inserted = _insert(answer, passages, _ranks(evidence))
        markers = marks.find(answer)
    sentences = marks.sentences(answer, markers)
    citations, supported = _resolved(answer, markers, sentences, passages)
    strays = grounds.strays(answer, evidence)
    bare = [
        span for span in sentences if _terms(_plain(answer, span)) and (span not in supported or (supported[span] and grounds.within(span, strays)))
    ]
    counted = sum(bool(_terms(_plain(answer, span))) for span in sentences)
    score = 1.0 - len(bare) / counted if counted else 0.0
    beyond = tuple(dict.fromkeys(said for _, said in strays))
    told = tuple(LEFT.sub("", _plain(answer, span)).strip() for span in bare)
    return Cited(answer, citations, Grounding(score, beyond, told), dropped, inserted)


def verbatim(citation: Citation, passage: Evidence) -> bool:
    """True when the quote stands at its offsets in what the reader was sent of the passage.

    A ``<`` that was made full width on the way counts as itself: one character stands for one.
    """
    body, at = passage.text[lead_length(passage) :], citation.start_char - passage.start
    return at >= 0 and citation.end_char <= passage.end and body[at : at + len(citation.quote)] == citation.quote


def _resolved(
    answer: str, markers: Sequence[Marker], sentences: Sequence[Span], passages: _Passages
) -> tuple[tuple[Citation, ...], dict[Span, bool]]:
    """Citations in order; and the supported sentences, each with whether its words could be compared with the passage's."""
    citations: dict[tuple[int, Span], Citation] = {}
    supported: dict[Span, bool] = {}
    behind = 0
    for marker in markers:
        run, behind = _trimmed(answer, behind, marker.start), marker.end
        for number in filter(passages.sent.__contains__, marker.numbers):
            whole = _verbatim(answer[run[0] : run[1]], passages.sent[number])
            span = run if whole else _supported(answer, sentences, marker)
            if (number, span) in citations:
                continue
            citation, share, comparable = _citation(answer, span, passages.sent[number], whole or passages[number])
            if not verbatim(citation, passages.sent[number]):
                continue
            citations[number, span] = citation
            if share >= SUPPORTS:
                held = [one for one in sentences if one[0] < span[1] and span[0] < one[1]]
                supported |= {one: comparable and supported.get(one, True) for one in held}
    return tuple(citations.values()), supported


def _supported(answer: str, sentences: Sequence[Span], marker: Marker) -> Span:
    """The sentence a marker stands in or behind; the next one when it opens a line."""
    before = [span for span in sentences if span[0] < marker.start]
    if before and "\n" not in answer[before[-1][1] : marker.start]:
        return before[-1]
    after = next((span for span in sentences if span[0] >= marker.end), None)
    if after is not None and "\n" not in answer[marker.end : after[0]]:
        return after
    return before[-1] if before else (marker.start, marker.start)


def _trimmed(text: str, start: int, end: int) -> Span:
    """The span without the blanks around it."""
    part = text[start:end]
    return start + len(part) - len(part.lstrip()), max(start, end - len(part) + len(part.rstrip()))


def _verbatim(quoted: str, passage: Evidence) -> list[_Piece]:
    """The one piece that all the text before a marker is, where a reader only quoted, over a line's end."""
    body = passage.text[lead_length(passage) :]
    at = shield(body).find(shield(quoted)) if "\n" in quoted else -1
    if at < 0:
        return []
    own = body[at : at + len(quoted)]
    return [_Piece(passage.start + at, own, _terms(own), bool(injection.commands(own)))]


def _pieces(passage: Evidence) -> list[_Piece]:
    """Sentences of what the reader saw of the chunk itself, and the lines of those that stand on several."""
    body = passage.text[lead_length(passage) :]
    whole = [_trimmed(body, start, end) for start, end in language.sentences(body)]
    spans = sorted({*(span for span in whole if span[0] < span[1]), *marks.lines(body)})
    orders = injection.commands(body)
    return [
        _Piece(passage.start + start, body[start:end], _terms(body[start:end]), any(first < end and start < last for first, last in orders))
        for start, end in spans
    ]


def _terms(text: str) -> frozenset[str]:
    words, grams = language.query_terms(text)
    return frozenset(words + grams)


def _plain(answer: str, span: Span) -> str:
    return strip_markers(answer[span[0] : span[1]])


def _citation(answer: str, span: Span, passage: Evidence, pieces: Sequence[_Piece]) -> tuple[Citation, float, bool]:
    """The best line of a passage for a sentence, the share of the sentence's terms that the passage holds, and whether that says anything.

    A sentence in another script than the passage cannot be compared by terms: its marker is believed.
    """
    sentence = _plain(answer, span)
    wanted = _terms(sentence)
    best = max(pieces, key=lambda piece: (_match(wanted, piece.terms), -piece.start), default=None)
    start, quote = (best.start, best.text) if best else (passage.start, passage.text[lead_length(passage) :])
    held = _terms(passage.text[: lead_length(passage)]).union(*(piece.terms for piece in pieces if not piece.orders))
    share = _share(wanted, held)
    comparable = share >= SUPPORTS or (best is not None and best.orders) or language.language(sentence) == language.language(passage.text)
    if not comparable:
        share = SUPPORTS
    hit = passage.hit
    line_start, line_end = _line_range(passage, start, start + len(quote))
    citation = Citation(
        marker=passage.marker,
        chunk_id=hit.chunk_id,
        document_id=hit.document_id,
        title=hit.title,
        url=hit.url,
        page=hit.page,
        line_start=line_start,
        line_end=line_end,
        start_char=start,
        end_char=start + len(quote),
        quote=quote,
        answer_start=span[0],
        answer_end=span[1],
        collection=hit.collection,
        supported=share >= SUPPORTS,
    )
    return citation, share, comparable


def _line_range(passage: Evidence, start: int, end: int) -> tuple[int | None, int | None]:
    """Source lines of a span; the whole chunk's where its text does not keep the source's lines."""
    hit = passage.hit
    if hit.line_start is None or hit.line_end is None or hit.line_end - hit.line_start != hit.text.count("\n"):
        return hit.line_start, hit.line_end
    first = hit.line_start + hit.text.count("\n", 0, start - hit.start)
    return first, first + hit.text.count("\n", start - hit.start, end - hit.start)


def _share(wanted: frozenset[str], held: frozenset[str]) -> float:
    return len(wanted & held) / len(wanted) if wanted else 0.0


def _match(wanted: frozenset[str], held: frozenset[str]) -> float:
    """Shared terms against both sides' mean size: a long line does not win by its length alone."""
    return 2 * len(wanted & held) / (len(wanted) + len(held)) if wanted and held else 0.0


def _ranks(evidence: Sequence[Evidence]) -> dict[int, float]:
    """Marker → graph rank in (0, 1], the best one's being 1. A passage that no graph ranked counts as the mean of those it did."""
    known = {passage.marker: _rank(passage.hit.scores) for passage in evidence}
    given = [rank for rank in known.values() if rank > 0.0]
    if not given:
        return {}
    top, mean = max(given), sum(given) / len(given)
    return {marker: (rank if rank > 0.0 else mean) / top for marker, rank in known.items()}


def _rank(scores: Mapping[str, float]) -> float:
    return next((scores[name] for name in RANKS if scores.get(name, 0.0) > 0.0), 0.0)


def _insert(answer: str, passages: _Passages, ranks: Mapping[int, float]) -> tuple[str, int]:
    """Put markers behind the sentences that a passage supports; of several that do, the best by similarity × graph rank."""
    held = {number: [piece.terms for piece in pieces if not piece.orders] for number, pieces in passages.every()}
    code = code_spans(answer)
    added: list[tuple[int, str]] = []
    for start, end in marks.sentences(answer, marks.find(answer)):
        wanted = _terms(_plain(answer, (start, end)))
        at = _place(answer, start, end)
        inside = any(first < at < last for first, last in code)
        if len(wanted) < 2 or inside or answer[at : at + 1] in {"(", ":", "`", "~", "$"} or answer[at - 1] in "`~:：$\\":
            continue
        alike = {number: max((_share(wanted, terms) for terms in pieces), default=0.0) for number, pieces in held.items()}
        shares = sorted(((share * ranks.get(number, 1.0), -number) for number, share in alike.items() if share >= INSERTS), reverse=True)[
            :MOST_INSERTED
        ]
        chosen = sorted(-number for share, number in shares if share >= NEARLY * shares[0][0])
        if chosen:
            added.append((at, "".join(f"[{number}]" for number in chosen)))
    for at, marker in reversed(added):
        answer = answer[:at] + marker + answer[at:]
    return answer, sum(marker.count("[") for _, marker in added)


def _place(answer: str, start: int, end: int) -> int:
    """Where a sentence's marker goes: behind it, but inside the last cell of a table's row."""
    row = answer[start:end]
    return end - 1 if row.startswith("|") and row.endswith("|") and len(row) > 1 else end
