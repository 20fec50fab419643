"""A platform in memory with the façade's methods, for what stands in front of it.

Documents become visible at once unless `held` is set; then a run stays "running" until `release()`.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from types import SimpleNamespace
from typing import Any, TypeVar

from pipeline.contracts import Answer, Citation, Evidence, Grounding, Hit, Lane, ParsedDocument, Question, SearchResult, Step, Usage
from pipeline.errors import Conflict, NotFound, PipelineError, Skipped
from pipeline.identity import document_id
from pipeline.settings import Settings
from tests.fakes_deleting import FakeDeleting
from tests.fakes_keys import FakeKeys, now
from workers.batch_views import BatchDocumentView, BatchView
from workers.excerpts import ExcerptView, excerpt
from workers.views import (
    AuditCollection,
    AuditView,
    CheckView,
    CollectionView,
    DocumentView,
    FailureView,
    Incoming,
    ItemView,
    Page,
    QueueView,
    RepairView,
    RunView,
    StatusView,
    UsageView,
)

T = TypeVar("T")


def page(items: list[T], name: Callable[[T], str], limit: int, after: str) -> Page[T]:
    names = [name(item) for item in items]
    start = names.index(after) + 1 if after in names else 0
    part = items[start : start + limit]
    return Page(tuple(part), name(part[0]) if part else None, name(part[-1]) if part else None, start + limit < len(items))


class FakePlatform(FakeKeys):
    """Everything the façade promises, without a ledger, a broker or a store."""

    def __init__(self, settings: Settings | None = None) -> None:
        super().__init__()
        self.generations = SimpleNamespace(listed=lambda name, *, tenant: ())
        self.settings = settings or Settings()
        self._collections: dict[tuple[str, str], CollectionView] = {}
        self._texts: dict[str, str] = {}
        self._documents: dict[str, DocumentView] = {}
        self._failures: dict[str, FailureView] = {}
        self._runs: dict[str, RunView] = {}
        self._items: dict[str, list[ItemView]] = {}
        self._owners: dict[str, str] = {}
        self.held = False
        self.ingested: list[Incoming] = []
        self.calls: list[tuple[str, Any]] = []
        self.degraded: tuple[str, ...] = ()
        self.deleting = FakeDeleting(self)
        self.fails: Exception | None = None
        self.breaks_after: Exception | None = None
        self.gate: threading.Event | None = None
        self.questions: list[Question] = []

    def __enter__(self) -> FakePlatform:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.calls.append(("close", None))

    # ------------------------------------------------------------ collections

    def create_collection(
        self, name: str, *, chunker: str = "", embedder: str = "", tenant: str = "default", options: Mapping[str, str] | None = None
    ) -> CollectionView:
        existing = self._collections.get((tenant, name))
        if existing is not None:
            if (chunker or existing.chunker) != existing.chunker or (embedder or existing.embedder) != existing.embedder:
                raise Conflict(f"the collection {name!r} exists with other options")
            return existing
        view = CollectionView(name, chunker or "sections", embedder or "local", 8, "sqlite:///store", 1, 1, 0, 0, now())
        self._collections[tenant, name] = view
        return view

    def collections(self, *, tenant: str = "default", limit: int = 100, after: str = "") -> Page[CollectionView]:
        views = sorted((v for (t, _), v in self._collections.items() if t == tenant), key=lambda v: v.name)
        return page(views, lambda v: v.name, limit, after)

    def collection(self, name: str, *, tenant: str = "default") -> CollectionView:
        view = self._collections.get((tenant, name))
        if view is None:
            raise NotFound(f"there is no collection {name!r}")
        owned = [d for d in self._documents.values() if d.collection == name and d.status == "done"]
        return replace(view, documents=len(owned), chunks=sum(d.chunks for d in owned))

    def delete_collection(self, name: str, *, tenant: str = "default") -> int:
        self.collection(name, tenant=tenant)
        gone = [key for key, d in self._documents.items() if d.collection == name]
        for key in gone:
            del self._documents[key]
        del self._collections[tenant, name]
        return len(gone)

    # ------------------------------------------------------------ runs

    def ingest(
        self,
        collection: str,
        items: Iterable[Incoming],
        *,
        lane: Lane = Lane.BULK,
        metadata: Mapping[str, Any] | None = None,
        source: str = "",
        tenant: str = "default",
        options: Mapping[str, str] | None = None,
    ) -> RunView:
        if self.fails is not None:
            raise self.fails
        self.create_collection(collection, tenant=tenant)
        run_id = f"run-{len(self._runs) + 1:04d}"
        counts: dict[str, int] = {"indexed": 0, "unchanged": 0, "skipped": 0, "failed": 0}
        entries: list[ItemView] = []
        failures: list[FailureView] = []
        for item in items:
            self.ingested.append(item)
            outcome, failure = self._take(collection, item, {**(metadata or {}), **item.metadata}, tenant, run_id)
            counts[outcome] += 1
            entries.append(ItemView(document_id(tenant, collection, item.key), item.key, outcome, failure.detail if failure else ""))
            if failure is not None and outcome == "failed":
                failures.append(failure)
        self.calls.append(("ingest", {"lane": lane, "source": source, "options": dict(options or {}), "tenant": tenant}))
        run = RunView(
            run_id, collection, "running" if self.held else "done", len(entries), counts["indexed"], counts["unchanged"], counts["skipped"],
            counts["failed"], 0, 0, counts["indexed"], now(), None if self.held else now(), None if self.held else 0.1,
            {"build": UsageView(total_tokens=7, requests=1)}, {"embed": 1, "llm": 0}, tuple(failures[:100]), lane.value, source,
            {"index": len(entries)} if self.held else {"done": len(entries)},
        )  # fmt: skip
        self._runs[run_id], self._items[run_id], self._owners[run_id] = run, entries, tenant
        return run

    def _take(self, collection: str, item: Incoming, metadata: dict[str, Any], tenant: str, run_id: str) -> tuple[str, FailureView | None]:
        identity = document_id(tenant, collection, item.key)
        if item.problem is not None:
            assert isinstance(item.problem, PipelineError)
            problem = item.problem
            failure = FailureView(identity, item.key, "load", problem.code, problem.detail, problem.hint, 1, now(), collection, run_id, "Traceback …")
            if isinstance(problem, Skipped):
                return "skipped", failure
            self._failures[identity] = failure
            return "failed", failure
        if item.data is not None:
            data = item.data
        else:
            with open(item.path, "rb") as file:
                data = file.read()
        text = data.decode("utf-8", "replace")
        if self._texts.get(identity) == text:
            return "unchanged", None
        self._texts[identity] = text
        self._documents[identity] = DocumentView(
            identity, collection, item.key, item.title or item.key, item.url, item.media_type or "text/plain", "index", "done", 1, 1, len(data),
            metadata, now(),
        )  # fmt: skip
        return "indexed", None

    def release(self, run_id: str) -> None:
        """Let a held run end."""
        run = self._runs[run_id]
        self._runs[run_id] = replace(run, status="done", finished_at=now(), duration_s=0.2, stages={"done": run.discovered})

    def run(self, run_id: str, *, tenant: str | None = None) -> RunView:
        if run_id not in self._runs or tenant not in {None, self._owners[run_id]}:
            raise NotFound(f"there is no run {run_id!r}")
        return self._runs[run_id]

    def runs(self, *, tenant: str = "default", collection: str = "", source: str = "", limit: int = 20, after: str = "") -> Page[RunView]:
        views = [r for r in reversed(self._runs.values()) if not collection or r.collection == collection]
        return page(views, lambda r: r.run_id, limit, after)

    def run_items(self, run_id: str, *, outcome: str = "", stage: str = "", limit: int = 100, after: str = "") -> Page[ItemView]:
        self.run(run_id)
        shown = [i for i in self._items[run_id] if outcome in ("", i.outcome) and stage in ("", i.stage)]
        return page(shown, lambda i: i.document_id, limit, after)

    def batch(self, batch_id: int, *, tenant: str = "default") -> BatchView:
        """The n-th run, as if all of it had gone in one batch."""
        ids = [run_id for run_id, owner in self._owners.items() if owner == tenant]
        if batch_id > len(ids):
            raise NotFound(f"there is no batch {batch_id}")
        run = self._runs[ids[batch_id - 1]]
        members = tuple(BatchDocumentView(i.document_id, i.document, run.collection, run.run_id, "index", "done") for i in self._items[run.run_id])
        return BatchView(
            batch_id, "done", ("load", "parse", "chunk"), "dujiang.parse.bulk", "bulk", 1, "compute@host-1:1:1", run.collection, len(members),
            run.chunks, run.started_at, run.finished_at, 0.1, members,
        )  # fmt: skip

    def _set(self, run_id: str, status: str) -> RunView:
        run = self.run(run_id)
        if run.finished:
            raise Conflict(f"the run {run_id} is finished")
        self._runs[run_id] = replace(run, status=status, finished_at=now() if status == "cancelled" else None)
        return self._runs[run_id]

    def cancel(self, run_id: str) -> RunView:
        return self._set(run_id, "cancelled")

    def pause(self, run_id: str) -> RunView:
        return self._set(run_id, "paused")

    def resume(self, run_id: str) -> RunView:
        return self._set(run_id, "running")

    def wait(self, run_id: str, *, timeout_s: float | None = None, on_progress: Callable[[RunView], None] | None = None) -> RunView:
        until = time.monotonic() + (timeout_s or 30)
        while True:
            run = self.run(run_id)
            if on_progress is not None:
                on_progress(run)
            if run.finished or time.monotonic() > until:
                return run
            threading.Event().wait(0.01)

    # ------------------------------------------------------------ failures and documents

    def failures(
        self, *, tenant: str = "default", collection: str = "", run_id: str = "", code: str = "", stage: str = "", limit: int = 100, after: str = ""
    ) -> Page[FailureView]:
        views = [
            replace(f, traceback=None)
            for f in self._failures.values()
            if collection in ("", f.collection) and run_id in ("", f.run_id) and code in ("", f.code) and stage in ("", f.stage)
        ]
        return page(views, lambda f: f.document_id, limit, after)

    def failure(self, document_id: str, *, tenant: str = "default") -> FailureView:
        if document_id not in self._failures:
            raise NotFound(f"there is no failure of a document {document_id!r}")
        return self._failures[document_id]

    def documents(self, collection: str, *, tenant: str = "default", status: str = "", limit: int = 100, after: str = "") -> Page[DocumentView]:
        self.collection(collection, tenant=tenant)
        views = [d for d in self._documents.values() if d.collection == collection and (not status or d.status == status)]
        return page(views, lambda d: d.document_id, limit, after)

    def document(self, collection: str, document_id: str, *, tenant: str = "default", text: bool = False) -> DocumentView:
        self.collection(collection, tenant=tenant)
        view = self._documents.get(document_id)
        if view is None or view.collection != collection:
            raise NotFound(f"there is no document {document_id!r} in {collection!r}")
        return replace(view, text=self._texts[document_id]) if text else view

    def document_text(self, collection: str, document_id: str, start_char: int = 0, end_char: int | None = None, *, tenant: str = "default") -> str:
        return (self.document(collection, document_id, tenant=tenant, text=True).text or "")[start_char:end_char]

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
        document = ParsedDocument(self.document_text(collection, document_id, tenant=tenant))
        return excerpt(document, document_id, start_char, end_char, most=most, as_of=as_of)

    def delete_document(self, collection: str, document_id: str, *, tenant: str = "default") -> None:
        self.document(collection, document_id, tenant=tenant)
        del self._documents[document_id], self._texts[document_id]

    # ------------------------------------------------------------ questions

    def _hits(self, question: Question) -> tuple[Hit, ...]:
        self.questions.append(question)
        if self.fails is not None:
            raise self.fails
        for name in question.collections:
            self.collection(name, tenant=question.tenant)
        words = question.text.lower().split()
        found: list[Hit] = []
        for view in self._documents.values():
            text = self._texts[view.document_id]
            share = sum(word in text.lower() for word in words) / max(1, len(words))
            if view.collection in question.collections and share > 0:
                found.append(
                    Hit(
                        hashlib.md5(view.document_id.encode()).hexdigest(), view.document_id, 1, 0, view.document, view.title, view.url, text, 0,
                        len(text), share, {"lexical": share, "fused": share}, page=1, line_start=1, line_end=3, heading_path=("Top", "Sub"),
                        metadata=view.metadata, collection=view.collection,
                    )
                )  # fmt: skip
        return tuple(sorted(found, key=lambda hit: -hit.score)[: question.k or 10])

    def search(self, question: Question) -> SearchResult:
        return SearchResult(question.text, question.mode, self._hits(question), (Step("retrieve", 0.01, {"k": question.k}),))

    def ask(self, question: Question) -> Answer:
        hits = self._hits(question)
        if not hits:
            return Answer("", True, "nothing was found that is near enough", (), (), Grounding(0.0), {}, "off", (Step("refuse", 0.0, {}),))
        hit = hits[0]
        text = f"{hit.text} [1]"
        citation = Citation(
            1, hit.chunk_id, hit.document_id, hit.title, hit.url, 1, 1, 3, 0, len(hit.text), hit.text, 0, len(hit.text), hit.collection
        )
        evidence = Evidence(1, hit, hit.text, hit.start, hit.end)
        return Answer(text, False, "", (citation,), (evidence,), Grounding(1.0), {"reader": Usage(5, 6, 11, 1)}, "miss", (Step("llm", 0.0, {}),))

    def stream(self, question: Question) -> Iterator[str | Answer]:
        answer = self.ask(question)
        for position, word in enumerate(answer.text.split(" ")):
            if position and self.gate is not None:
                self.gate.wait(10)
            yield word + " "
            if self.breaks_after is not None:
                raise self.breaks_after
        yield answer

    # ------------------------------------------------------------ the rest

    def hear(self, source_id: str, headers: Mapping[str, str], body: bytes) -> object:
        raise NotFound(f"there is no source {source_id!r}")

    def repair(self, collection: str = "", *, tenant: str = "default", deep: bool = False, dry_run: bool = False) -> RepairView:
        return RepairView(dry_run, 0, 0, 0, 0, ())

    def audit(self, collection: str = "", *, tenant: str = "default", deep: bool = False) -> AuditView:
        views = [self.collection(collection, tenant=tenant)] if collection else list(self.collections(tenant=tenant).data)
        rows = tuple(
            AuditCollection(v.name, self.collection(v.name).documents, self.collection(v.name).chunks, 0, 0, "d" * 64, "", self.degraded)
            for v in views
        )
        return AuditView(not self.degraded, rows)

    def status(self) -> StatusView:
        if self.fails is not None:
            raise self.fails
        queues = {"dujiang.load.bulk": QueueView(0, 0, 0, None, 1)}
        return StatusView(True, "redis://127.0.0.1:1/0", (), queues, {"done": len(self._documents)}, self.degraded)

    def doctor(self) -> list[CheckView]:
        return [CheckView("ledger", True, "reachable"), CheckView("store", not self.degraded, "the store", "start it" if self.degraded else "")]

    def metrics(self) -> str:
        return f"# TYPE dujiang_documents gauge\ndujiang_documents {len(self._documents)}\n"
