"""The published shapes of search and ask as dataclasses: field names are the JSON names.

The façade's views (runs, failures, audit …) are such dataclasses already, in `workers.views`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pipeline.errors import BrokenContract
from workers.views import DeletedView, OutstandingView, UsageView

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")
Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Hit:
    """One ranked chunk. Offsets count code points of the document's parsed text, from 0, end excluded."""

    chunk_id: str
    document_id: str
    ordinal: int
    title: str
    url: str
    score: float
    """In [0, 1]."""
    scores: Mapping[str, float]
    text: str
    start_char: int
    end_char: int
    page: int | None = None
    heading_path: tuple[str, ...] = ()
    highlight: str = ""
    metadata: Mapping[str, Scalar | list[str]] = field(default_factory=dict[str, Scalar | list[str]])
    collection: str = ""
    lead: str = ""
    """Text repeated in front of the chunk, such as a table's header row."""
    kind: str = "text"
    line_start: int | None = None
    line_end: int | None = None


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One step of a question's way; `degraded` says what did not work as asked."""

    stage: str
    seconds: float
    detail: Mapping[str, Any]
    degraded: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """What `search` gives back, best hit first."""

    query: str
    mode: str
    hits: tuple[Hit, ...]
    trace: tuple[TraceStep, ...] | None = None
    usage: Mapping[str, UsageView] = field(default_factory=dict[str, UsageView])


@dataclass(frozen=True, slots=True)
class CitationView:
    """Where a marker of the answer leads; `quote` is verbatim at its offsets."""

    marker: int
    chunk_id: str
    document_id: str
    title: str
    url: str
    page: int | None
    start_char: int
    end_char: int
    quote: str
    answer_start: int
    answer_end: int
    """Span of the answer that the citation supports."""
    line_start: int | None = None
    line_end: int | None = None
    collection: str = ""
    supported: bool = True
    """False when the passage holds too little of what the answer says there."""


@dataclass(frozen=True, slots=True)
class GroundingView:
    """How much of the answer its evidence carries."""

    score: float
    """Share of its sentences that a citation supports."""
    unsupported: tuple[str, ...] = ()
    """Numbers, names and links that stand in no passage."""
    unsupported_sentences: tuple[str, ...] = ()
    threshold: float = 0.0
    """Score that was asked for; 0: none."""
    flagged: bool = False
    """True when the score is below it."""


@dataclass(frozen=True, slots=True)
class EvidenceView:
    """A passage as the reader was sent it."""

    marker: int
    text: str
    start_char: int
    end_char: int
    truncated: bool
    hit: Hit


@dataclass(frozen=True, slots=True)
class AnswerView:
    """A cited answer, or a refusal with its reason."""

    answer: str
    refused: bool
    reason: str
    citations: tuple[CitationView, ...]
    grounding: GroundingView
    usage: Mapping[str, UsageView]
    cache: str
    """hit, miss or off."""
    degraded: tuple[str, ...] = ()
    evidence: tuple[EvidenceView, ...] | None = None
    """Only when a trace was asked for."""
    trace: tuple[TraceStep, ...] | None = None


@dataclass(frozen=True, slots=True)
class Deleted:
    """What was deleted."""

    deleted: bool
    id: str
    documents: int
    chunks: int = 0
    kept: int = 0
    """Documents of a source that stay."""
    outstanding: tuple[str, ...] = ()
    """What still holds something of it; a running system does the rest by itself."""


@dataclass(frozen=True, slots=True)
class Outstanding:
    """What all deletions so far have left to be done; empty when nothing holds anything any more."""

    data: tuple[OutstandingView, ...]


def deleted(name: str, view: DeletedView) -> Deleted:
    """What a deletion took, under the name that it was asked by."""
    return Deleted(not view.dry_run, name, view.documents, view.chunks, view.kept, view.outstanding)


def decode(kind: type[T], value: object) -> T:
    """A dataclass from the JSON values of its shape; fields it does not know are passed over.

    Raises BrokenContract when the values do not fit.
    """
    from pydantic import ValidationError

    try:
        return cast(T, _adapter(kind).validate_python(value))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = "/".join(str(part) for part in first["loc"])
        raise BrokenContract(
            f"the answer does not have the shape of {getattr(kind, '__name__', kind)}: {place}: {first['msg']}",
            hint="Use the same version of Dujiang on both sides.",
        ) from error


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    """Building one takes longer than reading with it."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
