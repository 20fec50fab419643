"""Builds of a collection: reindex and rollback."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api.answers import answer
from api.auth import need_read, need_write
from api.guard import GuardedRoute, platform_of, who_of
from api.schemas import ReindexIn
from workers.views import RunView

router = APIRouter(route_class=GuardedRoute, tags=["collections"])


@router.get("/collections/{name}/generations", summary="Builds of a collection, oldest first")
def list_generations(request: Request, name: str) -> Response:
    who = who_of(request)
    need_read(who, name)
    return answer({"data": platform_of(request).generations.listed(name, tenant=who.tenant)})


@router.post("/collections/{name}/reindex", response_model=RunView, status_code=202, summary="Build a collection anew from kept bytes")
def reindex(request: Request, name: str, given: ReindexIn) -> Response:
    """It answers as it is until the new generation is whole."""
    who, builds = who_of(request), platform_of(request).generations
    need_write(who, name)
    if given.accept_failures:
        return answer(builds.accept(name, tenant=who.tenant), status=202)
    if given.dry_run:
        return answer(builds.plan(name, embedder=given.embedder, chunker=given.chunker, options=given.options, tenant=who.tenant))
    run = builds.reindex(name, embedder=given.embedder, chunker=given.chunker, options=given.options, tenant=who.tenant)
    return answer(run, status=202)


@router.post("/collections/{name}/rollback", response_model=RunView, status_code=202, summary="Return to the generation that answered before")
def rollback(request: Request, name: str) -> Response:
    who = who_of(request)
    need_write(who, name)
    return answer(platform_of(request).generations.rollback(name, tenant=who.tenant), status=202)
