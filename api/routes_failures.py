"""Dead letters: listed, shown, replayed, discarded."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from api.answers import After, Limit, answer, seen
from api.auth import need, need_read, need_write, visible
from api.guard import GuardedRoute, platform_of, who_of
from api.schemas import SelectionIn
from pipeline.errors import NotFound
from workers.views import FailureView, LettersView, Page, Selection

router = APIRouter(route_class=GuardedRoute, tags=["failures"])

Collection = Annotated[str, Query(description="Only of this collection.")]


@router.get("/failures", response_model=Page[FailureView], summary="List failures")
def list_failures(
    request: Request,
    collection: Collection = "",
    run_id: Annotated[str, Query(description="Only of this run.")] = "",
    code: Annotated[str, Query(description="Only with this code.")] = "",
    stage: Annotated[str, Query(description="Only what failed there.")] = "",
    limit: Limit = 100,
    after: After = "",
) -> Response:
    who, platform = who_of(request), platform_of(request)
    need(who, "read")
    if collection:
        need_read(who, collection)
    return answer(
        seen(
            lambda count, start: platform.failures(
                tenant=who.tenant, collection=collection, run_id=run_id, code=code, stage=stage, limit=count, after=start
            ),
            lambda item: visible(who, item.collection),
            lambda item: item.document_id,
            limit,
            after,
        )
    )


@router.get("/failures/{document_id}", response_model=FailureView, summary="One failure, with every attempt, and its traceback if it was a bug")
def show_failure(request: Request, document_id: str) -> Response:
    who = who_of(request)
    need(who, "read")
    failure = platform_of(request).failure(document_id, tenant=who.tenant)
    if not visible(who, failure.collection):
        raise NotFound(f"there is no failure of a document {document_id!r}")
    return answer(failure)


def _chosen(request: Request, given: SelectionIn) -> Selection:
    """What the caller may change of what it named."""
    who = who_of(request)
    need(who, "write")
    for name in given.collections:
        need_write(who, name)
    names = tuple(given.collections) or tuple(who.collections)
    return Selection(who.tenant, tuple(given.document_ids), names, given.run_id, given.code, given.stage)


@router.post("/failures/replay", response_model=LettersView, status_code=202, summary="Try failed documents again, as runs of their own")
def replay_failures(request: Request, given: SelectionIn) -> Response:
    steering, chosen = platform_of(request).steering, _chosen(request, given)
    return answer(steering.selected(chosen) if given.dry_run else steering.replay(chosen), status=202)


@router.post("/failures/discard", response_model=LettersView, summary="Take failed documents off the list")
def discard_failures(request: Request, given: SelectionIn) -> Response:
    steering, chosen = platform_of(request).steering, _chosen(request, given)
    return answer(steering.selected(chosen) if given.dry_run else steering.discard(chosen))
