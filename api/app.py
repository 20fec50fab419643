"""The HTTP application: routes, failures, health, the API page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Depends, FastAPI
from fastapi.security import HTTPBearer

from api import (
    openai_compat,
    openapi,
    problems,
    routes_batches,
    routes_collections,
    routes_deletions,
    routes_dify,
    routes_failures,
    routes_generations,
    routes_health,
    routes_hooks,
    routes_mcp,
    routes_questions,
    routes_runs,
    routes_sources,
    routes_steering,
    routes_system,
    routes_tuning,
)
from api.answers import PROBLEM
from api.metrics import Measured, Requests
from pipeline.settings import Settings

if TYPE_CHECKING:
    from workers.dispatch import Platform

_ABOUT = "Documents in, cited answers out. Failures are `application/problem+json`; repeat a POST safely with an `Idempotency-Key`."


def create_app(platform: Platform, settings: Settings | None = None) -> FastAPI:
    """An application around an open platform, which stays the caller's to close.

    Args:
        settings: for limits and addresses; the platform's own when left out.
    """
    chosen = settings or platform.settings
    app = FastAPI(
        title="Dujiang",
        description=_ABOUT,
        version="1",
        docs_url=None,
        redoc_url=None,
        # a redirect would be built from the Host header
        redirect_slashes=False,
        servers=[{"url": chosen.public_url}] if chosen.public_url else None,
    )
    app.state.platform, app.state.settings, app.state.requests = platform, chosen, Requests()
    problems.install(app)
    app.include_router(_versioned())
    app.include_router(routes_health.router)
    app.include_router(routes_hooks.router)
    app.include_router(openai_compat.router)
    app.include_router(routes_dify.router)
    app.include_router(routes_mcp.router)
    routes_health.mount_assets(app)
    app.add_middleware(problems.Boundary)
    app.add_middleware(Measured, requests=app.state.requests)
    if chosen.root_path:
        app.add_middleware(Rooted, root_path=chosen.root_path.rstrip("/"))
    openapi.install(app, routes_collections.MODELS)
    return app


class Rooted:
    """ASGI middleware: the path that a proxy puts before ours, whether or not it strips it from requests."""

    def __init__(self, app: problems.App, root_path: str) -> None:
        self._app, self._root_path = app, root_path

    async def __call__(self, scope: problems.Scope, receive: problems.Receive, send: problems.Send) -> None:
        await self._app({**scope, "root_path": self._root_path} if scope["type"] == "http" else scope, receive, send)


def _versioned() -> APIRouter:
    shown_only = HTTPBearer(auto_error=False, description="Not needed on this machine until the first key exists.")
    router = APIRouter(prefix="/api/v1", dependencies=[Depends(shown_only)], responses=PROBLEM)
    for part in (
        # first, because routes are tried in order, and this one is asked most
        routes_questions,
        routes_collections,
        routes_runs,
        routes_sources,
        routes_failures,
        routes_generations,
        routes_tuning,
        routes_steering,
        routes_deletions,
        routes_batches,
        routes_system,
    ):
        router.include_router(part.router)
    return router
