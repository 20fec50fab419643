"""Chunks that follow the document's own structure, none above a hard number of tokens."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from pipeline import identity
from pipeline.chunk import cuts
from pipeline.chunk.blocks import Block, blocks
from pipeline.chunk.budget import Budget, read_budget
from pipeline.chunk.ruler import Ruler
from pipeline.contracts import Chunk, ParsedDocument, Section, Span

VERSION = 1
DEFAULT = Budget(256, 0)
"""As many tokens as the reference windows hold: a question is mostly answered by less, and a citation stays readable. No
overlap: edges fall where the author has ended something, and headings already repeat the context."""

SLACK = 8
"""Within so many tokens of the budget a slice is measured by itself before it is believed to fit."""


@dataclass(frozen=True, slots=True)
class Sections:
    """Merges sections up to `size` tokens; cuts longer ones at rows, lines, `delimiter`, sentences, then tokens.

    The budget holds for a chunk's text together with its lead; the heading path in front of `search_text` comes on top.
    """

    size: int
    overlap: int
    delimiter: re.Pattern[str] | None
    encoding: str
    fingerprint: str
    drops: str = "blanks between chunks"

    def __call__(self, document: ParsedDocument, document_id: str) -> tuple[Chunk, ...]:
        if not document.text.strip():
            return ()
        return _Packing(self, document).run()


def build(rest: str, options: Mapping[str, str], encoding: str) -> Sections:
    """`rest` is ``SIZE/OVERLAP`` in tokens. Raises BadRequest when it is something else."""
    budget = read_budget("sections", rest, options, DEFAULT)
    delimiter = options.get("delimiter", "")
    made = identity.fingerprint(
        {"chunker": "sections", "version": VERSION, "size": budget.size, "overlap": budget.overlap, "delimiter": delimiter, "encoding": encoding}
    )
    return Sections(budget.size, budget.overlap, cuts.read_delimiter(delimiter), encoding, made)


class _Atom(NamedTuple):
    """What is never cut any more while it is packed, unless it is a whole block beside a tiny chunk."""

    start: int
    end: int
    first: int
    last: int
    """Token span of the document."""
    block: Block
    part: bool = False

    @property
    def title(self) -> bool:
        return self.block.section.tag == "Title"

    @property
    def divisible(self) -> bool:
        return not self.part and self.block.table is None and self.block.section.tag not in {"Title", "Code", "Table"}


class _Packing:
    """One run over one document."""

    def __init__(self, chunker: Sections, document: ParsedDocument) -> None:
        self.size = chunker.size
        self.overlap = chunker.overlap
        self.delimiter = chunker.delimiter
        self.document = document
        self.text = document.text
        self.ruler = Ruler(document.text, chunker.encoding)
        self.major = _major(document.sections)
        self.chunks: list[Chunk] = []
        self.draft: list[_Atom] = []
        self.carried = 0
        """How many atoms at the front of the draft the chunk before holds too."""

    def run(self) -> tuple[Chunk, ...]:
        found = blocks(self.document)
        spans = self.ruler.spans([(block.start, block.end) for block in found])
        for block, (first, last) in zip(found, spans, strict=True):
            if self._within(block.start, block.end, last - first, self.size):
                self._pack(_Atom(block.start, block.end, first, last, block))
            elif block.table is not None:
                self._rows(block)
            else:
                for atom in self._parts(block):
                    self._pack(atom)
        self._flush()
        return tuple(self.chunks)

    def _within(self, start: int, end: int, estimate: int, limit: int) -> bool:
        """Whether a slice has at most `limit` tokens by itself; `estimate` counts those of the document."""
        return estimate + SLACK <= limit or (estimate - SLACK <= limit and self.ruler.exact(start, end) <= limit)

    def _room(self, atom: _Atom) -> bool:
        head = self.draft[0]
        return self._within(head.start, atom.end, atom.last - head.first, self.size)

    def _pack(self, atom: _Atom) -> None:
        if self._ends_before(atom):
            self._flush()
        if not self.draft or self._room(atom):
            self.draft.append(atom)
            return
        if atom.divisible and (self.draft[-1].last - self.draft[0].first) * 4 < self.size:
            # better to cut a paragraph than to leave a chunk nearly empty
            for part in self._parts(atom.block):
                self._pack(part)
            return
        titles = self._loose_titles()
        self._flush(keep=not titles)
        self.draft = titles or self.draft
        if self.draft and not self._room(atom):
            if titles and atom.divisible:
                for part in self._parts(atom.block):
                    self._pack(part)
                return
            self._flush()
            self.draft = []
            self.carried = 0
        self.draft.append(atom)

    def _ends_before(self, atom: _Atom) -> bool:
        """Whether a heading, or a new key path without one, starts a new chunk: not while the draft is tiny or holds headings alone."""
        if not self.draft:
            return False
        section, before = atom.block.section, self.draft[-1].block.section
        if not atom.title and (before.tag == "Title" or section.heading_path == before.heading_path):
            return False
        held = atom.first - self.draft[0].first
        share = 4 if atom.title and section.level <= self.major else 2
        return held * share >= self.size and not all(held.title for held in self.draft)

    def _loose_titles(self) -> list[_Atom]:
        """Headings at the end of the draft, taken off it: they belong to what follows."""
        loose: list[_Atom] = []
        while len(self.draft) > self.carried + 1 and self.draft[-1].title:
            loose.insert(0, self.draft.pop())
        return loose

    def _flush(self, *, keep: bool = False) -> None:
        """Make a chunk of the draft; with `keep`, its end stays as the overlap of the next."""
        draft, carried = self.draft, self.carried
        self.draft, self.carried = [], 0
        if len(draft) <= carried:
            return
        start, end = draft[0].start, draft[-1].end
        body = [atom for atom in draft if not atom.title]
        kind = "table" if body and all(atom.block.table is not None for atom in body) else "text"
        size = self.ruler.exact(start, end)
        if size <= self.size:
            self._emit((start, end), (draft[0].first, draft[-1].last), size, draft[carried].block, kind)
        else:
            for span in cuts.at_tokens(self.ruler, start, end, self.size):
                self._emit(span, self.ruler.spans([span])[0], self.ruler.exact(*span), draft[carried].block, kind)
        if keep and self.overlap:
            self.draft = self._tail(draft)
            self.carried = len(self.draft)

    def _tail(self, draft: list[_Atom]) -> list[_Atom]:
        """The last sentences of a draft that fit into the overlap, never all of it."""
        tail: list[_Atom] = []
        for atom in reversed(draft):
            if draft[-1].last - atom.first > self.overlap:
                if atom.divisible or atom.part:
                    spans = cuts.at_sentences(self.text, atom.start, atom.end)[1:]
                    parts = [
                        _Atom(*span, *tokens, atom.block, part=True)
                        for span, tokens in zip(spans, self.ruler.spans(spans), strict=True)
                        if draft[-1].last - tokens[0] <= self.overlap
                    ]
                    tail = parts + tail
                break
            tail.insert(0, atom)
        return [atom for atom in tail if atom.start > draft[0].start]

    def _emit(self, span: Span, tokens: Span, size: int, block: Block, kind: str, lead: tuple[Span, ...] = ()) -> None:
        text, path = self.text[span[0] : span[1]], block.section.heading_path
        search = ""
        if path or lead:
            search = "\n".join([*([" > ".join(path)] if path else []), *(self.text[first:last] for first, last in lead), text])
        self.chunks.append(
            Chunk(
                "",
                len(self.chunks),
                span[0],
                span[1],
                text,
                tokens=size,
                token_start=tokens[0],
                token_end=tokens[1],
                lead=lead,
                search_text=search,
                kind=kind,
                heading_path=path,
            )
        )

    def _parts(self, block: Block) -> Iterator[_Atom]:
        """A block in pieces of at most the budget, as large units as its kind allows."""
        start, end = block.start, block.end
        if block.section.tag in {"Code", "List", "Table"}:
            spans = cuts.at_lines(self.text, start, end)
        elif self.delimiter is not None:
            spans = cuts.at_delimiters(self.text, start, end, self.delimiter)
        else:
            spans = cuts.at_sentences(self.text, start, end)
        whole = len(spans) == 1
        yield from self._atoms(spans, block, cut=whole)

    def _atoms(self, spans: list[Span], block: Block, *, cut: bool) -> Iterator[_Atom]:
        for span, (first, last) in zip(spans, self.ruler.spans(spans), strict=True):
            if self._within(*span, last - first, self.size):
                yield _Atom(*span, first, last, block, part=True)
            elif not cut:
                yield from self._atoms(cuts.at_sentences(self.text, *span), block, cut=True)
            else:
                pieces = list(cuts.at_tokens(self.ruler, *span, self.size))
                for piece, tokens in zip(pieces, self.ruler.spans(pieces), strict=True):
                    yield _Atom(*piece, *tokens, block, part=True)

    def _rows(self, block: Block) -> None:
        """Groups of rows, each after the first led by the header row where that takes no more than a third of the budget."""
        self._flush()
        table = block.table
        header = table.header if table is not None else None
        cost = self.ruler.exact(*header) + 1 if header is not None and header[0] < header[1] else 0
        lead: tuple[Span, ...] = (header,) if header is not None and 0 < cost * 3 <= self.size else ()
        room = self.size - cost if lead else self.size
        rows = self._row_spans(block, room)
        spans = self.ruler.spans(rows)
        at = 0
        while at < len(rows):
            first = at
            # the group that holds the header row itself needs no lead
            leads = lead if header is not None and rows[first][0] >= header[1] else ()
            limit = room if leads else self.size
            while at + 1 < len(rows) and self._within(rows[first][0], rows[at + 1][1], spans[at + 1][1] - spans[first][0], limit):
                at += 1
            span, tokens = (rows[first][0], rows[at][1]), (spans[first][0], spans[at][1])
            self._emit(span, tokens, self.ruler.exact(*span), block, "table", leads)
            at += 1

    def _row_spans(self, block: Block, room: int) -> list[Span]:
        starts = {start for start, _ in (block.table.rows if block.table is not None else ()) if block.start < start < block.end}
        rows = cuts.trimmed(self.text, pairwise([block.start, *sorted(starts), block.end]))
        small: list[Span] = []
        for row, (first, last) in zip(rows, self.ruler.spans(rows), strict=True):
            if self._within(*row, last - first, room):
                small.append(row)
            else:
                small += cuts.at_tokens(self.ruler, *row, room)
        return small


def _major(sections: tuple[Section, ...]) -> int:
    """Level of the headings that divide the document: the highest that occurs more than once, else the highest."""
    levels = Counter(section.level for section in sections if section.tag == "Title" and section.level > 0)
    repeated = [level for level, times in levels.items() if times > 1]
    return min(repeated or levels, default=0)
