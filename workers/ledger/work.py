"""What the ledger hands to a worker, and what a worker hands back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.contracts import Lane, Scalar, Stage
from pipeline.tuning import Calibration, Tuning


@dataclass(frozen=True, slots=True)
class CollectionRow:
    """One collection as the ledger pins it."""

    id: str
    tenant: str
    name: str
    chunker: str
    chunk_options: Mapping[str, str]
    tokenizer: str
    embedder: str
    embedder_revision: str
    dimension: int | None
    store_url: str
    generation: int
    revision: int
    created_at: float
    status: str = "live"
    paused: bool = False
    search: Tuning = field(default_factory=Tuning)
    calibrations: Mapping[int, Calibration] = field(default_factory=dict[int, Calibration])
    """By generation."""

    @property
    def calibration(self) -> Calibration | None:
        """That of the generation that answers."""
        return self.calibrations.get(self.generation)


@dataclass(frozen=True, slots=True)
class Work:
    """One document of a claimed batch."""

    document_id: str
    key: str
    title: str
    url: str
    path: str
    member: str
    media_type: str
    size: int
    metadata: Mapping[str, Scalar | list[str]]
    options: Mapping[str, str]
    access: str
    run_id: int
    version: int
    live_version: int | None
    live_hash: str
    live_fingerprint: str
    source_hash: str
    fingerprint: str
    attempts: int
    waits: int
    chunks: int
    route: str
    shadow_of: str = ""
    source_id: str = ""
    revision: str = ""
    """The source's change mark."""
    waiting_since: float | None = None
    """First failure that cost no attempt since it last moved; seconds since the epoch."""

    @property
    def identity(self) -> str:
        """The document's own id, also where this row builds the next generation of it: chunk ids and the store go by it."""
        return self.shadow_of or self.document_id


@dataclass(frozen=True, slots=True)
class Batch:
    """A lease: nobody else may commit under this token."""

    id: int
    token: int
    owner: str
    lane: Lane
    stages: tuple[Stage, ...]
    collection: CollectionRow
    documents: tuple[Work, ...]


@dataclass(frozen=True, slots=True)
class Issue:
    """One message: a batch, its token, and where it goes. Nothing else travels through the broker."""

    batch_id: int
    token: int
    stage: Stage
    queue: str


@dataclass(frozen=True, slots=True)
class Ref:
    """Where one stage's output of one document version lies in a pack."""

    document_id: str
    version: int
    stage: Stage
    key: str
    pack: str
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Detail:
    """What the download of a source's item told beside its bytes."""

    title: str
    url: str
    media_type: str
    size: int
    metadata: Mapping[str, Scalar | list[str]]
    revision: str = ""
    """The change mark of what was really given, where that is not what was listed."""
    again: bool = False
    """Something is still missing: fetch it again with the next run, whatever the change mark says."""


@dataclass(frozen=True, slots=True)
class Advance:
    """A document finished `stage`; the last stage makes its version the live one."""

    document_id: str
    stage: Stage
    source_hash: str = ""
    chunks: int = 0
    title: str = ""
    media_type: str = ""
    remark: str = ""
    """What a person should know of a document that is indexed all the same."""
    detail: Detail | None = None


@dataclass(frozen=True, slots=True)
class Setback:
    """A document did not get through `stage`: what happens next is in `status`.

    `status` is retry, dead or skipped; `delay_s` counts for retry only.
    """

    document_id: str
    stage: Stage
    status: str
    code: str
    detail: str
    hint: str
    delay_s: float = 0.0
    costs_attempt: bool = True
    trace: str = ""
    source_hash: str = ""
    unchanged: bool = False
    again: bool = False
    """Of a source's item: the next run tries it anew, whatever the change mark says."""
    revision: str = ""
    """Of a source's item that is unchanged: its change mark, where the download told another one."""
    absence: str = ""
    """Evidence that the source no longer has it."""
    hidden: bool = False
    """The source no longer lets us read it; it has left the index already."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Model use of one batch; unreported token counts stay None."""

    part: str
    model: str
    input_tokens: int | None
    output_tokens: int | None = None
    units: int = 0
    requests: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that one batch's commit writes, in one transaction."""

    advances: tuple[Advance, ...] = ()
    setbacks: tuple[Setback, ...] = ()
    refs: tuple[Ref, ...] = ()
    spent: tuple[Spent, ...] = ()
    seconds: float = 0.0
    dimension: int | None = None
    """Of the collection, once its embedder has answered."""
