"""What flows while a document travels.

Offsets count code points of one document's parsed text, from 0, end excluded. Times are aware.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from pipeline.errors import BrokenContract

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors: TypeAlias = NDArray[np.float32]
    """float32, C-contiguous; shape in the docstring of whoever takes or gives it."""
else:
    # A process that parses never needs numpy, which costs 0.1 s and 17 MB.
    Vectors = object

Scalar: TypeAlias = str | int | float | bool | None
Metadata: TypeAlias = Mapping[str, Scalar | list[str]]
Span: TypeAlias = tuple[int, int]
Box: TypeAlias = tuple[float, float, float, float]
"""x0, top, x1, bottom in points from the page's upper left corner."""


class Stage(StrEnum):
    """One word per stage: ledger value, queue, Celery task name, metric label, module."""

    LOAD = "load"
    PARSE = "parse"
    CHUNK = "chunk"
    EMBED = "embed"
    INDEX = "index"
    GRAPH = "graph"
    """Later and apart: a document answers without it."""


class Lane(StrEnum):
    """Lanes are queues of their own, so that an upload never waits behind a bulk run."""

    INTERACTIVE = "interactive"
    BULK = "bulk"


@dataclass(frozen=True, slots=True)
class SourceItem:
    """Slim listing entry: what a scan yields before anything is downloaded."""

    key: str
    """Identity within the source, stable over renames where the source allows it."""
    revision: str = ""
    """The source's own change mark (edit time, ETag); empty when it has none."""
    title: str = ""
    url: str = ""
    path: str = ""
    media_type: str = ""
    """A hint only; `parse.sniff` decides by content."""
    access: str = ""
    """Fingerprint of who may read it; empty means everybody who may read the collection."""
    metadata: Metadata = field(default_factory=dict[str, Scalar | list[str]])


@dataclass(frozen=True, slots=True)
class CrawledDocument:
    """The six fields that crawlers exchange."""

    url: str
    title: str
    content: str
    content_length: int
    """Length of `content` in code points."""
    crawl_timestamp: datetime
    metadata: Metadata = field(default_factory=dict[str, Scalar | list[str]])


@dataclass(frozen=True, slots=True)
class Asset:
    """An image or attachment of a document, and what became of it; it never blocks its document."""

    name: str
    reference: str
    """Token or address at the source."""
    kind: str = "image"
    """image, file."""
    state: str = "stored"
    """stored, pending, forbidden, too_large, failed, external."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class RawDocument:
    """Bytes as downloaded, before any interpretation."""

    item: SourceItem
    data: bytes
    sha256: str
    """Lower-case hex of `data`."""
    media_type: str = ""
    charset: str = ""
    """As declared by the source; a hint."""
    crawled: CrawledDocument | None = None
    assets: tuple[Asset, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """A slice of the parsed text with its place in the layout. Sections are in order and do not overlap.

    The text between two sections (blank lines, mostly) belongs to none of them.
    """

    start: int
    end: int
    tag: str = "Text"
    """Title, Text, List, Code, Table, Quote, Caption, Turn."""
    level: int = 0
    """Heading level 1-6 of a Title, else 0."""
    heading_path: tuple[str, ...] = ()
    """Headings above, outermost first (a Title's own text excluded); for JSON the key path, for a sheet its name."""
    page: int | None = None
    """From 1."""
    box: Box | None = None
    line_start: int | None = None
    """First source line, from 1; `line_end` included."""
    line_end: int | None = None
    key: str = ""
    speaker: str = ""
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose cells stand row by row in the parsed text, cells joined by " | ", one row a line."""

    start: int
    end: int
    rows: tuple[Span, ...]
    """Span of each row's line, header included, in order."""
    header: Span | None = None
    """The header row's span; it is repeated as `lead` when the table is split."""
    html: str = ""
    page: int | None = None


@dataclass(frozen=True, slots=True)
class ParsedDocument:
    """One text with its sections and tables; every position is a span of `text`."""

    text: str
    sections: tuple[Section, ...] = ()
    tables: tuple[Table, ...] = ()
    title: str = ""
    media_type: str = ""
    """What the content really was, e.g. ``text/markdown``."""
    parser: str = ""
    charset: str = ""
    pages: int | None = None
    metadata: Metadata = field(default_factory=dict[str, Scalar | list[str]])
    warnings: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise BrokenContract when a section or table lies outside the text or out of order."""
        size, last = len(self.text), 0
        for section in self.sections:
            if not last <= section.start <= section.end <= size:
                raise BrokenContract(f"section {section.start}:{section.end} is out of order or outside the text of {size} characters")
            last = section.end
        for table in self.tables:
            if not 0 <= table.start <= table.end <= size:
                raise BrokenContract(f"table {table.start}:{table.end} is outside the text of {size} characters")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A verbatim slice of one parsed document: the unit that is embedded, indexed and cited."""

    chunk_id: str
    """`identity.chunk_id`; the same document cut the same way always yields the same ids."""
    ordinal: int
    """Position among the document's chunks, from 0."""
    start: int
    end: int
    text: str
    """``document.text[start:end]``: the only thing that is ever quoted."""
    tokens: int = 0
    """Tokens of `text` in the chunker's encoding."""
    token_start: int = 0
    token_end: int = 0
    lead: tuple[Span, ...] = ()
    """Spans of the document repeated in front (a table's header row), verbatim."""
    search_text: str = ""
    """What is embedded and tokenised; empty means `text` itself."""
    words: str = ""
    """content_ltks: space-joined search words of `search_text`."""
    grams: str = ""
    """content_sm_ltks: space-joined finer terms (characters and bigrams, parts of compounds)."""
    kind: str = "text"
    """text, table, image, summary, question, entity, relation, report."""
    heading_path: tuple[str, ...] = ()
    page: int | None = None
    page_end: int | None = None
    line_start: int | None = None
    line_end: int | None = None
    parent: Span | None = None
    valid_from: datetime | None = None
    valid_to: datetime | None = None

    @property
    def searched(self) -> str:
        """The text that is embedded and tokenised."""
        return self.search_text or self.text


@dataclass(frozen=True, slots=True)
class EmbeddedChunks:
    """Vectors of one document's chunks, in chunk order."""

    vectors: Vectors
    """Shape (n, d)."""
    model: str
    revision: str
    tokens: int | None = None
    """As billed by the provider; None when it did not say."""
    requests: int = 0
    """Calls made to a service; 0 for a model in this process."""


@dataclass(frozen=True, slots=True)
class IndexedDocument:
    """All that the store keeps of one version of one document."""

    document_id: str
    version: int
    """Assigned at load; a store never lets a lower one win."""
    key: str
    title: str
    url: str
    parsed: ParsedDocument
    chunks: tuple[Chunk, ...]
    vectors: Vectors
    """Shape (len(chunks), d)."""
    metadata: Metadata = field(default_factory=dict[str, Scalar | list[str]])
    access: str = ""


@dataclass(frozen=True, slots=True)
class CollectionSpec:
    """What a store must know of one generation of a collection."""

    name: str
    """Store-side name: tenant, collection and generation, made by `identity.index_name`."""
    dimension: int


@dataclass(frozen=True, slots=True)
class StoreAudit:
    """What a store really holds of one collection."""

    documents: int
    chunks: int
    vectors: int
    digest: str
    """Order-independent SHA-256 over (document key, ordinal, search_text hash, text hash, vector present)."""
    versions: Mapping[str, int]
    """Document id → visible version."""
    held: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """Document id → (chunks, vectors) that are really there."""
