"""Fixed windows of tokens with an overlap: the plain reference that every other chunker is measured against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pipeline import identity
from pipeline.chunk.budget import Budget, read_budget
from pipeline.chunk.ruler import Ruler
from pipeline.contracts import Chunk, ParsedDocument
from pipeline.errors import BadRequest

VERSION = 1
DEFAULT = Budget(256, 32)
"""The window and overlap of RAW-RAG, so that figures can be compared."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of `size` tokens of the document, each sharing `overlap` tokens with the one before.

    Edges lie between characters: a token that ends inside one moves an edge back to where the character begins, so a window
    may hold a few tokens more or less. `Chunk.tokens` is what its text counts by itself.
    """

    size: int
    overlap: int
    encoding: str
    fingerprint: str
    drops: str = ""

    def __call__(self, document: ParsedDocument, document_id: str) -> tuple[Chunk, ...]:
        text = document.text
        if not text:
            return ()
        ruler = Ruler(text, self.encoding)
        step = self.size - self.overlap
        firsts = np.arange(0, max(1, ruler.size - self.overlap), step, dtype=np.int64)
        lasts = np.minimum(firsts + self.size, ruler.size)
        begins: list[int] = ruler.places[firsts].tolist()
        ends: list[int] = ruler.places[lasts].tolist()
        edges = [(ruler.edge(begin), ruler.edge(end)) for begin, end in zip(begins, ends, strict=True)]
        reached = 0
        spans: list[tuple[int, int]] = []
        for start, end in edges:
            # a window that adds nothing new lies inside one long character
            if end > max(start, reached):
                spans.append((start, end))
                reached = end
        chunks: list[Chunk] = []
        for (start, end), (first, last) in zip(spans, ruler.spans(spans), strict=True):
            piece, size = text[start:end], ruler.exact(start, end)
            chunks.append(Chunk("", len(chunks), start, end, piece, tokens=size, token_start=first, token_end=last))
        return tuple(chunks)


def build(rest: str, options: Mapping[str, str], encoding: str) -> Windows:
    """`rest` is ``SIZE/OVERLAP`` in tokens. Raises BadRequest for a delimiter, which windows do not look at."""
    if options.get("delimiter"):
        raise BadRequest("the chunker 'windows' takes no delimiter", hint="Use the chunker 'sections', or leave delimiter out.", code="bad_chunker")
    budget = read_budget("windows", rest, options, DEFAULT)
    made = identity.fingerprint({"chunker": "windows", "version": VERSION, "size": budget.size, "overlap": budget.overlap, "encoding": encoding})
    return Windows(budget.size, budget.overlap, encoding, made)
