"""Where in its source a chunk stands: pages, lines, headings, dates of the sections it touches."""

from __future__ import annotations

from pipeline.contracts import Chunk, ParsedDocument, Section


class Lines:
    """Source lines of offsets that mostly rise, counted on from the last answer, so that a long section stays linear."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._section: Section | None = None
        self._plain = False
        self._at = 0
        self._line = 0

    def of(self, section: Section, place: int, fallback: int | None) -> int | None:
        """Line of the character at `place`; `fallback` where the section's lines are not those of its text."""
        if section.line_start is None or section.line_end is None:
            return fallback
        if section is not self._section:
            self._section = section
            self._plain = section.line_end - section.line_start == self._text.count("\n", section.start, section.end)
            self._at, self._line = section.start, section.line_start
        if not self._plain:
            return fallback
        place = max(place, section.start)
        if place >= self._at:
            self._line += self._text.count("\n", self._at, place)
        else:
            self._line -= self._text.count("\n", place, self._at)
        self._at = place
        return self._line


class Places:
    """Fills chunks of one document, given in order of their starts."""

    def __init__(self, document: ParsedDocument) -> None:
        self._sections = document.sections
        self._first = 0
        self._above = Lines(document.text)
        self._below = Lines(document.text)

    def fill(self, piece: Chunk, ordinal: int, chunk_id: str, words: str, grams: str) -> Chunk:
        """The chunk with its id, terms and places; what the chunker has set itself stays."""
        sections = self._sections
        first = self._first
        while first < len(sections) and sections[first].end <= piece.start:
            first += 1
        self._first = first
        path = piece.heading_path
        page, page_end, line_start, line_end, since = piece.page, piece.page_end, piece.line_start, piece.line_end, piece.valid_from
        last = first
        while last < len(sections) and sections[last].start < piece.end:
            last += 1
        if last > first:
            head, tail = sections[first], sections[last - 1]
            path = path or head.heading_path
            if page is None:
                page, page_end = _pages(sections[first:last])
            if line_start is None:
                line_start = self._above.of(head, piece.start, head.line_start)
                line_end = self._below.of(tail, min(piece.end, tail.end) - 1, tail.line_end)
            if since is None:
                since = max((s.at for s in sections[first:last] if s.at is not None), default=None)
        elif first and not path:
            path = sections[first - 1].heading_path
        return Chunk(
            chunk_id=chunk_id,
            ordinal=ordinal,
            start=piece.start,
            end=piece.end,
            text=piece.text,
            tokens=piece.tokens,
            token_start=piece.token_start,
            token_end=piece.token_end,
            lead=piece.lead,
            search_text=piece.search_text,
            words=words,
            grams=grams,
            kind=piece.kind,
            heading_path=path,
            page=page,
            page_end=page_end,
            line_start=line_start,
            line_end=line_end,
            parent=piece.parent,
            valid_from=since,
            valid_to=piece.valid_to,
        )


def _pages(sections: tuple[Section, ...]) -> tuple[int | None, int | None]:
    pages = [section.page for section in sections if section.page is not None]
    return (min(pages), max(pages)) if pages else (None, None)
