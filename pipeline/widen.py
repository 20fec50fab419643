"""Hits shown with what stands around them: the chunks before and after, or the section they belong to.

Ranking and refusal are over when this begins. What is shown stays one verbatim slice of its document, with its true span: it never
runs into what another hit shows, onto another page, or into what was not yet known at `as_of`. It takes only what the hits
themselves leave of the token budget, best hit first, so that no hit is pushed out by another's surroundings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from time import perf_counter

from pipeline import tokens
from pipeline.contracts import Hit, Section, Span, Step
from pipeline.errors import NotFound, Retryable
from pipeline.protocols import Store
from pipeline.tuning import MOST_NEIGHBOURS

OFF = ("", "off")


@dataclass(frozen=True, slots=True)
class Shown:
    """How one collection's hits are widened."""

    store: Store
    index: str
    """`CollectionSpec.name`."""
    widen: str
    """As `Tuning.widen`."""


@dataclass(frozen=True, slots=True)
class _Document:
    spans: Mapping[str, int]
    """Chunk id → place in `chunks`."""
    chunks: tuple[Span, ...]
    sections: tuple[Section, ...]


def widen(
    hits: Sequence[Hit], shown: Mapping[str, Shown], *, budget_tokens: int, encoding: str = "cl100k_base", as_of: datetime | None = None
) -> tuple[tuple[Hit, ...], Step | None]:
    """The hits in their order, with more text where there is room; and the trace's line, None where nothing is to be widened.

    Of two hits that overlap, the worse one loses the common part; one that is left with nothing is left out.
    """
    if not hits or all(how.widen in OFF for how in shown.values()):
        return tuple(hits), None
    started, lost = perf_counter(), 0
    apart = _apart(hits)
    left = budget_tokens - sum(tokens.count(hit.lead + hit.text, encoding) for hit in apart)
    spare = max(left, 0)
    taken = [(_place(hit), (hit.start, hit.end)) for hit in apart]
    known: dict[tuple[str, str], _Document] = {}
    found: list[Hit] = []
    for number, hit in enumerate(apart):
        how = shown.get(hit.collection)
        if how is None or how.widen in OFF or "graph" in hit.scores:
            found.append(hit)
            continue
        others = [span for at, (place, span) in enumerate(taken) if at != number and place == _place(hit)]
        try:
            document = known.get(_place(hit)) or known.setdefault(_place(hit), _document(how, hit.document_id))
            wider, cost = _wider(hit, how, document, _room(hit, document, others, as_of), spare, encoding)
        except (NotFound, Retryable):
            lost += 1
            wider, cost = hit, 0
        spare -= cost
        taken[number] = (_place(hit), (wider.start, wider.end))
        found.append(wider)
    widened = sum(one.text != hit.text for one, hit in zip(found, apart, strict=True))
    asked = {name: how.widen for name, how in shown.items() if how.widen not in OFF}
    detail: dict[str, object] = {"collections": asked, "widened": widened, "tokens": max(left, 0) - spare, "budget": budget_tokens}
    told = f"the surroundings of {lost} passages could not be read: they are shown alone" if lost else ""
    return tuple(found), Step("widen", perf_counter() - started, detail | {"transient": bool(lost)}, told)


def _place(hit: Hit) -> tuple[str, str]:
    return hit.collection, hit.document_id


def _document(how: Shown, document_id: str) -> _Document:
    spans = how.store.spans(how.index, document_id)
    places = {chunk_id: number for number, (chunk_id, _) in enumerate(spans)}
    return _Document(places, tuple(span for _, span in spans), how.store.sections(how.index, document_id))


def _apart(hits: Sequence[Hit]) -> list[Hit]:
    """Without what a better hit of the same document shows already."""
    kept: list[Hit] = []
    for hit in hits:
        start, end = hit.start, hit.end
        for other in kept:
            if _place(other) == _place(hit) and other.start < end and start < other.end and "graph" not in other.scores:
                before, after = (start, max(start, other.start)), (min(end, other.end), end)
                start, end = max(before, after, key=lambda span: span[1] - span[0])
        if start < end:
            kept.append(hit if (start, end) == (hit.start, hit.end) else replace(hit, text=_slice(hit, start, end), start=start, end=end))
        elif hit.start == hit.end:
            kept.append(hit)
    return kept


def _slice(hit: Hit, start: int, end: int) -> str:
    return hit.text[start - hit.start : end - hit.start]


def _room(hit: Hit, document: _Document, others: Sequence[Span], as_of: datetime | None) -> Span:
    """How far a hit may grow: up to the next hit, the end of its page, and what was not yet known."""
    start = max((end for _, end in others if end <= hit.start), default=0)
    end = min((begin for begin, _ in others if begin >= hit.end), default=max((last for _, last in document.chunks), default=hit.end))
    at = next((section.at for section in document.sections if section.at is not None), None)
    for number, section in enumerate(document.sections):
        at = section.at or at
        later = as_of is not None and at is not None and at > as_of
        if not later and (hit.page is None or section.page == hit.page):
            continue
        # what stands between two sections goes with the one above it
        following = document.sections[number + 1].start if number + 1 < len(document.sections) else section.end
        if section.start >= hit.end:
            end = min(end, section.start)
        elif following <= hit.start:
            start = max(start, following)
        else:
            start, end = _kept(hit, section, start, end)
    return min(start, hit.start), max(end, hit.end)


def _kept(hit: Hit, section: Section, start: int, end: int) -> Span:
    """A section that the hit only touches is not shown further than the hit itself does."""
    if section.start < hit.start:
        start = hit.start
    if section.end > hit.end:
        end = hit.end
    return start, end


def _wider(hit: Hit, how: Shown, document: _Document, room: Span, spare: int, encoding: str) -> tuple[Hit, int]:
    """The hit with the most that fits, and what that took of the spare tokens."""
    for start, end in _wishes(hit, how.widen, document):
        start, end = max(start, room[0]), min(end, room[1])
        start, end = min(start, hit.start), max(end, hit.end)
        if (start, end) == (hit.start, hit.end):
            continue
        text = how.store.text(how.index, hit.document_id, start, end)
        at = hit.start - start
        if text[at : at + len(hit.text)] != hit.text:
            return hit, 0  # another version answers by now
        text, start = _trimmed(text, start, hit)
        cost = max(0, tokens.count(hit.lead + text, encoding) - tokens.count(hit.lead + hit.text, encoding))
        if cost <= spare and text != hit.text:
            return _shown(hit, text, start, document.sections, cost), cost
    return hit, 0


def _trimmed(text: str, start: int, hit: Hit) -> tuple[str, int]:
    """Without blanks around it, but never without any of the hit."""
    before = text[: hit.start - start]
    start += len(before) - len(before.lstrip())
    behind = text[len(before) + len(hit.text) :]
    return before.lstrip() + hit.text + behind.rstrip(), start


def _wishes(hit: Hit, widen: str, document: _Document) -> list[Span]:
    """What might be shown, largest first."""
    place = document.spans.get(hit.chunk_id)
    nearest = [_neighbours(document.chunks, place, count) for count in range(MOST_NEIGHBOURS, 0, -1)] if place is not None else []
    if widen == "section":
        start, end = _section(hit, document.sections)
        return [(start, end), *((max(start, one), min(end, other)) for one, other in nearest)]
    return nearest[-int(widen) :]


def _neighbours(chunks: Sequence[Span], place: int, count: int) -> Span:
    return chunks[max(0, place - count)][0], chunks[min(len(chunks) - 1, place + count)][1]


def _section(hit: Hit, sections: Sequence[Section]) -> Span:
    """From the heading above the hit's beginning to the last text under the heading of its end; where there are no headings, the
    paragraphs or turns that the hit touches."""
    touched = [number for number, section in enumerate(sections) if section.start < hit.end and hit.start < section.end]
    if not touched:
        return hit.start, hit.end
    first, last = touched[0], touched[-1]
    if _path(sections[first]):
        while (
            first > 0
            and sections[first].tag != "Title"
            and (sections[first - 1].tag == "Title" or _path(sections[first - 1]) == _path(sections[first]))
        ):
            first -= 1
    if _path(sections[last]):
        while (
            last + 1 < len(sections)
            and sections[last + 1].tag != "Title"
            and (sections[last].tag == "Title" or _path(sections[last + 1]) == _path(sections[last]))
        ):
            last += 1
    return sections[first].start, sections[last].end


def _path(section: Section) -> tuple[str, ...]:
    """The headings above a text; of a heading those above it and a sign for itself."""
    return (*section.heading_path, "") if section.tag == "Title" else section.heading_path


def _shown(hit: Hit, text: str, start: int, sections: Sequence[Section], cost: int) -> Hit:
    end = start + len(text)
    first, last = hit.line_start, hit.line_end
    if first is not None:
        touched = [section for section in sections if section.start < end and start < section.end]
        first = min([first, *(section.line_start for section in touched if section.line_start is not None)])
        last = max([last or first, *(section.line_end for section in touched if section.line_end is not None)])
    return replace(hit, text=text, start=start, end=end, tokens=hit.tokens + cost, line_start=first, line_end=last)
