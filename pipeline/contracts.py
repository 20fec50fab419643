"""What flows between the stages: frozen, slotted dataclasses and nothing that does I/O.

Offsets count code points of one document's parsed text, from 0, end excluded. Times are aware.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import BrokenContract

Scalar: TypeAlias = str | int | float | bool | None
Metadata: TypeAlias = Mapping[str, Scalar | list[str]]
Vectors: TypeAlias = NDArray[np.float32]
"""float32, C-contiguous; shape in the docstring of whoever takes or gives it."""
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


class Lane(StrEnum):
    """Lanes are queues of their own, so that an upload never waits behind a bulk run."""

    INTERACTIVE = "interactive"
    BULK = "bulk"


class Mode(StrEnum):
    """How candidates are found; PARTICIPLE is full text over our own terms."""

    PARTICIPLE = "participle"
    SEMANTIC = "semantic"
    HYBRID = "hybrid"
    GRAPH = "graph"


# ---------------------------------------------------------------- documents


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


# ---------------------------------------------------------------- questions


class Op(StrEnum):
    """Comparison of a metadata filter."""

    EQ = "eq"
    NE = "ne"
    IN = "in"
    GT = "gt"
    GTE = "gte"
    LT = "lt"
    LTE = "lte"
    EXISTS = "exists"


@dataclass(frozen=True, slots=True)
class Filter:
    """One condition on metadata; several are joined by AND.

    `name` is a metadata key, or one of document_id, key, title, url. A missing field matches only NE,
    and EXISTS with value False. Numbers compare as numbers, strings as strings.
    """

    name: str
    op: Op
    value: Scalar | tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """A question with everything that changes its answer."""

    text: str
    collections: tuple[str, ...]
    tenant: str = "default"
    mode: Mode = Mode.HYBRID
    k: int = 10
    score_threshold: float | None = None
    filters: tuple[Filter, ...] = ()
    as_of: datetime | None = None
    history: tuple[tuple[str, str], ...] = ()
    """(role, text) of earlier turns."""
    system: str = ""
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class StoreQuery:
    """What `retrieve` asks of a store: lexical terms, a vector, or both."""

    words: tuple[str, ...] = ()
    """Search words of the question, as `text.terms` makes them for `Chunk.words`."""
    grams: tuple[str, ...] = ()
    """Finer terms, as for `Chunk.grams`."""
    vector: Vectors | None = None
    """Shape (d,); None for full text only."""
    k: int = 10
    """Candidates wanted from each side."""
    min_match: float = 0.0
    """Least share of the question's terms that a lexical candidate must hold, in [0, 1]."""
    min_similarity: float = -1.0
    """Least cosine of a semantic candidate."""
    filters: tuple[Filter, ...] = ()
    as_of: datetime | None = None
    with_vectors: bool = False


@dataclass(frozen=True, slots=True)
class Hit:
    """One retrieved chunk.

    `scores` names each step's figure: lexical (BM25, unbounded), similarity (cosine), fused (0-1), rerank.
    From a store it holds both lexical and similarity when the query had both sides: 0.0 for lexical where no
    term matched, and the true cosine even for a chunk that only the lexical side found.
    """

    chunk_id: str
    document_id: str
    version: int
    ordinal: int
    key: str
    title: str
    url: str
    text: str
    start: int
    end: int
    score: float
    """In [0, 1] once fused."""
    scores: Mapping[str, float]
    lead: str = ""
    kind: str = "text"
    tokens: int = 0
    page: int | None = None
    line_start: int | None = None
    line_end: int | None = None
    heading_path: tuple[str, ...] = ()
    highlight: str = ""
    metadata: Metadata = field(default_factory=dict[str, Scalar | list[str]])
    collection: str = ""
    vector: Vectors | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """One numbered passage as it was really sent to the reader."""

    marker: int
    """From 1; the reader cites it as [1]."""
    hit: Hit
    text: str
    """What stood in the prompt: `hit.lead`, then `hit.text` from its start, cut to the budget."""
    start: int
    end: int
    """Span of the document that `text` shows, lead excluded."""
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and calls of one part (build, query, rerank, reader). What was not reported is None, never 0."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    requests: int = 0
    retries: int = 0
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a trace."""

    stage: str
    """understand, embed, retrieve, rerank, refuse, prompt, cache, llm, cite."""
    seconds: float
    detail: Mapping[str, object]
    degraded: str = ""
    """What did not work as asked, in one sentence; empty when nothing was lost."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is sent to a reader."""

    messages: tuple[tuple[str, str], ...]
    """(role, text)."""
    evidence: tuple[Evidence, ...]
    version: str
    """Hash of the template."""
    tokens: int


@dataclass(frozen=True, slots=True)
class Completion:
    """A reader's answer."""

    text: str
    model: str
    usage: Usage = Usage()
    finish_reason: str = "stop"


@dataclass(frozen=True, slots=True)
class Citation:
    """Where a marker of the answer leads."""

    marker: int
    chunk_id: str
    document_id: str
    title: str
    url: str
    page: int | None
    line_start: int | None
    line_end: int | None
    start_char: int
    end_char: int
    quote: str
    """``document.text[start_char:end_char]``, and part of what the reader was sent."""
    answer_start: int
    answer_end: int
    """Span of `Answer.text` that the citation supports."""
    collection: str = ""


@dataclass(frozen=True, slots=True)
class Grounding:
    """How much of an answer its evidence carries."""

    score: float
    """Share of the answer's sentences with a verified citation, in [0, 1]."""
    unsupported: tuple[str, ...] = ()
    """Numbers and names of the answer that stand in no evidence."""


@dataclass(frozen=True, slots=True)
class EvidencePack:
    """The frozen result of retrieval: one pack can be given to several readers. Serialises to JSON."""

    question: Question
    evidence: tuple[Evidence, ...]
    hits: tuple[Hit, ...]
    refused: bool
    reason: str
    """Why it is refused, with what was searched and how near it came; empty otherwise."""
    confidence: float
    """Best evidence score, in [0, 1]."""
    steps: tuple[Step, ...] = ()
    usage: Mapping[str, Usage] = field(default_factory=dict[str, Usage])


@dataclass(frozen=True, slots=True)
class Answer:
    """What `ask` gives back."""

    text: str
    refused: bool
    reason: str
    citations: tuple[Citation, ...]
    evidence: tuple[Evidence, ...]
    grounding: Grounding
    usage: Mapping[str, Usage]
    """Parts build, query, rerank, reader."""
    cache: str
    """hit, miss or off."""
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What `search` gives back."""

    query: str
    mode: Mode
    hits: tuple[Hit, ...]
    steps: tuple[Step, ...] = ()
    usage: Mapping[str, Usage] = field(default_factory=dict[str, Usage])
