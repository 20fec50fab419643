"""Health, metrics and the API page: open to everybody, and nothing in them comes from another host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from api.answers import answer
from api.guard import platform_of
from api.metrics import Requests
from pipeline.errors import PipelineError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

router = APIRouter(tags=["health"])

_VITAL = ("ledger", "store")
"""Without these nothing can be answered; everything else degrades."""

_POLICY = (
    "default-src 'none'; connect-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "script-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Dujiang API</title>
<link rel="icon" type="image/png" href="{root}/docs/assets/favicon-32x32.png">
<link rel="stylesheet" href="{root}/docs/assets/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="{root}/docs/assets/swagger-ui-bundle.js"></script>
<script src="{root}/docs/start.js"></script>
</body>
</html>
"""

_START = """SwaggerUIBundle({{
  url: "{root}/openapi.json", dom_id: "#swagger-ui", deepLinking: true, validatorUrl: null, persistAuthorization: false,
  presets: [SwaggerUIBundle.presets.apis], layout: "BaseLayout", tryItOutEnabled: true
}});
"""


@router.get("/livez", summary="The process answers")
async def livez() -> Response:
    return answer({"status": "ok"})


@router.get("/healthz", include_in_schema=False)
@router.get("/readyz", summary="Questions can be answered; degraded parts are named")
def readyz(request: Request) -> Response:
    """200 while serving, 503 when the ledger or a store cannot be reached."""
    platform = platform_of(request)
    try:
        degraded = platform.status().degraded
    except PipelineError as error:
        return answer({"status": "unavailable", "degraded": [error.detail]}, status=503, headers={"Retry-After": "5"})
    if any(part.lower().startswith(_VITAL) for part in degraded):
        return answer({"status": "unavailable", "degraded": degraded}, status=503, headers={"Retry-After": "5"})
    return answer({"status": "degraded" if degraded else "ok", "degraded": degraded})


@router.get("/metrics", summary="Prometheus", response_class=PlainTextResponse)
def metrics(request: Request) -> Response:
    requests: Requests = request.app.state.requests
    text = platform_of(request).metrics() + requests.text()
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _root(request: Request) -> str:
    return str(request.scope.get("root_path", "")).rstrip("/")


@router.get("/", include_in_schema=False)
async def home(request: Request) -> Response:
    return RedirectResponse(f"{_root(request)}/docs", status_code=307)


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    return HTMLResponse(_PAGE.format(root=_root(request)), headers={"Content-Security-Policy": _POLICY, "Referrer-Policy": "no-referrer"})


@router.get("/docs/start.js", include_in_schema=False)
async def docs_start(request: Request) -> Response:
    return Response(_START.format(root=_root(request)), media_type="text/javascript")


class _Assets:
    """Swagger UI's own files, found and opened when the page is first looked at."""

    def __init__(self) -> None:
        self._app = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None:
            from starlette.staticfiles import StaticFiles
            from swagger_ui_bundle import swagger_ui_path  # pyright: ignore[reportMissingTypeStubs]

            self._app = StaticFiles(directory=str(swagger_ui_path))
        await self._app(scope, receive, send)


def mount_assets(app: FastAPI) -> None:
    """Serve what the API page needs."""
    app.mount("/docs/assets", _Assets())
