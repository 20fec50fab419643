"""What deletions have left to be done, and deletions done again after a restore."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api import results
from api.answers import After, Limit, answer, deletion
from api.auth import need
from api.guard import GuardedRoute, platform_of, who_of
from api.schemas import ReplayIn
from workers.views import Page, ReplayedView, TombstoneView

router = APIRouter(route_class=GuardedRoute, tags=["system"])


@router.get("/deletions", response_model=results.Outstanding, summary="What deletions have left to be done")
def deletions(request: Request) -> Response:
    """By kind and without names; empty when nothing holds anything of what was deleted."""
    need(who_of(request), "read")
    return answer(results.Outstanding(tuple(platform_of(request).deleting.outstanding())))


@router.get("/deletions/log", response_model=Page[TombstoneView], summary="What was deleted, by ids that tell nothing, to be kept beside a backup")
def log(request: Request, limit: Limit = 1000, after: After = "") -> Response:
    """The first page holds everything that is not a document, too."""
    need(who_of(request), "admin")
    found = tuple(platform_of(request).tombstones.listed(limit=limit, after=after))
    documents = [one.id for one in found if one.kind == "document"]
    return answer(Page(found, found[0].id if found else None, documents[-1] if documents else None, len(documents) == limit))


@router.post("/deletions/replay", response_model=ReplayedView, summary="Delete again what a restored system still has")
def replay(request: Request, body: ReplayIn) -> Response:
    """Of the entries of a log: what is there and was deleted after the backup goes, what came later stays. Safe to repeat."""
    need(who_of(request), "admin")
    entries = [TombstoneView(one.kind, one.id, one.number, one.at, one.of) for one in body.entries]
    view = platform_of(request).tombstones.replay(entries, dry_run=body.dry_run)
    return deletion(request, view, view.outstanding)
