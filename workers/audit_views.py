"""What the façade shows of audits, repairs and deletions; field names are the public JSON names."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class DeletedView:
    """What a deletion took, or would take."""

    collections: tuple[str, ...]
    documents: int
    chunks: int = 0
    dry_run: bool = False
    outstanding: tuple[str, ...] = ()
    """What still holds something of it; the housekeeping of a running system does the rest, or the next `audit --repair`."""
    kept: int = 0
    """Documents of a source that stay."""


@dataclass(frozen=True, slots=True)
class OutstandingView:
    """One kind of what deletions have left to be done."""

    what: str
    """What still holds something of what was deleted."""
    number: int
    since: datetime


@dataclass(frozen=True, slots=True)
class TombstoneView:
    """One thing that was deleted, by ids that tell nothing of it."""

    kind: str
    """document, source, collection, tenant, index."""
    id: str
    number: int
    """Version of a document, highest generation of a collection."""
    at: float
    """Seconds since the epoch."""
    of: str = ""
    """A document's collection, by its id."""


@dataclass(frozen=True, slots=True)
class ReplayedView:
    """What a restored system had of what was deleted after its backup, and has no more, or would not."""

    dry_run: bool
    tenants: int
    collections: tuple[str, ...]
    sources: tuple[str, ...]
    documents: int
    """In all, those of the collections included."""
    outstanding: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RepairView:
    """What was mended, or would be."""

    dry_run: bool
    differences: int
    begun: int
    """Documents that workers write again, from kept outputs or from load."""
    removed: int
    """Documents that the store held although they answer according to nobody."""
    orphans: int
    """Packs that nobody named."""
    runs: tuple[str, ...]
    unmended: tuple[str, ...] = ()
    """Differences that nothing here can mend; the first 100."""


@dataclass(frozen=True, slots=True)
class FindingView:
    """One difference."""

    kind: str
    """missing, version, chunks, vectors, foreign, revived, kept, output, stuck, hiding, deletion, balance, lease, orphan, endless, index."""
    detail: str
    mends: bool
    """Whether `audit --repair` mends it."""
    document_id: str = ""


@dataclass(frozen=True, slots=True)
class AuditCollection:
    """What the store really holds of a collection, and where ledger and store differ."""

    name: str
    documents: int
    chunks: int
    vectors: int
    graph_records: int
    digest: str
    graph_digest: str
    differences: tuple[str, ...]
    """The first 100 of them, a sentence each."""
    found: int = 0
    """How many differences there are."""
    findings: tuple[FindingView, ...] = ()
    """The same differences, with what a program may want to know of them."""
    notes: tuple[str, ...] = ()
    """What is worth knowing and not wrong."""


@dataclass(frozen=True, slots=True)
class AuditView:
    ok: bool
    collections: tuple[AuditCollection, ...]
    differences: tuple[str, ...] = ()
    """Of what belongs to no collection: deletions, packs, leases, indices, keys in Redis."""
    findings: tuple[FindingView, ...] = ()
    notes: tuple[str, ...] = ()
