"""What can be asked of a Dujiang, whether it is on this machine or behind HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from api.asking import Asking
    from api.sourcing import SourceVerbs
    from workers.views import (
        AuditView,
        BatchView,
        CheckView,
        CollectionView,
        DocumentView,
        FailureView,
        Incoming,
        ItemView,
        KeyView,
        LettersView,
        Page,
        RunView,
        Selection,
        StatusView,
        TenantView,
    )

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ingestion:
    """What to ingest, and how."""

    collection: str
    items: Sequence[Incoming]
    lane: str = ""
    """interactive or bulk; empty: interactive for a few documents."""
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    source: str = ""
    wait: bool = True
    """Return when the run is finished, with its balance."""
    on_progress: Callable[[RunView], None] | None = None
    on_note: Callable[[str], None] | None = None
    """Told in one line what happens beside the run: what is started, what is uploaded."""


class System(Protocol):
    """Every failure is a PipelineError."""

    where: str
    """A URL, or the data folder."""

    def close(self) -> None: ...

    def create_collection(self, name: str, *, chunker: str, embedder: str, options: Mapping[str, str]) -> CollectionView: ...
    def collections(self, *, limit: int, after: str) -> Page[CollectionView]: ...
    def collection(self, name: str) -> CollectionView: ...
    def delete_collection(self, name: str) -> int: ...

    def ingest(self, what: Ingestion) -> RunView: ...
    def run(self, run_id: str) -> RunView: ...
    def runs(self, *, collection: str, limit: int, after: str) -> Page[RunView]: ...
    def run_items(self, run_id: str, *, outcome: str, limit: int, after: str) -> Page[ItemView]: ...
    def cancel(self, run_id: str) -> RunView: ...
    def pause(self, run_id: str) -> RunView: ...
    def resume(self, run_id: str) -> RunView: ...

    def batch(self, batch_id: int) -> BatchView: ...

    @property
    def sources(self) -> SourceVerbs: ...

    def sync(
        self, name: str, *, full: bool, wait: bool, on_progress: Callable[[RunView], None] | None, on_note: Callable[[str], None] | None
    ) -> RunView:
        """Sync a source; with `wait`, return when its run has finished or waits for a person."""
        ...

    def failures(self, *, collection: str, run_id: str, code: str, limit: int, after: str) -> Page[FailureView]: ...
    def failure(self, document_id: str) -> FailureView: ...
    def selected_failures(self, chosen: Selection) -> LettersView: ...
    def replay_failures(self, chosen: Selection) -> LettersView: ...
    def discard_failures(self, chosen: Selection) -> LettersView: ...
    def hold_collection(self, name: str, *, paused: bool) -> None: ...
    def cancel_collection(self, name: str) -> Sequence[RunView]: ...
    def tenants(self) -> Sequence[TenantView]: ...
    def weigh(self, name: str, weight: float) -> TenantView: ...

    def documents(self, collection: str, *, status: str, limit: int, after: str) -> Page[DocumentView]: ...
    def document(self, collection: str, document_id: str, *, text: bool) -> DocumentView: ...
    def delete_document(self, collection: str, document_id: str) -> None: ...

    def search(self, text: str, options: Asking) -> Json:
        """The published shape of a search."""
        ...

    def ask(self, text: str, options: Asking) -> Json:
        """The published shape of an answer."""
        ...

    def stream(self, text: str, options: Asking) -> Iterator[str | Json]:
        """Pieces of text, then the answer's shape."""
        ...

    def audit(self, collections: Sequence[str]) -> AuditView: ...
    def status(self) -> StatusView: ...
    def doctor(self) -> list[CheckView]: ...

    def create_key(self, name: str, *, collections: Sequence[str], permissions: Sequence[str]) -> KeyView: ...
    def keys(self) -> Sequence[KeyView]: ...
    def revoke_key(self, key_id: str) -> None: ...


def open_system(flags: Mapping[str, object] | None = None) -> System:
    """The remote system that DUJIANG_URL names, else the one on this machine."""
    from pipeline.settings import load

    settings = load(flags).settings
    if settings.url:
        from api.remote import Remote

        return Remote(settings.url, api_key=settings.api_key, max_bytes=settings.max_file_mb * 1_000_000)
    from api.local import Local

    return Local(settings)
