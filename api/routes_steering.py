"""Collections held back, and the shares of tenants."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api.answers import answer
from api.auth import need, need_write
from api.guard import GuardedRoute, platform_of, who_of
from api.schemas import WeightIn
from workers.views import CollectionView, TenantView

router = APIRouter(route_class=GuardedRoute)


@router.post("/collections/{name}/pause", response_model=CollectionView, summary="Begin nothing new for a collection", tags=["collections"])
def pause_collection(request: Request, name: str) -> Response:
    return _hold(request, name, paused=True)


@router.post("/collections/{name}/resume", response_model=CollectionView, summary="Go on with a paused collection", tags=["collections"])
def resume_collection(request: Request, name: str) -> Response:
    return _hold(request, name, paused=False)


def _hold(request: Request, name: str, *, paused: bool) -> Response:
    who, platform = who_of(request), platform_of(request)
    need_write(who, name)
    platform.steering.hold_collection(name, paused=paused, tenant=who.tenant)
    return answer(platform.collection(name, tenant=who.tenant))


@router.post("/collections/{name}/cancel", summary="Cancel every run of a collection that has not ended", tags=["collections"])
def cancel_collection(request: Request, name: str) -> Response:
    who = who_of(request)
    need_write(who, name)
    return answer({"data": platform_of(request).steering.cancel_collection(name, tenant=who.tenant)})


@router.get("/tenants", summary="Shares of tenants in the workers", tags=["tenants"])
def list_tenants(request: Request) -> Response:
    need(who_of(request), "admin")
    return answer({"data": platform_of(request).steering.tenants()})


@router.put("/tenants/{name}", response_model=TenantView, summary="Give a tenant a share", tags=["tenants"])
def weigh_tenant(request: Request, name: str, given: WeightIn) -> Response:
    need(who_of(request), "admin")
    return answer(platform_of(request).steering.weigh(name, given.weight))
