"""What flows while a question travels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from pipeline.contracts.documents import Metadata, Scalar, Vectors


class Mode(StrEnum):
    """How candidates are found; PARTICIPLE is full text over our own terms."""

    PARTICIPLE = "participle"
    SEMANTIC = "semantic"
    HYBRID = "hybrid"
    GRAPH = "graph"


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
    merge: str = ""
    """weighted or rrf; empty: the collections' own."""
    lexical_weight: float | None = None
    """Share of full text in HYBRID; None: each collection's own."""
    assist: tuple[str, ...] = ()
    """What a model may do before the search: rewrite, align, multi_query, keywords."""
    widen: str = ""
    """off, section, or a number of neighbours; empty: each collection's own. See `Tuning.widen`."""


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
    """Money, by the operator's price list; None where a price or a count is missing."""
    cached_tokens: int | None = None
    """Those of `prompt_tokens` that the provider had in its own cache."""
    currency: str = ""
    """Of `cost`."""


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
    supported: bool = True
    """False when the passage holds too little of what the answer says there."""


@dataclass(frozen=True, slots=True)
class Grounding:
    """How much of an answer its evidence carries."""

    score: float
    """Share of the answer's sentences with a verified citation, in [0, 1]."""
    unsupported: tuple[str, ...] = ()
    """Numbers, names and links of the answer that stand in no evidence."""
    unsupported_sentences: tuple[str, ...] = ()
    """Sentences that no citation supports, without markers."""
    threshold: float = 0.0
    """Score that was asked for; 0: none."""
    flagged: bool = False
    """True when the score is below the threshold."""


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
