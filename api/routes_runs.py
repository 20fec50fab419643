"""Runs."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from api import events
from api.answers import After, Limit, answer, seen
from api.auth import need, need_read, need_write, visible
from api.guard import GuardedRoute, platform_of, who_of
from pipeline.errors import NotFound
from workers.views import FailureView, ItemView, Page, RunView

router = APIRouter(route_class=GuardedRoute, tags=["runs"])

Collection = Annotated[str, Query(description="Only of this collection.")]
Source = Annotated[str, Query(description="Only of the source with this name.")]
Outcome = Literal["", "pending", "indexed", "unchanged", "skipped", "failed", "cancelled"]


def _run(request: Request, run_id: str) -> RunView:
    """The run, when the caller may see its collection. Raises NotFound."""
    who = who_of(request)
    need(who, "read")
    run = platform_of(request).run(run_id, tenant=who.tenant)
    if not visible(who, run.collection):
        raise NotFound(f"there is no run {run_id!r}", hint="`GET /api/v1/runs` lists those there are.")
    return run


def _own(request: Request, run_id: str) -> None:
    """Raise unless the caller may change the run."""
    who = who_of(request)
    need(who, "write")
    run = platform_of(request).run(run_id, tenant=who.tenant)
    if not visible(who, run.collection):
        raise NotFound(f"there is no run {run_id!r}", hint="`GET /api/v1/runs` lists those there are.")
    need_write(who, run.collection)


@router.get("/runs", response_model=Page[RunView], summary="List runs, newest first")
def list_runs(request: Request, collection: Collection = "", source: Source = "", limit: Limit = 20, after: After = "") -> Response:
    who, platform = who_of(request), platform_of(request)
    need(who, "read")
    if collection:
        need_read(who, collection)
    return answer(
        seen(
            lambda count, start: platform.runs(tenant=who.tenant, collection=collection, source=source, limit=count, after=start),
            lambda item: visible(who, item.collection),
            lambda item: item.run_id,
            limit,
            after,
        )
    )


@router.get("/runs/{run_id}", response_model=RunView, summary="The balance of a run")
def show_run(request: Request, run_id: str) -> Response:
    return answer(_run(request, run_id))


@router.get("/runs/{run_id}/events", summary="Follow a run as server-sent events", response_class=StreamingResponse)
def follow_run(request: Request, run_id: str, last_event_id: Annotated[str, Header()] = "") -> Response:
    """`progress` at each change and `finished` at the end, both with the whole run; comments keep the connection open."""
    run, platform = _run(request, run_id), platform_of(request)
    return events.stream(events.run_events(run, lambda: platform.run(run_id), last_id=last_event_id))


@router.get("/runs/{run_id}/items", response_model=Page[ItemView], summary="The documents behind each number of a run")
def run_items(
    request: Request,
    run_id: str,
    outcome: Outcome = "",
    stage: Annotated[str, Query(description="Only what ended, or is, at this stage.")] = "",
    limit: Limit = 100,
    after: After = "",
) -> Response:
    _run(request, run_id)
    return answer(platform_of(request).run_items(run_id, outcome=outcome, stage=stage, limit=limit, after=after))


@router.get("/runs/{run_id}/failures", response_model=Page[FailureView], summary="The failures of a run")
def run_failures(request: Request, run_id: str, code: str = "", limit: Limit = 100, after: After = "") -> Response:
    run, who = _run(request, run_id), who_of(request)
    page = platform_of(request).failures(tenant=who.tenant, collection=run.collection, run_id=run_id, code=code, limit=limit, after=after)
    return answer(page)


@router.post("/runs/{run_id}/cancel", response_model=RunView, summary="Cancel what is not done yet")
def cancel_run(request: Request, run_id: str) -> Response:
    _own(request, run_id)
    return answer(platform_of(request).cancel(run_id))


@router.post("/runs/{run_id}/pause", response_model=RunView, summary="Start no more documents of this run")
def pause_run(request: Request, run_id: str) -> Response:
    _own(request, run_id)
    return answer(platform_of(request).pause(run_id))


@router.post("/runs/{run_id}/resume", response_model=RunView, summary="Go on with a paused run")
def resume_run(request: Request, run_id: str) -> Response:
    _own(request, run_id)
    return answer(platform_of(request).resume(run_id))
