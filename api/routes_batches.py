"""Batches: the numbers that Flower and the logs show, and the documents they stood for."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from starlette.requests import Request
from starlette.responses import Response

from api.answers import answer
from api.auth import need, visible
from api.guard import GuardedRoute, platform_of, who_of
from pipeline.errors import NotFound
from workers.batch_views import BatchView

router = APIRouter(route_class=GuardedRoute, tags=["runs"])


@router.get("/batches/{batch_id}", response_model=BatchView, summary="What a batch's number stood for")
def show_batch(request: Request, batch_id: Annotated[int, Path(ge=1, le=2**63 - 1)]) -> Response:
    """Closed batches are kept for seven days."""
    who = who_of(request)
    need(who, "read")
    view = platform_of(request).batch(batch_id, tenant=who.tenant)
    if not visible(who, view.collection):
        raise NotFound(f"there is no batch {batch_id}", hint="`GET /api/v1/runs/{id}` has the documents of a run.", code="batch_not_found")
    return answer(view)
