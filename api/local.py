"""A Dujiang on this machine: the façade, opened when it is first needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from api.asking import Asking, body
from api.results import Deleted, deleted
from api.system import Ingestion, Json
from pipeline.errors import BadRequest
from pipeline.settings import Settings
from workers.batch_views import BatchView
from workers.views import (
    AuditView,
    CheckView,
    CollectionView,
    DeletedView,
    DocumentView,
    FailureView,
    GenerationView,
    ItemView,
    KeyView,
    LettersView,
    OutstandingView,
    Page,
    ReindexView,
    RepairView,
    ReplayedView,
    RunView,
    Selection,
    StatusView,
    TenantView,
    TombstoneView,
)

if TYPE_CHECKING:
    from pydantic import BaseModel

    from api.sourcing import SourceVerbs
    from pipeline.calibrate import Labelled
    from pipeline.contracts import Question
    from workers.dispatch import Platform
    from workers.tuning_views import CalibrationView

TENANT = "default"
Model = TypeVar("Model", bound="BaseModel")


def open_platform(settings: Settings) -> Platform:
    """The façade, over the system that runs for the data folder if one does; whoever opens it closes it."""
    from workers.dispatch import open_platform as opened

    return opened(settings)


class Local:
    """`System` on this machine."""

    def __init__(self, settings: Settings, platform: Platform | None = None) -> None:
        self.settings, self.where = settings, settings.home
        self._given = platform

    @cached_property
    def platform(self) -> Platform:
        """Opened on first use."""
        return self._given or open_platform(self.settings)

    def close(self) -> None:
        """Close what was opened here; a platform that was handed in stays open."""
        if self._given is None and "platform" in self.__dict__:
            self.platform.close()

    # ------------------------------------------------------------ collections and documents

    def create_collection(self, name: str, *, chunker: str, embedder: str, options: Mapping[str, str]) -> CollectionView:
        return self.platform.create_collection(name, chunker=chunker, embedder=embedder, tenant=TENANT, options=options)

    def collections(self, *, limit: int, after: str) -> Page[CollectionView]:
        return self.platform.collections(tenant=TENANT, limit=limit, after=after)

    def collection(self, name: str) -> CollectionView:
        return self.platform.collection(name, tenant=TENANT)

    def tune_collection(self, name: str, changes: Mapping[str, object]) -> CollectionView:
        self.platform.tunings.tune(name, changes, tenant=TENANT)
        return self.platform.collection(name, tenant=TENANT)

    def calibrate(self, collection: str, questions: Sequence[Labelled], *, cap: float, dry_run: bool) -> CalibrationView:
        return self.platform.tunings.calibrate(collection, questions, cap=cap, dry_run=dry_run, tenant=TENANT)

    def delete_collection(self, name: str) -> Deleted:
        return deleted(name, self.platform.deleting.collection(name, tenant=TENANT))

    def documents(self, collection: str, *, status: str, limit: int, after: str) -> Page[DocumentView]:
        return self.platform.documents(collection, tenant=TENANT, status=status, limit=limit, after=after)

    def document(self, collection: str, document_id: str, *, text: bool) -> DocumentView:
        return self.platform.document(collection, document_id, tenant=TENANT, text=text)

    def delete_documents(self, collection: str, ids: Sequence[str]) -> Deleted:
        return deleted(collection, self.platform.deleting.documents(collection, ids, tenant=TENANT))

    # ------------------------------------------------------------ runs

    def ingest(self, what: Ingestion) -> RunView:
        """Write the ledger, then start what is missing for as long as the run takes; nothing is started when nothing is to do."""
        from api.lanes import lane_for

        run = self.platform.ingest(
            what.collection,
            what.items,
            lane=lane_for(len(what.items), what.lane),
            metadata=what.metadata,
            source=what.source,
            tenant=TENANT,
            options=what.options,
        )
        if run.finished:
            return run
        from workers import runfile
        from workers.session import ensure_running

        idle = not runfile.alive(runfile.read(self.settings.home))
        if idle and what.on_note is not None:
            what.on_note("starting server and workers …" if what.wait else "nothing is running that would work on it: start it with `dujiang up`")
        if not what.wait:
            return run
        with ensure_running(self.settings):
            return self.platform.wait(run.run_id, on_progress=what.on_progress)

    def run(self, run_id: str) -> RunView:
        return self.platform.run(run_id, tenant=TENANT)

    def runs(self, *, collection: str, source: str = "", limit: int, after: str) -> Page[RunView]:
        return self.platform.runs(tenant=TENANT, collection=collection, source=source, limit=limit, after=after)

    def run_items(self, run_id: str, *, outcome: str, stage: str = "", limit: int, after: str) -> Page[ItemView]:
        return self.platform.run_items(run_id, outcome=outcome, stage=stage, limit=limit, after=after)

    def cancel(self, run_id: str) -> RunView:
        return self.platform.cancel(run_id)

    def pause(self, run_id: str) -> RunView:
        return self.platform.pause(run_id)

    def resume(self, run_id: str) -> RunView:
        return self.platform.resume(run_id)

    def batch(self, batch_id: int) -> BatchView:
        return self.platform.batch(batch_id, tenant=TENANT)

    def failures(self, *, collection: str, run_id: str, code: str, stage: str = "", limit: int, after: str) -> Page[FailureView]:
        return self.platform.failures(tenant=TENANT, collection=collection, run_id=run_id, code=code, stage=stage, limit=limit, after=after)

    def failure(self, document_id: str) -> FailureView:
        return self.platform.failure(document_id, tenant=TENANT)

    def selected_failures(self, chosen: Selection) -> LettersView:
        return self.platform.steering.selected(chosen)

    def replay_failures(self, chosen: Selection) -> LettersView:
        return self.platform.steering.replay(chosen)

    def discard_failures(self, chosen: Selection) -> LettersView:
        return self.platform.steering.discard(chosen)

    def hold_collection(self, name: str, *, paused: bool) -> None:
        self.platform.steering.hold_collection(name, paused=paused, tenant=TENANT)

    def cancel_collection(self, name: str) -> Sequence[RunView]:
        return self.platform.steering.cancel_collection(name, tenant=TENANT)

    def generations(self, collection: str) -> Sequence[GenerationView]:
        return self.platform.generations.listed(collection, tenant=TENANT)

    def plan_reindex(self, collection: str, *, embedder: str, chunker: str, options: Mapping[str, str] | None) -> ReindexView:
        return self.platform.generations.plan(collection, embedder=embedder, chunker=chunker, options=options, tenant=TENANT)

    def reindex(self, collection: str, *, embedder: str, chunker: str, options: Mapping[str, str] | None) -> RunView:
        return self.platform.generations.reindex(collection, embedder=embedder, chunker=chunker, options=options, tenant=TENANT)

    def accept_generation(self, collection: str) -> RunView:
        return self.platform.generations.accept(collection, tenant=TENANT)

    def rollback(self, collection: str) -> RunView:
        return self.platform.generations.rollback(collection, tenant=TENANT)

    def wait(self, run: RunView, *, on_progress: Callable[[RunView], None] | None, on_note: Callable[[str], None] | None) -> RunView:
        from api.sourcing import follow
        from workers import runfile
        from workers.session import ensure_running

        if run.finished:
            return run
        if on_note is not None and not runfile.alive(runfile.read(self.settings.home)):
            on_note("starting server and workers …")
        with ensure_running(self.settings):
            return follow(run, self.run, on_progress)

    def tenants(self) -> Sequence[TenantView]:
        return self.platform.steering.tenants()

    def weigh(self, name: str, weight: float | None, most: int | None = None) -> TenantView:
        return self.platform.steering.weigh(name, weight, most)

    # ------------------------------------------------------------ sources

    @property
    def sources(self) -> SourceVerbs:
        from api.sourcing import SourcesHere

        return SourcesHere(self.platform, TENANT)

    def sync(
        self, name: str, *, full: bool, wait: bool, on_progress: Callable[[RunView], None] | None, on_note: Callable[[str], None] | None
    ) -> RunView:
        """Write the run, then start what is missing for as long as it takes."""
        from api.sourcing import follow
        from workers import runfile
        from workers.session import ensure_running

        run = self.sources.sync(name, full=full)
        idle = not runfile.alive(runfile.read(self.settings.home))
        if idle and on_note is not None:
            on_note("starting server and workers …" if wait else "nothing is running that would work on it: start it with `dujiang up`")
        if not wait:
            return run
        with ensure_running(self.settings):
            return follow(run, self.run, on_progress)

    # ------------------------------------------------------------ questions

    def _question(self, text: str, options: Asking, *, ask: bool) -> Question:
        from api.questions import asked, every_collection, question_of
        from api.schemas import AskIn, SearchIn

        names = options.collections or every_collection(self.platform, TENANT)
        if ask:
            return asked(_checked(AskIn, body(text, options, ask=True)), names, TENANT)
        return question_of(_checked(SearchIn, body(text, options, ask=False)), names, TENANT)

    def search(self, text: str, options: Asking) -> Json:
        from pipeline.shapes import search_json

        return search_json(self.platform.search(self._question(text, options, ask=False)), trace=options.trace is not False)

    def ask(self, text: str, options: Asking) -> Json:
        from pipeline.shapes import answer_json

        return answer_json(self.platform.ask(self._question(text, options, ask=True)), trace=bool(options.trace))

    def stream(self, text: str, options: Asking) -> Iterator[str | Json]:
        from pipeline.shapes import answer_json

        for piece in self.platform.stream(self._question(text, options, ask=True)):
            yield piece if isinstance(piece, str) else answer_json(piece, trace=bool(options.trace))

    # ------------------------------------------------------------ the rest

    def repair(self, collection: str, *, deep: bool, dry_run: bool) -> RepairView:
        return self.platform.repair(collection, tenant=TENANT, deep=deep, dry_run=dry_run)

    def delete_tenant(self, name: str, *, dry_run: bool) -> DeletedView:
        return self.platform.deleting.tenant(name, dry_run=dry_run)

    def audit(self, collections: Sequence[str], *, deep: bool = False) -> AuditView:
        if not collections:
            return self.platform.audit(tenant=TENANT, deep=deep)
        views = [self.platform.audit(name, tenant=TENANT, deep=deep) for name in dict.fromkeys(collections)]
        return AuditView(all(view.ok for view in views), tuple(item for view in views for item in view.collections))

    def outstanding(self) -> Sequence[OutstandingView]:
        return self.platform.deleting.outstanding()

    def tombstones(self, *, limit: int, after: str) -> Sequence[TombstoneView]:
        return self.platform.tombstones.listed(limit=limit, after=after)

    def replay_deletions(self, entries: Sequence[TombstoneView], *, dry_run: bool) -> ReplayedView:
        return self.platform.tombstones.replay(entries, dry_run=dry_run)

    def status(self) -> StatusView:
        return self.platform.status()

    def doctor(self) -> list[CheckView]:
        return self.platform.doctor()

    def create_key(self, name: str, *, collections: Sequence[str], permissions: Sequence[str]) -> KeyView:
        return self.platform.create_key(name, collections=tuple(collections), permissions=tuple(permissions), tenant=TENANT)

    def keys(self) -> Sequence[KeyView]:
        return self.platform.keys(tenant=TENANT)

    def revoke_key(self, key_id: str) -> None:
        self.platform.revoke_key(key_id, tenant=TENANT)


def _checked(model: type[Model], value: dict[str, Any]) -> Model:
    """The same checks as over HTTP. Raises BadRequest naming the first wrong option."""
    from pydantic import ValidationError

    from api.problems import fields

    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = fields(error.errors(include_input=False, include_url=False))[0]
        name = first.pointer.strip("/").split("/")[0] or "question"
        raise BadRequest(f"{name}: {first.detail}", pointer=first.pointer, hint="Correct it; --help shows an example.") from error
