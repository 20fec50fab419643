"""From markers in an answer to verbatim spans of documents, and back: markers put in where a reader set none.

The answer's text is the reader's: markers may be added to it, nothing else changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline import text as language
from pipeline.contracts import Citation, Evidence, Grounding, Span
from pipeline.prompt import lead_length, source

MARKER = re.compile(
    r"\[\^?\s*(\d{1,3}(?:\s*[,，、;；]\s*\^?\d{1,3})*)\s*\](?![(:])|【\s*(\d{1,3}(?:\s*[,，、;；]\s*\d{1,3})*)\s*(?:†[^】\n]{0,80})?】"
)
FENCE = re.compile(r"^ {0,3}(?P<mark>`{3,}|~{3,})[^\n]*(?:\n(?:.*\n)*? {0,3}(?P=mark)[`~]*[ \t]*$|(?:\n.*)*\Z)", re.MULTILINE)
INLINE = re.compile(r"(?<!`)(?P<tick>`+)(?!`)(?:(?!\n\s*\n).)+?(?<!`)(?P=tick)(?!`)", re.DOTALL)
LIST_NUMBER = re.compile(r"^[ \t]*(?:\d{1,3}[.)、]|[-*+•])[ \t]*", re.MULTILINE)
NUMBER = re.compile(r"(?<![\d.])\d+(?:,\d{3})*(?:\.\d+)?")
NAME = re.compile(r"[A-Z][A-Za-z0-9]*(?:['’\-][A-Za-z0-9]+)*")
TITLED = re.compile(r"[《「『“]([^》」』”\n]{1,40})[》」』”]")

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
class _Marker:
    start: int
    end: int
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Piece:
    """A sentence or line of a passage."""

    start: int
    """In the document."""
    text: str
    terms: frozenset[str]


def cite(answer: str, evidence: Sequence[Evidence]) -> Cited:
    """Resolve the markers of an answer, or add some when none leads to a passage."""
    passages = {passage.marker: _pieces(passage) for passage in evidence}
    markers = _markers(answer)
    dropped = tuple(dict.fromkeys(number for marker in markers for number in marker.numbers if number not in passages))
    inserted = 0
    if not any(number in passages for marker in markers for number in marker.numbers):
        answer, inserted = _insert(answer, passages)
        markers = _markers(answer)
    sentences = _sentences(answer)
    by_number = {passage.marker: passage for passage in evidence}
    citations: dict[tuple[int, Span], Citation] = {}
    supported: set[Span] = set()
    behind = 0
    for marker in markers:
        run, behind = _trimmed(answer, behind, marker.start), marker.end
        for number in marker.numbers:
            if number not in passages:
                continue
            whole = _verbatim(answer[run[0] : run[1]], by_number[number])
            span = run if whole else _supported(answer, sentences, marker)
            if (number, span) in citations:
                continue
            citation, share = _citation(answer, span, by_number[number], whole or passages[number])
            citations[number, span] = citation
            if share >= SUPPORTS:
                supported.update(one for one in sentences if one[0] < span[1] and span[0] < one[1])
    counted = [span for span in sentences if _terms(_plain(answer, span))]
    score = sum(span in supported for span in counted) / len(counted) if counted else 0.0
    grounding = Grounding(score, unsupported(answer, evidence))
    return Cited(answer, tuple(citations.values()), grounding, dropped, inserted)


def strip_markers(answer: str) -> str:
    """The answer without its citation markers; code is left as it is."""
    return _without(answer, _markers(answer))


def code_spans(answer: str) -> list[Span]:
    """Fenced blocks (an open one reaches to the end) and inline code, in order."""
    fences = [match.span() for match in FENCE.finditer(answer)]
    inline = [match.span() for match in INLINE.finditer(answer) if not any(start < match.end() and match.start() < end for start, end in fences)]
    return sorted([*fences, *inline])


def unsupported(answer: str, evidence: Sequence[Evidence]) -> tuple[str, ...]:
    """Numbers, capitalised names and quoted titles of the answer that stand in no passage, in order.

    Numbers compare by value (1,200 = 1200 = 1200.0), names by their folded letters. A capitalised word that
    only begins a sentence is no name.
    """
    known = "\n".join(f"{source(passage.hit)}\n{' '.join(passage.hit.heading_path)}\n{passage.text}" for passage in evidence)
    numbers = {_value(match[0]) for match in NUMBER.finditer(language.fold(known))}
    folded = language.fold(known)
    words = frozenset(re.findall(r"[^\W_]+(?:['’\-][^\W_]+)*", folded))
    plain = _masked(answer, [*code_spans(answer), *((marker.start, marker.end) for marker in _markers(answer))])
    plain = LIST_NUMBER.sub(lambda match: " " * len(match[0]), plain)
    found: list[tuple[int, str]] = []
    wide = plain.translate({code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)})
    found += [(match.start(), match[0]) for match in NUMBER.finditer(wide) if _value(match[0]) not in numbers]
    openings = {start for start, _ in _sentences(plain)}
    for match in NAME.finditer(plain):
        opens = match.start() in openings and not plain[match.end() :].lstrip(" ")[:1].isupper()
        name = match[0].lower().removesuffix("'s").removesuffix("’s")
        if not opens and len(name) > 1 and name not in words and name not in folded:
            found.append((match.start(), match[0]))
    found += [(match.start(), match[1]) for match in TITLED.finditer(plain) if language.fold(match[1]) not in folded and not match[1].isascii()]
    return tuple(dict.fromkeys(name for _, name in sorted(found)))


def _markers(answer: str) -> list[_Marker]:
    code = code_spans(answer)
    found = (match for match in MARKER.finditer(answer) if not any(start < match.end() and match.start() < end for start, end in code))
    return [_Marker(match.start(), match.end(), tuple(map(int, re.findall(r"\d+", match[1] or match[2])))) for match in found]


def _without(answer: str, markers: Sequence[_Marker]) -> str:
    kept, at = list[str](), 0
    for marker in markers:
        kept.append(answer[at : marker.start])
        at = marker.end
    return "".join(kept) + answer[at:]


def _masked(answer: str, spans: Sequence[Span]) -> str:
    """The same length, with the spans blanked; lines stay lines."""
    for start, end in spans:
        answer = answer[:start] + re.sub(r"[^\n]", " ", answer[start:end]) + answer[end:]
    return answer


def _sentences(answer: str) -> list[Span]:
    """Sentences of the answer outside fenced code, blanks and markers at their edges left out, never over a line's end."""
    blocks = [match.span() for match in FENCE.finditer(answer)]
    masked = _masked(answer, [*blocks, *((marker.start, marker.end) for marker in _markers(answer))])
    return list(_lines(masked))


def _lines(text: str) -> Iterator[Span]:
    """Sentences, cut at line ends too, without the blanks around them."""
    for first, last in language.sentences(text):
        start = first
        for line in text[first:last].splitlines(keepends=True):
            end = start + len(line)
            if bare := line.strip():
                begins = start + line.index(bare[0])
                yield begins, begins + len(bare)
            start = end


def _supported(answer: str, sentences: Sequence[Span], marker: _Marker) -> Span:
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
    at = body.find(quoted) if "\n" in quoted else -1
    return [_Piece(passage.start + at, quoted, _terms(quoted))] if at >= 0 else []


def _pieces(passage: Evidence) -> list[_Piece]:
    """Sentences of what the reader saw of the chunk itself, and the lines of those that stand on several."""
    body = passage.text[lead_length(passage) :]
    whole = [_trimmed(body, start, end) for start, end in language.sentences(body)]
    spans = sorted({*(span for span in whole if span[0] < span[1]), *_lines(body)})
    return [_Piece(passage.start + start, body[start:end], _terms(body[start:end])) for start, end in spans]


def _terms(text: str) -> frozenset[str]:
    words, grams = language.query_terms(text)
    return frozenset(words + grams)


def _plain(answer: str, span: Span) -> str:
    return strip_markers(answer[span[0] : span[1]])


def _citation(answer: str, span: Span, passage: Evidence, pieces: Sequence[_Piece]) -> tuple[Citation, float]:
    """The best line of a passage for a sentence, and the share of the sentence's terms that the passage holds.

    A sentence in another script than the passage cannot be compared by terms: its marker is believed.
    """
    sentence = _plain(answer, span)
    wanted = _terms(sentence)
    best = max(pieces, key=lambda piece: (_match(wanted, piece.terms), -piece.start), default=None)
    start, quote = (best.start, best.text) if best else (passage.start, passage.text[lead_length(passage) :])
    held = _terms(passage.text[: lead_length(passage)]).union(*(piece.terms for piece in pieces))
    share = _share(wanted, held)
    if language.language(sentence) != language.language(passage.text) and share < SUPPORTS:
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
    )
    return citation, share


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


def _insert(answer: str, passages: dict[int, list[_Piece]]) -> tuple[str, int]:
    """Put markers behind the sentences that a passage supports."""
    held = {number: [piece.terms for piece in pieces] for number, pieces in passages.items()}
    code = code_spans(answer)
    added: list[tuple[int, str]] = []
    for start, end in _sentences(answer):
        wanted = _terms(_plain(answer, (start, end)))
        inside = any(first < end <= last and end != last for first, last in code)
        if len(wanted) < 2 or inside or answer[end : end + 1] in {"(", ":", "`", "~"} or answer[end - 1] in "`~:：":
            continue
        shares = sorted(((max((_share(wanted, terms) for terms in pieces), default=0.0), -number) for number, pieces in held.items()), reverse=True)
        best = shares[0][0] if shares else 0.0
        chosen = sorted(-number for share, number in shares[:MOST_INSERTED] if share >= INSERTS and share >= NEARLY * best)
        if chosen:
            added.append((end, "".join(f"[{number}]" for number in chosen)))
    for at, marker in reversed(added):
        answer = answer[:at] + marker + answer[at:]
    return answer, sum(marker.count("[") for _, marker in added)


def _value(number: str) -> str:
    """Digits without separators, leading zeros and empty decimals."""
    plain = number.replace(",", "")
    if "." in plain:
        plain = plain.rstrip("0").rstrip(".")
    return plain.lstrip("0") or "0"
