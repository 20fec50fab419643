"""A Dujiang behind HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

from api import problems
from api.asking import Asking, body
from api.results import Deleted, Outstanding, decode
from api.system import Ingestion, Json
from pipeline.errors import BadRequest, BrokenContract, Unavailable
from workers.batch_views import BatchView
from workers.tuning_views import CalibrationView
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
    shape,
)

if TYPE_CHECKING:
    import httpx

    from api.sourcing import SourceVerbs
    from pipeline.calibrate import Labelled

T = TypeVar("T")

TIMEOUT_S = 120.0
POLL_S = 0.5
PATIENCE_S = 60.0
"""How long a run is followed through answers of "not available", as during a restart."""


class Remote:
    """`System` behind a URL. One connection pool; not for several threads."""

    def __init__(self, url: str, *, api_key: str = "", max_bytes: int = 200_000_000, transport: httpx.BaseTransport | None = None) -> None:
        import httpx

        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise BadRequest(f"{url!r} is not the URL of a Dujiang", hint="DUJIANG_URL looks like https://dujiang.example.com.", code="bad_setting")
        self.where = url.rstrip("/")
        self.max_bytes = max_bytes
        head = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.Client(base_url=f"{self.where}/api/v1", headers=head, timeout=TIMEOUT_S, transport=transport)

    def close(self) -> None:
        self._client.close()

    # ------------------------------------------------------------ the wire

    def send(self, method: str, path: str, **request: Any) -> Any:
        """JSON of an answer. Raises the failure that the server named, or Unavailable."""
        import httpx

        try:
            response = self._client.request(method, path, **request)
        except httpx.HTTPError as error:
            raise self._away(error) from error
        if response.status_code >= 400:
            raise problems.read(response.status_code, response.content, response.headers.get("retry-after"))
        try:
            return response.json()
        except ValueError as error:
            raise BrokenContract(f"{self.where} did not answer with JSON", hint="Is it the address of a Dujiang?") from error

    def _away(self, error: Exception) -> Unavailable:
        return Unavailable(
            f"{self.where} does not answer ({type(error).__name__})", dependency=True, hint="Check DUJIANG_URL, and that the system there is up."
        )

    def _get(self, kind: type[T], path: str, **params: Any) -> T:
        given = {name: value for name, value in params.items() if value not in ("", None)}
        return decode(kind, self.send("GET", path, params=given))

    # ------------------------------------------------------------ collections and documents

    def create_collection(self, name: str, *, chunker: str, embedder: str, options: Mapping[str, str]) -> CollectionView:
        value = {"name": name, "chunker": chunker, "embedder": embedder, "options": dict(options)}
        return decode(CollectionView, self.send("POST", "/collections", json=value))

    def collections(self, *, limit: int, after: str) -> Page[CollectionView]:
        return self._get(Page[CollectionView], "/collections", limit=limit, after=after)

    def collection(self, name: str) -> CollectionView:
        return self._get(CollectionView, f"/collections/{_part(name)}")

    def tune_collection(self, name: str, changes: Mapping[str, object]) -> CollectionView:
        return decode(CollectionView, self.send("PATCH", f"/collections/{_part(name)}", json=dict(changes)))

    def calibrate(self, collection: str, questions: Sequence[Labelled], *, cap: float, dry_run: bool) -> CalibrationView:
        value = {"questions": [asdict(one) for one in questions], "cap": cap, "dry_run": dry_run}
        return decode(CalibrationView, self.send("POST", f"/collections/{_part(collection)}/calibrate", json=value, timeout=None))

    def delete_collection(self, name: str) -> Deleted:
        return decode(Deleted, self.send("DELETE", f"/collections/{_part(name)}"))

    def documents(self, collection: str, *, status: str, limit: int, after: str) -> Page[DocumentView]:
        return self._get(Page[DocumentView], f"/collections/{_part(collection)}/documents", status=status, limit=limit, after=after)

    def document(self, collection: str, document_id: str, *, text: bool) -> DocumentView:
        return self._get(DocumentView, f"/collections/{_part(collection)}/documents/{_part(document_id)}", text="true" if text else "")

    def delete_documents(self, collection: str, ids: Sequence[str]) -> Deleted:
        found = [decode(Deleted, self.send("DELETE", f"/collections/{_part(collection)}/documents/{_part(name)}")) for name in ids]
        outstanding = found[-1].outstanding if found else ()
        return Deleted(True, collection, sum(one.documents for one in found), sum(one.chunks for one in found), outstanding=outstanding)

    # ------------------------------------------------------------ runs

    def ingest(self, what: Ingestion) -> RunView:
        from api.uploading import ingest

        return ingest(self, what)

    def follow(self, run: RunView, what: Ingestion) -> RunView:
        """Ask until the run is finished; a server that restarts meanwhile is waited for."""
        away_since: float | None = None
        while not run.finished:
            time.sleep(POLL_S)
            try:
                run, away_since = self.run(run.run_id), None
            except Unavailable:
                now = time.monotonic()
                away_since = away_since or now
                if now - away_since > PATIENCE_S:
                    raise
            if what.on_progress is not None:
                what.on_progress(run)
        return run

    def run(self, run_id: str) -> RunView:
        return self._get(RunView, f"/runs/{_part(run_id)}")

    def runs(self, *, collection: str, source: str = "", limit: int, after: str) -> Page[RunView]:
        return self._get(Page[RunView], "/runs", collection=collection, source=source, limit=limit, after=after)

    def run_items(self, run_id: str, *, outcome: str, stage: str = "", limit: int, after: str) -> Page[ItemView]:
        return self._get(Page[ItemView], f"/runs/{_part(run_id)}/items", outcome=outcome, stage=stage, limit=limit, after=after)

    def _steer(self, run_id: str, verb: str) -> RunView:
        return decode(RunView, self.send("POST", f"/runs/{_part(run_id)}/{verb}"))

    def cancel(self, run_id: str) -> RunView:
        return self._steer(run_id, "cancel")

    def pause(self, run_id: str) -> RunView:
        return self._steer(run_id, "pause")

    def resume(self, run_id: str) -> RunView:
        return self._steer(run_id, "resume")

    def batch(self, batch_id: int) -> BatchView:
        return self._get(BatchView, f"/batches/{batch_id}")

    def failures(self, *, collection: str, run_id: str, code: str, stage: str = "", limit: int, after: str) -> Page[FailureView]:
        return self._get(Page[FailureView], "/failures", collection=collection, run_id=run_id, code=code, stage=stage, limit=limit, after=after)

    def failure(self, document_id: str) -> FailureView:
        return self._get(FailureView, f"/failures/{_part(document_id)}")

    def selected_failures(self, chosen: Selection) -> LettersView:
        return self._letters("replay", chosen, dry_run=True)

    def replay_failures(self, chosen: Selection) -> LettersView:
        return self._letters("replay", chosen)

    def discard_failures(self, chosen: Selection) -> LettersView:
        return self._letters("discard", chosen)

    def _letters(self, verb: str, chosen: Selection, *, dry_run: bool = False) -> LettersView:
        given = {"document_ids": list(chosen.document_ids), "collections": list(chosen.collections), "run_id": chosen.run_id}
        value = {**given, "code": chosen.code, "stage": chosen.stage, "dry_run": dry_run}
        return decode(LettersView, self.send("POST", f"/failures/{verb}", json=value))

    def hold_collection(self, name: str, *, paused: bool) -> None:
        self.send("POST", f"/collections/{_part(name)}/{'pause' if paused else 'resume'}")

    def cancel_collection(self, name: str) -> Sequence[RunView]:
        return [decode(RunView, run) for run in self.send("POST", f"/collections/{_part(name)}/cancel")["data"]]

    def generations(self, collection: str) -> Sequence[GenerationView]:
        return [decode(GenerationView, one) for one in self.send("GET", f"/collections/{_part(collection)}/generations")["data"]]

    def plan_reindex(self, collection: str, *, embedder: str, chunker: str, options: Mapping[str, str] | None) -> ReindexView:
        value = {"embedder": embedder, "chunker": chunker, "options": options, "dry_run": True}
        return decode(ReindexView, self.send("POST", f"/collections/{_part(collection)}/reindex", json=value))

    def reindex(self, collection: str, *, embedder: str, chunker: str, options: Mapping[str, str] | None) -> RunView:
        value = {"embedder": embedder, "chunker": chunker, "options": options}
        return decode(RunView, self.send("POST", f"/collections/{_part(collection)}/reindex", json=value))

    def accept_generation(self, collection: str) -> RunView:
        return decode(RunView, self.send("POST", f"/collections/{_part(collection)}/reindex", json={"accept_failures": True}))

    def rollback(self, collection: str) -> RunView:
        return decode(RunView, self.send("POST", f"/collections/{_part(collection)}/rollback"))

    def wait(self, run: RunView, *, on_progress: Callable[[RunView], None] | None, on_note: Callable[[str], None] | None) -> RunView:
        from api.sourcing import follow

        return follow(run, self.run, on_progress)

    def tenants(self) -> Sequence[TenantView]:
        return [decode(TenantView, one) for one in self.send("GET", "/tenants")["data"]]

    def weigh(self, name: str, weight: float | None, most: int | None = None) -> TenantView:
        given = {name: value for name, value in (("weight", weight), ("most", most)) if value is not None}
        return decode(TenantView, self.send("PUT", f"/tenants/{_part(name)}", json=given))

    # ------------------------------------------------------------ sources

    @property
    def sources(self) -> SourceVerbs:
        from api.sourcing import SourcesThere

        return SourcesThere(self.send)

    def sync(
        self, name: str, *, full: bool, wait: bool, on_progress: Callable[[RunView], None] | None, on_note: Callable[[str], None] | None
    ) -> RunView:
        from api.sourcing import follow

        run = self.sources.sync(name, full=full)
        return follow(run, self.run, on_progress) if wait else run

    # ------------------------------------------------------------ questions

    def search(self, text: str, options: Asking) -> Json:
        return self.send("POST", "/search", json=body(text, options, ask=False))

    def ask(self, text: str, options: Asking) -> Json:
        return self.send("POST", "/ask", json=body(text, options, ask=True))

    def stream(self, text: str, options: Asking) -> Iterator[str | Json]:
        import httpx

        value = {**body(text, options, ask=True), "stream": True}
        try:
            with self._client.stream("POST", "/ask", json=value) as response:
                if response.status_code >= 400:
                    raise problems.read(response.status_code, response.read(), response.headers.get("retry-after"))
                yield from _pieces(response.iter_lines())
        except httpx.HTTPError as error:
            raise self._away(error) from error

    # ------------------------------------------------------------ the rest

    def audit(self, collections: Sequence[str], *, deep: bool = False) -> AuditView:
        params: dict[str, Any] = {"collection": list(collections), **({"deep": "true"} if deep else {})}
        return decode(AuditView, self.send("GET", "/audit", params=params))

    def repair(self, collection: str, *, deep: bool, dry_run: bool) -> RepairView:
        value = {"collection": collection, "deep": deep, "dry_run": dry_run}
        return decode(RepairView, self.send("POST", "/audit/repair", json=value))

    def delete_tenant(self, name: str, *, dry_run: bool) -> DeletedView:
        return decode(DeletedView, self.send("DELETE", f"/tenants/{_part(name)}", params={"dry_run": "true"} if dry_run else {}))

    def outstanding(self) -> Sequence[OutstandingView]:
        return self._get(Outstanding, "/deletions").data

    def tombstones(self, *, limit: int, after: str) -> Sequence[TombstoneView]:
        return self._get(Page[TombstoneView], "/deletions/log", limit=limit, after=after).data

    def replay_deletions(self, entries: Sequence[TombstoneView], *, dry_run: bool) -> ReplayedView:
        value = {"entries": shape(list(entries)), "dry_run": dry_run}
        return decode(ReplayedView, self.send("POST", "/deletions/replay", json=value))

    def status(self) -> StatusView:
        return self._get(StatusView, "/status")

    def doctor(self) -> list[CheckView]:
        return self._get(list[CheckView], "/doctor")

    def create_key(self, name: str, *, collections: Sequence[str], permissions: Sequence[str]) -> KeyView:
        value = {"name": name, "collections": list(collections), "permissions": list(permissions)}
        return decode(KeyView, self.send("POST", "/keys", json=value))

    def keys(self) -> Sequence[KeyView]:
        return self._get(Page[KeyView], "/keys").data

    def revoke_key(self, key_id: str) -> None:
        self.send("DELETE", f"/keys/{_part(key_id)}")


def _part(text: str) -> str:
    return quote(text, safe="")


def _pieces(lines: Iterator[str]) -> Iterator[str | Json]:
    """Server-sent events of an answer. Raises what an `error` event names, Unavailable when the stream ends early."""
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            value: Json = json.loads(line[6:])
            if name == "error":
                raise problems.read(int(value.get("status", 500)), line[6:].encode())
            yield str(value["text"]) if name == "token" else value
            if name == "answer":
                return
    raise Unavailable("the answer broke off", dependency=True, hint="Ask again.")
