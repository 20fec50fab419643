"""Audit, status, doctor and API keys."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from api import results
from api.answers import answer, link
from api.auth import narrower, need, need_read, visible
from api.guard import GuardedRoute, platform_of, who_of
from api.schemas import KeyIn
from pipeline.errors import Forbidden, NotFound
from workers.views import AuditView, CheckView, KeyView, Page, StatusView

router = APIRouter(route_class=GuardedRoute, tags=["system"])


@router.get("/audit", response_model=AuditView, summary="What the stores really hold")
def audit(
    request: Request,
    collection: Annotated[list[str], Query(description="All that the key may read when left out.")] = [],  # noqa: B006
    deep: Annotated[bool, Query(description="Open every kept output, too.")] = False,
) -> Response:
    who, platform = who_of(request), platform_of(request)
    need(who, "read")
    for name in collection:
        need_read(who, name)
    if not collection:
        whole = platform.audit(tenant=who.tenant, deep=deep)
        parts = tuple(item for item in whole.collections if visible(who, item.name))
        return answer(AuditView(all(not item.differences for item in parts) if who.collections else whole.ok, parts))
    views = [platform.audit(name, tenant=who.tenant, deep=deep) for name in dict.fromkeys(collection)]
    return answer(AuditView(all(view.ok for view in views), tuple(item for view in views for item in view.collections)))


@router.get("/status", response_model=StatusView, summary="Processes, queues and counts")
def status(request: Request) -> Response:
    need(who_of(request), "read")
    return answer(platform_of(request).status())


@router.get("/doctor", response_model=list[CheckView], summary="Is everything there that is needed?")
def doctor(request: Request) -> Response:
    need(who_of(request), "admin")
    return answer(platform_of(request).doctor())


@router.get("/keys", response_model=Page[KeyView], summary="List API keys")
def list_keys(request: Request) -> Response:
    who = who_of(request)
    need(who, "admin")
    keys = tuple(key for key in platform_of(request).keys(tenant=who.tenant) if narrower(who, key.collections, ()))
    first, last = (keys[0].key_id, keys[-1].key_id) if keys else (None, None)
    return answer(Page(keys, first, last, has_more=False))


@router.post("/keys", response_model=KeyView, status_code=201, summary="Create an API key; its secret is shown once")
def create_key(request: Request, body: KeyIn) -> Response:
    who = who_of(request)
    need(who, "admin")
    if not narrower(who, body.collections, body.permissions):
        raise Forbidden("a key cannot create one that reaches further than itself")
    view = platform_of(request).create_key(body.name, collections=tuple(body.collections), permissions=tuple(body.permissions), tenant=who.tenant)
    return answer(view, status=201, headers={"Location": link(request, f"/keys/{view.key_id}"), "Cache-Control": "no-store"})


@router.delete("/keys/{key_id}", response_model=results.Deleted, summary="Revoke an API key")
def revoke_key(request: Request, key_id: str) -> Response:
    who, platform = who_of(request), platform_of(request)
    need(who, "admin")
    if not any(key.key_id == key_id and narrower(who, key.collections, ()) for key in platform.keys(tenant=who.tenant)):
        raise NotFound(f"there is no key {key_id!r}", hint="`GET /api/v1/keys` lists those there are.")
    platform.revoke_key(key_id, tenant=who.tenant)
    return answer(results.Deleted(True, key_id, 0))
