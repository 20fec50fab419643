"""The verbs on sources, whether the Dujiang is on this machine or behind HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from api.results import Deleted, decode, deleted
from pipeline.errors import Unavailable
from workers.source_views import AbsentView, SourceKindView, SourceStatusView, SourceView
from workers.views import CheckView, Page, RunView

if TYPE_CHECKING:
    from workers.dispatch import Platform

POLL_S = 0.3
PATIENCE_S = 60.0
"""How long a run is followed through answers of "not available", as during a restart."""


@dataclass(frozen=True, slots=True)
class SourceChange:
    """What a source is told; None leaves a thing as it is."""

    options: Mapping[str, str] = field(default_factory=dict[str, str])
    """Secrets among them: the kind knows which they are."""
    cron: str | None = None
    timezone: str | None = None
    jitter_s: float | None = None
    forget_deleted: bool = False


class SourceVerbs(Protocol):
    """Every failure is a PipelineError."""

    def kinds(self) -> list[SourceKindView]: ...
    def list(self, *, limit: int, after: str) -> Page[SourceView]: ...
    def create(self, name: str, kind: str, collection: str, told: SourceChange) -> SourceView: ...
    def show(self, name: str) -> SourceView: ...
    def update(self, name: str, told: SourceChange) -> SourceView: ...
    def delete(self, name: str, *, keep_documents: bool) -> Deleted: ...
    def validate(self, name: str) -> list[CheckView]: ...
    def sync(self, name: str, *, full: bool) -> RunView: ...
    def status(self, name: str) -> SourceStatusView: ...
    def pause(self, name: str) -> SourceView: ...
    def resume(self, name: str) -> SourceView: ...
    def absent(self, name: str, *, limit: int, after: str) -> Page[AbsentView]: ...
    def prune(self, name: str) -> int: ...


class SourcesHere:
    """`SourceVerbs` on this machine, for one tenant."""

    def __init__(self, platform: Platform, tenant: str) -> None:
        self._verbs, self._deleting, self._tenant = platform.sources, platform.deleting, tenant

    def kinds(self) -> list[SourceKindView]:
        return self._verbs.kinds()

    def list(self, *, limit: int, after: str) -> Page[SourceView]:
        return self._verbs.list(limit=limit, after=after, tenant=self._tenant)

    def create(self, name: str, kind: str, collection: str, told: SourceChange) -> SourceView:
        return self._verbs.create(
            name,
            kind,
            collection,
            options=told.options,
            cron=told.cron or "",
            timezone=told.timezone or "UTC",
            jitter_s=told.jitter_s or 0.0,
            tenant=self._tenant,
        )

    def show(self, name: str) -> SourceView:
        return self._verbs.show(name, tenant=self._tenant)

    def update(self, name: str, told: SourceChange) -> SourceView:
        return self._verbs.update(
            name,
            options=told.options,
            cron=told.cron,
            timezone=told.timezone,
            jitter_s=told.jitter_s,
            forget_deleted=told.forget_deleted,
            tenant=self._tenant,
        )

    def delete(self, name: str, *, keep_documents: bool) -> Deleted:
        return deleted(name, self._deleting.source(name, keep_documents=keep_documents, tenant=self._tenant))

    def validate(self, name: str) -> list[CheckView]:
        return self._verbs.validate(name, tenant=self._tenant)

    def sync(self, name: str, *, full: bool) -> RunView:
        return self._verbs.sync(name, full=full, tenant=self._tenant)

    def status(self, name: str) -> SourceStatusView:
        return self._verbs.status(name, tenant=self._tenant)

    def pause(self, name: str) -> SourceView:
        return self._verbs.pause(name, tenant=self._tenant)

    def resume(self, name: str) -> SourceView:
        return self._verbs.resume(name, tenant=self._tenant)

    def absent(self, name: str, *, limit: int, after: str) -> Page[AbsentView]:
        return self._verbs.absent(name, limit=limit, after=after, tenant=self._tenant)

    def prune(self, name: str) -> int:
        return self._verbs.prune(name, tenant=self._tenant)


class SourcesThere:
    """`SourceVerbs` behind HTTP. `send` gives the JSON of an answer, or raises what the server named."""

    def __init__(self, send: Callable[..., Any]) -> None:
        self._send = send

    def _at(self, name: str, verb: str = "") -> str:
        return f"/sources/{quote(name, safe='')}{verb}"

    def kinds(self) -> list[SourceKindView]:
        return decode(list[SourceKindView], self._send("GET", "/source-kinds"))

    def list(self, *, limit: int, after: str) -> Page[SourceView]:
        return decode(Page[SourceView], self._send("GET", "/sources", params={"limit": limit, "after": after}))

    def create(self, name: str, kind: str, collection: str, told: SourceChange) -> SourceView:
        value = {"name": name, "kind": kind, "collection": collection, **_body(told)}
        return decode(SourceView, self._send("POST", "/sources", json=value))

    def show(self, name: str) -> SourceView:
        return decode(SourceView, self._send("GET", self._at(name)))

    def update(self, name: str, told: SourceChange) -> SourceView:
        value = _body(told) | ({"forget_deleted": True} if told.forget_deleted else {})
        return decode(SourceView, self._send("PATCH", self._at(name), json=value))

    def delete(self, name: str, *, keep_documents: bool) -> Deleted:
        params = {"keep_documents": "true"} if keep_documents else {}
        return decode(Deleted, self._send("DELETE", self._at(name), params=params))

    def validate(self, name: str) -> list[CheckView]:
        return decode(list[CheckView], self._send("POST", self._at(name, "/validate")))

    def sync(self, name: str, *, full: bool) -> RunView:
        return decode(RunView, self._send("POST", self._at(name, "/sync"), json={"full": full}))

    def status(self, name: str) -> SourceStatusView:
        return decode(SourceStatusView, self._send("GET", self._at(name, "/status")))

    def pause(self, name: str) -> SourceView:
        return decode(SourceView, self._send("POST", self._at(name, "/pause")))

    def resume(self, name: str) -> SourceView:
        return decode(SourceView, self._send("POST", self._at(name, "/resume")))

    def absent(self, name: str, *, limit: int, after: str) -> Page[AbsentView]:
        return decode(Page[AbsentView], self._send("GET", self._at(name, "/prune"), params={"limit": limit, "after": after}))

    def prune(self, name: str) -> int:
        return int(self._send("POST", self._at(name, "/prune"), json={"approve": True})["documents"])


def _body(told: SourceChange) -> dict[str, object]:
    value: dict[str, object] = {"options": dict(told.options)}
    given = {"cron": told.cron, "timezone": told.timezone, "jitter_s": told.jitter_s}
    return value | {name: item for name, item in given.items() if item is not None}


def follow(run: RunView, look: Callable[[str], RunView], on_progress: Callable[[RunView], None] | None) -> RunView:
    """Look at a run until it has finished, or waits for a person; a server that restarts meanwhile is waited for."""
    away_since: float | None = None
    while not run.finished and run.status != "paused":
        time.sleep(POLL_S)
        try:
            run, away_since = look(run.run_id), None
        except Unavailable:
            away_since = away_since or time.monotonic()
            if time.monotonic() - away_since > PATIENCE_S:
                raise
        if on_progress is not None:
            on_progress(run)
    return run
