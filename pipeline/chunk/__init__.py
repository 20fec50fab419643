"""Parsed document in, verbatim slices out."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol, cast, runtime_checkable

from pipeline import identity, registry
from pipeline.chunk.places import Places
from pipeline.contracts import Chunk, ParsedDocument
from pipeline.errors import BrokenContract
from pipeline.protocols import Chunker
from pipeline.text import terms_many
from pipeline.vocabulary import vocabulary

CHUNKERS: Mapping[str, str] = {
    "windows": "pipeline.chunk.windows:build",
    "sections": "pipeline.chunk.sections:build",
}
_NONE: Mapping[str, str] = MappingProxyType({})


class Build(Protocol):
    """What a registered name leads to."""

    def __call__(self, rest: str, options: Mapping[str, str], encoding: str) -> Fingerprinted: ...


@runtime_checkable
class Fingerprinted(Chunker, Protocol):
    """A chunker that says by one string how it cuts: chunk ids depend on it."""

    fingerprint: str


def create(spec: str, *, encoding: str = "cl100k_base", options: Mapping[str, str] = _NONE) -> Chunker:
    """The chunker that `spec` names: ``windows:256/32``, ``sections``, ``sections:400/0``.

    Args:
        options: chunk_token_num (tokens, wins over the spec) and delimiter (marks where text is cut first).
    Raises: Unsupported for an unknown name or encoding, BadRequest for a wrong size or option.
    """
    return _create(spec, options, encoding)


def fingerprint(chunker_spec: str, options: Mapping[str, str], encoding: str) -> str:
    """Equal for two ways of writing the same chunker; part of chunk ids and of the stage's options fingerprint."""
    return _create(chunker_spec, options, encoding).fingerprint


def chunk(document: ParsedDocument, document_id: str, chunker: Chunker) -> tuple[Chunk, ...]:
    """Cut, check that every piece can be cited, and fill ids, search terms and places.

    Raises BrokenContract when a piece is not the slice of the document that its offsets name.
    """
    pieces = chunker(document, document_id)
    _check(document, pieces)
    mark = chunker.fingerprint if isinstance(chunker, Fingerprinted) else type(chunker).__qualname__
    places = Places(document)
    found = terms_many(piece.searched for piece in pieces)
    return tuple(
        places.fill(piece, ordinal, identity.chunk_id(document_id, mark, piece.start, piece.end, piece.text), words, grams)
        for ordinal, (piece, (words, grams)) in enumerate(zip(pieces, found, strict=True))
    )


def _create(spec: str, options: Mapping[str, str], encoding: str) -> Fingerprinted:
    vocabulary(encoding)
    name, rest = registry.split(spec)
    build = cast("Build", registry.find(CHUNKERS, name, what="chunker"))
    return build(rest, options, encoding)


def _check(document: ParsedDocument, pieces: tuple[Chunk, ...]) -> None:
    text, before = document.text, 0
    for piece in pieces:
        start, end = piece.start, piece.end
        if not before <= start < end <= len(text) or text[start:end] != piece.text:
            raise BrokenContract(f"chunk {start}:{end} is not that slice of the document, is empty or is out of order")
        for lead_start, lead_end in piece.lead:
            if not 0 <= lead_start <= lead_end <= len(text):
                raise BrokenContract(f"the lead {lead_start}:{lead_end} of chunk {start}:{end} is outside the text of {len(text)} characters")
        before = start
