"""Documents for tests of stores, made without parser, chunker or embedder; and a writer process of its own.

    python -m tests.stored URL COLLECTION FIRST COUNT [--forever]

writes COUNT documents, one a call; with ``--forever`` in ever higher versions until it is killed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import datetime

import numpy as np

from pipeline.contracts import Chunk, IndexedDocument, ParsedDocument, Scalar, Section, StoreQuery, Table, Vectors
from pipeline.identity import chunk_id, document_id, text_hash
from pipeline.stores import open_store
from pipeline.text import query_terms, terms

DIMENSION = 8


def vector_of(text: str, dimension: int = DIMENSION) -> Vectors:
    """The same text always points the same way."""
    found = np.random.default_rng(int(text_hash(text)[:12], 16)).standard_normal(dimension).astype(np.float32)
    return (found / np.linalg.norm(found)).astype(np.float32)


def stored(
    key: str,
    *texts: str,
    version: int = 1,
    metadata: Mapping[str, Scalar | list[str]] | None = None,
    vectors: Vectors | None = None,
    dates: Sequence[tuple[datetime | None, datetime | None]] = (),
    title: str = "",
    url: str = "",
    search_text: str = "",
    lead: str = "",
) -> IndexedDocument:
    """One chunk and one section a text, blank lines between; `lead` stands at the document's head and is repeated in front of each chunk."""
    whole = lead + "\n" if lead else ""
    chunks: list[Chunk] = []
    sections: list[Section] = []
    name = document_id("default", "tests", key)
    for ordinal, text in enumerate(texts):
        start, end = len(whole), len(whole) + len(text)
        whole += text + "\n\n"
        searched = f"{search_text}\n{text}" if search_text else ""
        words, grams = terms(searched or text)
        since, until = dates[ordinal] if dates else (None, None)
        chunks.append(
            Chunk(
                chunk_id(name, "tests", start, end, text), ordinal, start, end, text, tokens=len(text), search_text=searched, words=words,
                grams=grams,
                heading_path=("Top", "Sub"), page=ordinal + 1, line_start=2 * ordinal + 1, line_end=2 * ordinal + 1,
                lead=((0, len(lead)),) if lead else (), valid_from=since, valid_to=until,
            )
        )  # fmt: skip
        sections.append(Section(start, end, heading_path=("Top",), page=ordinal + 1, line_start=2 * ordinal + 1, line_end=2 * ordinal + 1))
    parsed = ParsedDocument(whole, tuple(sections), (Table(0, len(whole), ((0, 1),)),) if whole else (), title=title, metadata={"from": "tests"})
    if vectors is None:
        made = [vector_of(text) for text in texts]
        vectors = np.stack(made) if made else np.zeros((0, DIMENSION), dtype=np.float32)
    return IndexedDocument(name, version, key, title, url, parsed, tuple(chunks), vectors, metadata or {})


def lexical(text: str, **options: object) -> StoreQuery:
    """A question for the full-text side only."""
    words, grams = query_terms(text)
    return StoreQuery(words, grams, **options)  # type: ignore[arg-type]


def numbered(number: int, version: int = 1) -> IndexedDocument:
    """A document of three chunks that all say its number."""
    return stored(f"doc-{number:05}", *(f"paragraph {part} of document number{number} version{version}" for part in range(3)), version=version)


def main(url: str, collection: str, first: str, count: str, *flags: str) -> None:
    """Write, and say after each document that it is there."""
    store = open_store(url, writer=True)
    versions = range(1, 1_000_000) if "--forever" in flags else (1,)
    for version in versions:
        for number in range(int(first), int(first) + int(count)):
            store.write(collection, [numbered(number, version)])
            print(number, version, flush=True)
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
