"""Collections held back, and the shares of tenants."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api.answers import LEFT, answer, deletion
from api.auth import need, need_write
from api.guard import GuardedRoute, platform_of, who_of
from api.schemas import RepairIn, WeightIn
from workers.views import CollectionView, DeletedView, RepairView, TenantView

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


@router.post("/audit/repair", response_model=RepairView, status_code=202, summary="Mend what an audit finds", tags=["system"])
def repair(request: Request, given: RepairIn) -> Response:
    """Workers do what takes time, in the runs that are named."""
    who = who_of(request)
    if given.collection:
        need_write(who, given.collection)
    else:
        need(who, "admin")
    view = platform_of(request).repair(given.collection, tenant=who.tenant, deep=given.deep, dry_run=given.dry_run)
    return answer(view, status=200 if given.dry_run else 202)


@router.delete("/tenants/{name}", response_model=DeletedView, responses=LEFT, summary="Delete a tenant with all it has", tags=["tenants"])
def delete_tenant(request: Request, name: str, dry_run: bool = False) -> Response:
    need(who_of(request), "admin")
    view = platform_of(request).deleting.tenant(name, dry_run=dry_run)
    return deletion(request, view, view.outstanding)


@router.put("/tenants/{name}", response_model=TenantView, summary="Give a tenant a share", tags=["tenants"])
def weigh_tenant(request: Request, name: str, given: WeightIn) -> Response:
    need(who_of(request), "admin")
    return answer(platform_of(request).steering.weigh(name, given.weight, given.most))
