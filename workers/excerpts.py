"""A slice of a document's text for somebody who reads on from a hit: bounded in length, and in time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pipeline.contracts import ParsedDocument, Section
from pipeline.errors import BadRequest, NotFound
from workers.views import ExcerptView


def excerpt(
    document: ParsedDocument, document_id: str, start_char: int, end_char: int | None, *, most: int | None = None, as_of: datetime | None = None
) -> ExcerptView:
    """Code points `start_char` to `end_char`, cut after `most` of them and before what was not known at `as_of`.

    The text needs its sections only where a time is given. Raises BadRequest for what is no span, NotFound where `as_of` hides its beginning.
    """
    check(start_char, end_char)
    length = len(document.text)
    start = min(start_char, length)
    end = length if end_char is None else min(end_char, length)
    end, cut = max(start, end), ""
    if as_of is not None:
        known = _known_until(document, document_id, start, as_of)
        if known < end:
            end, cut = known, "as_of"
    if most is not None and end - start > most:
        end, cut = start + most, "limit"
    return ExcerptView(document_id, start, end, document.text[start:end], length, cut)


def check(start_char: int, end_char: int | None) -> None:
    """Raises BadRequest for what is no span."""
    if start_char < 0 or (end_char is not None and end_char < start_char):
        raise BadRequest(f"{start_char}:{end_char} is no span", hint="Give 0 <= start_char <= end_char.", pointer="/start_char")


def _known_until(document: ParsedDocument, document_id: str, start: int, as_of: datetime) -> int:
    """Where the part ends that holds `start` and was known at `as_of`. Raises NotFound when `start` was not.

    As in a search, what has no time was not known. A section without one has that of the section before it, the first ones that of
    the first that has one; the text between two sections goes with the one above it.
    """
    times = _times(document.sections)
    if times is None:
        raise NotFound(
            f"document {document_id!r} has no content time, so nothing of it is shown under as_of",
            hint="Leave as_of out to read it.",
            code="undated",
        )
    starts = [0, *(section.start for section in document.sections[1:])]
    ends = [*starts[1:], len(document.text) + 1]
    known, inside = start, False
    for first, last, at in zip(starts, ends, times, strict=True):
        if last <= start:
            continue
        if at > as_of:
            break
        inside, known = inside or first <= start, last
    if not inside:
        raise NotFound(
            f"what document {document_id!r} says from character {start} on is later than as_of",
            hint="Give a later as_of, or leave it out.",
            code="later_than_as_of",
        )
    return known


def _times(sections: Sequence[Section]) -> list[datetime] | None:
    """A time for each section; None when none of them has one."""
    at = next((section.at for section in sections if section.at is not None), None)
    if at is None:
        return None
    found: list[datetime] = []
    for section in sections:
        at = section.at or at
        found.append(at)
    return found
