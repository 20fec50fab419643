"""Where sources send their events. They cannot carry our key: each connector checks the signature of its own kind."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from api import intake
from api.guard import platform_of

router = APIRouter(tags=["sources"])

MAX_EVENT = 1_000_000


@router.post("/hooks/{source_id}", summary="An event of a source")
async def event(request: Request, source_id: str) -> Response:
    """Answers with what the source wants to hear, which is mostly nothing; an event that is not genuine is refused."""
    body = await intake.read(request, max_bytes=MAX_EVENT)
    heard = await run_in_threadpool(platform_of(request).hear, source_id, dict(request.headers), body.raw)
    return Response(heard.answer or b"{}", media_type="application/json")
