"""The façade: everything that a way in may ask of the house."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING

from pipeline.contracts import Answer, Lane, ParsedDocument, Question, Scalar, SearchResult
from pipeline.errors import BadRequest, NotFound
from pipeline.identity import index_name
from pipeline.settings import Settings
from workers.batch_views import BatchView
from workers.ledger import browse, catalog, control, intake
from workers.ledger.work import CollectionRow
from workers.runtime import Runtime
from workers.views import (
    AuditView,
    CheckView,
    CollectionView,
    DocumentView,
    ExcerptView,
    FailureView,
    Incoming,
    ItemView,
    KeyView,
    Page,
    Principal,
    RepairView,
    RunView,
    StatusView,
)

if TYPE_CHECKING:
    from workers.asking import Asking
    from workers.calibrating import Tunings
    from workers.deleting import Deleting
    from workers.generations import Generations
    from workers.hints import Heard
    from workers.replaying import Tombstones
    from workers.sourcing import Sources
    from workers.steering import Steering

NOTHING: Mapping[str, str] = MappingProxyType({})
NO_METADATA: Mapping[str, Scalar | list[str]] = MappingProxyType({})
POLL_S = 0.2


class Platform:
    """One tenant-aware door to ledger, store and question path. Safe for threads. Use it in a `with` block."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.settings = runtime.settings
        self.db = runtime.db
        self._asking: Asking | None = None

    def __enter__(self) -> Platform:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.runtime.close()

    # ------------------------------------------------------------ collections

    def create_collection(
        self, name: str, *, chunker: str = "", embedder: str = "", tenant: str = "default", options: Mapping[str, str] = NOTHING
    ) -> CollectionView:
        """Make a collection, or give back the one that has the same options. Raises Conflict, BadRequest."""
        from workers.collecting import create

        return self._collection_view(create(self.runtime, name, chunker=chunker, embedder=embedder, tenant=tenant, options=options))

    @property
    def tunings(self) -> Tunings:
        """Search settings and calibration of collections."""
        from workers.calibrating import Tunings

        return Tunings(self.runtime)

    def collections(self, *, tenant: str = "default", limit: int = 100, after: str = "") -> Page[CollectionView]:
        """By name."""
        rows = [row for row in catalog.every(self.db, tenant) if row.name > after]
        views = tuple(self._collection_view(row) for row in rows[:limit])
        return Page(views, views[0].name if views else None, views[-1].name if views else None, len(rows) > limit)

    def collection(self, name: str, *, tenant: str = "default") -> CollectionView:
        """Raises NotFound."""
        return self._collection_view(catalog.find(self.db, tenant, name))

    def delete_collection(self, name: str, *, tenant: str = "default") -> int:
        """Remove a collection with all its documents; returns how many there were. Raises NotFound."""
        return self.deleting.collection(name, tenant=tenant).documents

    def _collection_view(self, row: CollectionRow) -> CollectionView:
        documents, chunks = browse.totals(self.db, row.id)
        return CollectionView(
            row.name,
            row.chunker,
            row.embedder,
            row.dimension,
            row.store_url,
            row.generation,
            row.revision,
            documents,
            chunks,
            catalog.moment(row.created_at),
            row.search,
            row.calibration,
        )

    def _index(self, row: CollectionRow) -> str:
        return index_name(row.tenant, row.name, row.generation)

    # ------------------------------------------------------------ ingest and runs

    def ingest(
        self,
        collection: str,
        items: Iterable[Incoming],
        *,
        lane: Lane = Lane.BULK,
        metadata: Mapping[str, Scalar | list[str]] = NO_METADATA,
        source: str = "",
        tenant: str = "default",
        options: Mapping[str, str] = NOTHING,
    ) -> RunView:
        """Write a run and its documents into the ledger; workers do the rest.

        Unchanged documents are recognised here, by the hash of their bytes, before any worker is asked. The collection is
        made when it is missing. Raises BadRequest, Unavailable; one bad document is a failure of its own and ends nothing.
        """
        from workers.collecting import create, take

        row = create(self.runtime, collection, tenant=tenant)
        run_id = intake.open_run(self.db, row, source=source, lane=lane)
        complete = False
        try:
            take(self.runtime, row, run_id, items, lane=lane, metadata=metadata, options=options)
            complete = True
        finally:
            intake.close_scan(self.db, run_id, complete=complete)
        return self.run(browse.run_name(run_id))

    def run(self, run_id: str, *, tenant: str | None = None) -> RunView:
        """Raises NotFound."""
        from workers import costs

        return costs.priced(self.db, self.runtime.prices, browse.run(self.db, run_id, tenant=tenant))

    def runs(self, *, tenant: str = "default", collection: str = "", source: str = "", limit: int = 20, after: str = "") -> Page[RunView]:
        """Newest first; `source` is a source's name."""
        return browse.run_list(self.db, tenant=tenant, collection=collection, source=source, limit=limit, after=after)

    def run_items(self, run_id: str, *, outcome: str = "", stage: str = "", limit: int = 100, after: str = "") -> Page[ItemView]:
        """The list behind each number of a run."""
        return browse.items(self.db, run_id, outcome=outcome, stage=stage, limit=limit, after=after)

    def cancel(self, run_id: str) -> RunView:
        """Stop what has not finished; a finished run stays as it is."""
        control.stop(self.db, browse.run_number(run_id))
        return self.run(run_id)

    def pause(self, run_id: str) -> RunView:
        control.hold(self.db, browse.run_number(run_id), paused=True)
        return self.run(run_id)

    def resume(self, run_id: str) -> RunView:
        control.hold(self.db, browse.run_number(run_id), paused=False)
        return self.run(run_id)

    def wait(self, run_id: str, *, timeout_s: float | None = None, on_progress: Callable[[RunView], None] | None = None) -> RunView:
        """Look at a run until it has finished, or `timeout_s` has passed; gives its last state."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            view = self.run(run_id)
            if on_progress is not None:
                on_progress(view)
            if view.finished or (until is not None and time.monotonic() >= until):
                return view
            time.sleep(POLL_S)

    @cached_property
    def sources(self) -> Sources:
        """Where documents come from again and again."""
        from workers.sourcing import Sources

        return Sources(self.runtime)

    def hear(self, source_id: str, headers: Mapping[str, str], body: bytes) -> Heard:
        """An event of a source. Raises NotFound, Forbidden, Malformed."""
        from workers.hints import hear

        return hear(self.runtime, source_id, headers, body)

    @property
    def generations(self) -> Generations:
        """Builds of a collection: reindex, rollback."""
        from workers.generations import Generations

        return Generations(self.runtime)

    @property
    def steering(self) -> Steering:
        """Replaying, discarding, pausing, weighing."""
        from workers.steering import Steering

        return Steering(self.runtime)

    def batch(self, batch_id: int, *, tenant: str = "default") -> BatchView:
        """What a batch's number stood for. Raises NotFound."""
        from workers.ledger import history

        return history.batch(self.db, batch_id, tenant=tenant)

    # ------------------------------------------------------------ failures and documents

    def failures(
        self, *, tenant: str = "default", collection: str = "", run_id: str = "", code: str = "", stage: str = "", limit: int = 100, after: str = ""
    ) -> Page[FailureView]:
        return browse.failures(self.db, tenant=tenant, collection=collection, run_id=run_id, code=code, stage=stage, limit=limit, after=after)

    def failure(self, document_id: str, *, tenant: str = "default") -> FailureView:
        """With every attempt, and the traceback where there is one. Raises NotFound."""
        return browse.failure(self.db, document_id, tenant=tenant)

    def documents(self, collection: str, *, tenant: str = "default", status: str = "", limit: int = 100, after: str = "") -> Page[DocumentView]:
        row = catalog.find(self.db, tenant, collection)
        return browse.document_list(self.db, row.id, row.name, status=status, limit=limit, after=after)

    def document(self, collection: str, document_id: str, *, tenant: str = "default", text: bool = False) -> DocumentView:
        """Raises NotFound."""
        from dataclasses import replace

        row = catalog.find(self.db, tenant, collection)
        view = browse.document(self.db, row.id, row.name, document_id)
        if text and view.version is not None:
            view = replace(view, text=self.document_text(collection, document_id, tenant=tenant))
        return view

    def document_text(self, collection: str, document_id: str, start_char: int = 0, end_char: int | None = None, *, tenant: str = "default") -> str:
        """The version that answers now, code points `start_char` to `end_char`. Raises NotFound, BadRequest."""
        if start_char < 0 or (end_char is not None and end_char < start_char):
            raise BadRequest(f"{start_char}:{end_char} is no span", hint="Give 0 <= start_char <= end_char.", pointer="/start_char")
        row = self._answering(collection, document_id, tenant)
        return self.runtime.reader_store.text(self._index(row), document_id, start_char, end_char)

    def _answering(self, collection: str, document_id: str, tenant: str) -> CollectionRow:
        """Its collection. Raises NotFound while none of its versions answers."""
        row = catalog.find(self.db, tenant, collection)
        view = browse.document(self.db, row.id, row.name, document_id)
        if view.version is None:
            raise NotFound(
                f"document {document_id!r} has no version that answers yet",
                hint="Wait for its run, or look at its failure.",
                code="document_not_indexed",
            )
        return row

    def excerpt(
        self,
        collection: str,
        document_id: str,
        start_char: int = 0,
        end_char: int | None = None,
        *,
        most: int | None = None,
        as_of: datetime | None = None,
        tenant: str = "default",
    ) -> ExcerptView:
        """Of the version that answers now: at most `most` code points, and nothing that is later than `as_of`. Raises NotFound, BadRequest."""
        from workers.excerpts import check, excerpt

        check(start_char, end_char)
        if as_of is None:
            document = ParsedDocument(self.document_text(collection, document_id, tenant=tenant))
        else:
            row = self._answering(collection, document_id, tenant)
            document = self.runtime.reader_store.document(self._index(row), document_id)
        return excerpt(document, document_id, start_char, end_char, most=most, as_of=as_of)

    def delete_document(self, collection: str, document_id: str, *, tenant: str = "default") -> None:
        """Remove a document. Raises NotFound."""
        self.deleting.documents(collection, [document_id], tenant=tenant)

    # ------------------------------------------------------------ questions

    def _questions(self) -> Asking:
        if self._asking is None:
            from workers.asking import Asking

            self._asking = Asking(self.runtime)
        return self._asking

    def search(self, question: Question) -> SearchResult:
        """Ranked chunks. Raises NotFound for an unknown collection, Unavailable when a dependency is away."""
        return self._questions().search(question)

    def ask(self, question: Question) -> Answer:
        """Cited answer or refusal."""
        return self._questions().ask(question)

    def stream(self, question: Question) -> Iterator[str | Answer]:
        """Pieces of the answer as they come, then the whole Answer."""
        return self._questions().stream(question)

    # ------------------------------------------------------------ watching

    def audit(self, collection: str = "", *, tenant: str = "default", deep: bool = False) -> AuditView:
        """What store and shelf really hold, beside what the ledger says; `deep` opens every kept output."""
        from workers.audit import audit

        return audit(self.runtime, collection, tenant=tenant, deep=deep)

    def repair(self, collection: str = "", *, tenant: str = "default", deep: bool = False, dry_run: bool = False) -> RepairView:
        """Mend what an audit finds. Raises NotFound, Unavailable."""
        from workers.repair import repair

        return repair(self.runtime, collection, tenant=tenant, deep=deep, dry_run=dry_run)

    @property
    def deleting(self) -> Deleting:
        """Deletion of documents, collections, tenants."""
        from workers.deleting import Deleting

        return Deleting(self.runtime)

    @property
    def tombstones(self) -> Tombstones:
        """What was deleted, to be deleted again after a restore."""
        from workers.replaying import Tombstones

        return Tombstones(self.runtime)

    def status(self) -> StatusView:
        from workers.watch import status

        return status(self.runtime)

    def doctor(self) -> list[CheckView]:
        from workers.watch import doctor

        return doctor(self.runtime)

    def metrics(self) -> str:
        """Prometheus text, from the ledger."""
        from workers.watch import metrics

        return metrics(self.runtime)

    # ------------------------------------------------------------ keys and requests

    def create_key(
        self, name: str, *, collections: Sequence[str] = (), permissions: Sequence[str] = ("read", "write"), tenant: str = "default"
    ) -> KeyView:
        """With the secret, this once."""
        return catalog.create_key(self.db, name, collections, permissions, tenant)

    def keys(self, *, tenant: str = "default") -> list[KeyView]:
        return catalog.keys(self.db, tenant)

    def revoke_key(self, key_id: str, *, tenant: str = "default") -> None:
        catalog.revoke_key(self.db, key_id, tenant)

    def has_keys(self) -> bool:
        return catalog.has_keys(self.db)

    def authenticate(self, secret: str) -> Principal:
        """Raises Unauthorised."""
        return catalog.authenticate(self.db, secret)

    def remember(self, principal_key: str, route: str, idempotency_key: str, payload_hash: str) -> tuple[int, bytes] | None:
        return catalog.remember(self.db, principal_key, route, idempotency_key, payload_hash)

    def recall(self, principal_key: str, route: str, idempotency_key: str, status: int, body: bytes) -> None:
        catalog.recall(self.db, principal_key, route, idempotency_key, status, body)

    def forget(self, principal_key: str, route: str, idempotency_key: str) -> None:
        catalog.forget(self.db, principal_key, route, idempotency_key)


def open_platform(settings: Settings, *, node: str = "local") -> Platform:
    """A platform over these settings, talking to the system that runs for the data folder, if one does.

    Brings the ledger's schema up to date. Raises Unavailable when the ledger is away.
    """
    from workers.session import connected

    runtime = Runtime(connected(settings), node=node)
    runtime.db.migrate()
    return Platform(runtime)
