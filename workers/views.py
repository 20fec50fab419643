"""What the façade shows: frozen dataclasses whose field names are the public JSON names.

`shape` turns any of them into plain JSON values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Generic, TypeAlias, TypeVar, cast

from pipeline.contracts import Metadata, Scalar, Usage
from pipeline.tuning import Calibration, Tuning
from workers.audit_views import AuditCollection as AuditCollection
from workers.audit_views import AuditView as AuditView
from workers.audit_views import DeletedView as DeletedView
from workers.audit_views import FindingView as FindingView
from workers.audit_views import OutstandingView as OutstandingView
from workers.audit_views import RepairView as RepairView
from workers.audit_views import ReplayedView as ReplayedView
from workers.audit_views import TombstoneView as TombstoneView
from workers.cache_views import CacheView

T = TypeVar("T")


def shape(value: object) -> Any:
    """Plain JSON values of a view: dataclasses become objects, times ISO 8601, enums their value."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: shape(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): shape(item) for key, item in cast("Mapping[object, object]", value).items()}
    if isinstance(value, (list, tuple)):
        return [shape(item) for item in cast("Sequence[object]", value)]
    return value


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list; ask again with ``after=last_id`` while `has_more`."""

    data: tuple[T, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool


UsageView: TypeAlias = Usage
"""A run's costs are told in the same words as a question's."""


@dataclass(frozen=True, slots=True)
class AttemptView:
    """One attempt that did not succeed."""

    at: datetime
    run_id: str
    stage: str
    outcome: str
    """retry, dead, lost: its worker was gone."""
    code: str
    detail: str
    worker: str
    code_version: str


@dataclass(frozen=True, slots=True)
class FailureView:
    """Why one document stopped: `detail` says in one sentence what happened, `hint` what to do."""

    document_id: str
    document: str
    stage: str
    code: str
    detail: str
    hint: str
    attempts: int
    at: datetime
    collection: str = ""
    run_id: str = ""
    traceback: str | None = None
    """Only in `failure()`, never in lists."""
    history: tuple[AttemptView, ...] = ()
    """Every attempt that did not succeed, oldest first; only in `failure()`."""


@dataclass(frozen=True, slots=True)
class RunView:
    """The balance of a run: once finished, discovered = indexed + unchanged + skipped + failed + cancelled."""

    run_id: str
    collection: str
    status: str
    """queued, running, paused, done, failed, cancelled."""
    discovered: int
    indexed: int
    unchanged: int
    skipped: int
    failed: int
    cancelled: int
    deleted: int
    chunks: int
    started_at: datetime
    finished_at: datetime | None
    duration_s: float | None
    usage: Mapping[str, UsageView]
    model_calls: Mapping[str, int]
    failures: tuple[FailureView, ...]
    """The first 100."""
    lane: str = "bulk"
    source: str = ""
    stages: Mapping[str, int] = field(default_factory=dict[str, int])
    """Documents of this run that are now at each stage (load … index, done)."""
    warnings: tuple[str, ...] = ()
    ahead: int | None = 0
    """Documents of other runs that are begun before the next one of this run; None while it is paused."""
    balance: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])
    """Stage → outcome → documents whose part in this run ended there; `run_items` lists each."""

    @property
    def finished(self) -> bool:
        return self.status in {"done", "failed", "cancelled"}


@dataclass(frozen=True, slots=True)
class Selection:
    """Which dead letters; what is empty selects all. Several conditions must all hold."""

    tenant: str = "default"
    document_ids: tuple[str, ...] = ()
    collections: tuple[str, ...] = ()
    run_id: str = ""
    code: str = ""
    stage: str = ""
    """Where they failed."""


@dataclass(frozen=True, slots=True)
class LettersView:
    """Dead letters that were selected, replayed or discarded."""

    documents: int
    collections: Mapping[str, int]
    """Collection → documents."""
    runs: tuple[RunView, ...] = ()
    """One for each collection, where they were replayed."""


@dataclass(frozen=True, slots=True)
class GenerationView:
    """One build of a collection with one embedder and one chunker."""

    generation: int
    status: str
    """building, live, retained, dropping."""
    chunker: str
    embedder: str
    dimension: int | None
    created_at: datetime
    live_at: datetime | None
    retired_at: datetime | None


@dataclass(frozen=True, slots=True)
class ReindexView:
    """What a reindex would build."""

    documents: int
    chunks: int
    """Those there are now."""
    chunker: str
    embedder: str
    new_chunks: int
    """Those there would be."""
    to_embed: int
    """Of them, those whose text has no kept vector of this model."""
    tokens: int
    """In the chunks that would be sent, as the collection's tokenizer counts."""
    sampled: int
    """Documents that were cut to tell; the numbers above are exact when it is all of them."""


@dataclass(frozen=True, slots=True)
class TenantView:
    """A tenant's share of the workers beside others."""

    name: str
    weight: float
    most: int = 0
    """Batches of one stage that it may have under way at once; 0: any number."""


@dataclass(frozen=True, slots=True)
class CollectionView:
    """One collection with what it was built with."""

    name: str
    chunker: str
    embedder: str
    dimension: int | None
    store_url: str
    """Passwords masked."""
    generation: int
    revision: int
    documents: int
    chunks: int
    created_at: datetime
    search: Tuning = field(default_factory=Tuning)
    """Its own search settings; null leaves the default."""
    calibration: Calibration | None = None
    """Where refusals of this generation begin; null: at the embedder profile's threshold."""


@dataclass(frozen=True, slots=True)
class DocumentView:
    """One document and where it stands."""

    document_id: str
    collection: str
    document: str
    """Its key: where it came from."""
    title: str
    url: str
    media_type: str
    stage: str
    status: str
    """ready, queued, leased, retry, done, dead, cancelled, skipped."""
    version: int | None
    """The one that answers now; None when none does."""
    chunks: int
    bytes: int
    metadata: Metadata
    updated_at: datetime
    failure: FailureView | None = None
    text: str | None = None
    """Parsed text, only in `document()` when asked for."""


@dataclass(frozen=True, slots=True)
class ExcerptView:
    """A verbatim slice of a document's parsed text; offsets count code points."""

    document_id: str
    start_char: int
    end_char: int
    text: str
    length: int
    """Of the whole text."""
    cut: str = ""
    """Why it ends before what was asked for: limit, as_of; empty when it does not."""


@dataclass(frozen=True, slots=True)
class ItemView:
    """One document's part in one run: the list behind each number."""

    document_id: str
    document: str
    outcome: str
    """pending, indexed, unchanged, skipped, failed, cancelled."""
    detail: str = ""
    stage: str = ""
    """Where it ended, or is."""


@dataclass(frozen=True, slots=True)
class ProcessView:
    name: str
    role: str
    """supervisor, redis, worker, beat, api, flower."""
    pid: int
    queues: tuple[str, ...] = ()
    rss_mb: float | None = None


@dataclass(frozen=True, slots=True)
class QueueView:
    """One queue: what waits in the ledger, what was sent, what is being worked on."""

    ready: int
    queued: int
    leased: int
    oldest_s: float | None
    """Age of the oldest document that waits for this queue."""
    consumers: int | None
    """None when the broker is not reachable."""
    depth: int | None = None
    """Messages in the broker that nobody has been handed; None when it is not reachable."""


@dataclass(frozen=True, slots=True)
class StageView:
    """One stage, over all queues that lead to it."""

    waiting: int
    working: int
    """Documents in a batch that was sent or is being worked on."""
    per_minute: int
    """Documents that left it within the last minute."""
    oldest_s: float | None


@dataclass(frozen=True, slots=True)
class NodeView:
    """One process that works on this ledger, on whatever host."""

    name: str
    role: str
    """worker, supervisor, beat."""
    queues: tuple[str, ...]
    code_version: str
    seen_s: float
    progress_s: float
    """Since it last took a batch; for a supervisor or beat, since it last swept."""


@dataclass(frozen=True, slots=True)
class StatusView:
    up: bool
    redis_url: str
    processes: tuple[ProcessView, ...]
    queues: Mapping[str, QueueView]
    documents: Mapping[str, int]
    degraded: tuple[str, ...]
    broker: str = ""
    """redis or rabbitmq."""
    stages: Mapping[str, StageView] = field(default_factory=dict[str, StageView])
    ahead: Mapping[str, int] = field(default_factory=dict[str, int])
    """Lane → documents that are under way and would be before a new one."""
    nodes: tuple[NodeView, ...] = ()
    cache: CacheView | None = None
    """None: no answer cache, or it is away."""


@dataclass(frozen=True, slots=True)
class KeyView:
    """An API key without its secret; `key` is filled once, when it is created."""

    key_id: str
    name: str
    collections: tuple[str, ...]
    """Scope; empty means all."""
    permissions: tuple[str, ...]
    """Of read, write, admin."""
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Principal:
    """Who is asking."""

    tenant: str = "default"
    key_id: str = ""
    collections: tuple[str, ...] = ()
    permissions: tuple[str, ...] = ("read", "write", "admin")

    def may(self, permission: str, collection: str | None = None) -> bool:
        """True when the key's scope covers it."""
        return permission in self.permissions and (collection is None or not self.collections or collection in self.collections)


@dataclass(frozen=True, slots=True)
class Incoming:
    """One document handed to `ingest`: a local file (`path`), or bytes that came with the request (`data`)."""

    key: str
    title: str = ""
    url: str = ""
    path: str = ""
    """Absolute path on this machine; empty when `data` is given."""
    member: str = ""
    """Name inside the zip archive at `path`."""
    data: bytes | None = None
    media_type: str = ""
    metadata: Mapping[str, Scalar | list[str]] = field(default_factory=dict[str, Scalar | list[str]])
    problem: Exception | None = None
    """A PipelineError found while listing: the document is counted as failed or skipped, with this reason."""


@dataclass(frozen=True, slots=True)
class CheckView:
    """One finding of `doctor`."""

    name: str
    ok: bool
    detail: str
    hint: str = ""
