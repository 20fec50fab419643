"""What flows through the graph: what a document contributes, what folding makes of all contributions, what a search gives back.

The graph is a pure function of the live contributions: one per document and version, immutable. No element is edited
in place, so that order, redelivery and crashes cannot change the result. Offsets count code points of the document's
parsed text, from 0, end excluded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from pipeline.contracts import Hit, Span


class GraphMode(StrEnum):
    """How the graph is asked: around the question's entities, over community reports, both, with chunks, or not at all."""

    LOCAL = "local"
    GLOBAL = "global"
    HYBRID = "hybrid"
    MIX = "mix"
    NAIVE = "naive"


@dataclass(frozen=True, slots=True)
class ChunkRef:
    """A chunk as the graph knows it: where it stands, never what it says."""

    chunk_id: str
    ordinal: int
    start: int
    end: int
    valid_from: datetime | None = None


@dataclass(frozen=True, slots=True)
class Mention:
    """One entity in one chunk."""

    key: str
    """`resolve.key` of the name: equal keys are one entity."""
    name: str
    """As it stands in the text."""
    type: str
    chunk: int
    """Index into `Contribution.chunks`."""
    start: int
    """First place in the document; it lies within the chunk. Empty where the document's title, which is no part of the text, names it."""
    end: int
    count: int = 1
    """Places in this chunk."""
    description: str = ""
    """A model's words about it, from this chunk alone; empty without a model."""


@dataclass(frozen=True, slots=True)
class Link:
    """A relation that one chunk gives between two entities; undirected, `source` < `target`."""

    source: str
    """Key."""
    target: str
    chunk: int
    start: int
    """Span of the sentence or passage that carries it."""
    end: int
    weight: float = 1.0
    description: str = ""
    keywords: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Contribution:
    """All that one version of one document gives to the graph. The same input and extractor give the same bytes."""

    document_id: str
    version: int
    extractor: str
    """Fingerprint of the extraction: mode, its version, model, prompt, entity types."""
    chunks: tuple[ChunkRef, ...]
    mentions: tuple[Mention, ...] = ()
    """In order of (chunk, start, key); one for each entity and chunk."""
    links: tuple[Link, ...] = ()
    """In order of (chunk, source, target); one for each pair and chunk."""

    def keys(self) -> frozenset[str]:
        """Every entity it touches."""
        return frozenset(mention.key for mention in self.mentions)


@dataclass(frozen=True, slots=True)
class Source:
    """Where a graph element is said: the evidence behind it."""

    document_id: str
    chunk_id: str
    start: int
    end: int
    description: str = ""
    valid_from: datetime | None = None


@dataclass(frozen=True, slots=True)
class Entity:
    """What all live contributions say of one entity."""

    id: str
    """Hash of the key."""
    key: str
    name: str
    """The most frequent surface form; ties by code points."""
    type: str
    aliases: tuple[str, ...]
    """Other surface forms, in code-point order."""
    description: str
    """Distinct descriptions in the order of their sources, bounded; empty without a model."""
    mentions: int
    documents: int
    sources: tuple[Source, ...]
    """In order of (document, chunk ordinal, start); at most `fold.MOST_SOURCES`."""


@dataclass(frozen=True, slots=True)
class Relation:
    """What all live contributions say of one pair."""

    id: str
    source: str
    """Key; `source` < `target`."""
    target: str
    weight: float
    """Sum over its links."""
    count: int
    documents: int
    description: str
    keywords: tuple[str, ...]
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class Community:
    """A group of entities that hold together."""

    id: str
    level: int
    """0: the coarsest."""
    parent: str
    """Empty at level 0."""
    members: tuple[str, ...]
    """Keys, sorted."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a model wrote about a community."""

    community: str
    title: str
    summary: str
    findings: tuple[tuple[str, str], ...]
    """(summary, explanation)."""
    rating: float
    input_hash: str
    """Of all it was written from; the same input is not paid for twice."""
    documents: tuple[str, ...]
    """Ids of all documents behind it: whoever may not see one of them is not shown it."""


@dataclass(frozen=True, slots=True)
class GraphFound:
    """A graph's answer to one question."""

    hits: tuple[Hit, ...]
    """Chunks, best first, `scores["graph"]` set, in [0, 1]."""
    entities: tuple[tuple[Entity, float], ...] = ()
    relations: tuple[tuple[Relation, float], ...] = ()
    reports: tuple[tuple[Report, float], ...] = ()
    context: str = ""
    """Entities CSV, Relations CSV and community reports, for the reader, within the budget."""
    withheld: int = 0
    """Descriptions that were rebuilt or left out because not all their evidence is visible to the asker."""
    detail: Mapping[str, object] = field(default_factory=dict[str, object])
    """Linked entities, seeds, iterations: for the trace."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A span that a graph element rests on, ready to be cited."""

    element: str
    """Entity or relation id."""
    document_id: str
    span: Span
