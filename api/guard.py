"""What every route under /api/v1 does before its own work: authenticate, read within limits, answer a repeated POST once."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any, cast

from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from api import intake
from api.auth import authenticate
from pipeline.errors import BadRequest, Unsupported
from pipeline.settings import Settings
from workers.views import Principal

if TYPE_CHECKING:
    from workers.dispatch import Platform

MAX_BODY = 8 * 1024 * 1024
"""Bytes of a body that carries no documents."""

_KEPT = ("content-type", "location")


def platform_of(request: Request) -> Platform:
    """The façade this application was made with."""
    return cast("Platform", request.app.state.platform)


def settings_of(request: Request) -> Settings:
    """The settings this application was made with."""
    return cast(Settings, request.app.state.settings)


def who_of(request: Request) -> Principal:
    """Who was authenticated for this request."""
    return cast(Principal, request.state.principal)


def body_of(request: Request) -> intake.Body:
    """The body as it was read."""
    return cast(intake.Body, request.state.body)


class GuardedRoute(APIRoute):
    """Authentication comes before parsing; `Idempotency-Key` is honoured on POST and PATCH."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        inner = super().get_route_handler()
        carries_documents = self.path.endswith("/documents")

        async def handle(request: Request) -> Response:
            platform, settings = platform_of(request), settings_of(request)
            request.state.principal = await run_in_threadpool(authenticate, request, platform, public_url=settings.public_url)
            if request.method not in {"POST", "PATCH", "PUT"}:
                return await inner(request)
            limit = settings.max_file_mb * 1_000_000 if carries_documents else MAX_BODY
            if not carries_documents:
                _need_json(request)
            body = await intake.read(request, max_bytes=limit)
            request.state.body = body
            if body.form is None:
                request = _replayable(request, body.raw)
            try:
                return await _once(request, body.digest, inner)
            finally:
                if body.form is not None:
                    await body.form.close()

        return handle


def _need_json(request: Request) -> None:
    """Raise Unsupported for a body that is no JSON; a web page of another site cannot send JSON without asking first."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    empty = request.headers.get("content-length", "0") == "0" and "transfer-encoding" not in request.headers
    if not empty and kind != "application/json" and not kind.endswith("+json"):
        raise Unsupported("the body must be JSON", hint="Send it with `Content-Type: application/json`.")


def _replayable(request: Request, raw: bytes) -> Request:
    """A request whose body is read already."""
    sent = False

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if sent:
            return dict(await request.receive())
        sent = True
        return {"type": "http.request", "body": raw, "more_body": False}

    return Request(request.scope, receive)


async def _once(request: Request, digest: str, inner: Callable[[Request], Coroutine[Any, Any, Response]]) -> Response:
    key = request.headers.get("idempotency-key", "")
    if not key:
        return await inner(request)
    if len(key) > 255:
        raise BadRequest("the Idempotency-Key is longer than 255 characters", hint="Send a UUID.")
    ledger = _Remembered(request, key)
    stored = await run_in_threadpool(ledger.begin, f"{digest}?{request.url.query}")
    if stored is not None:
        return stored
    kept = False
    try:
        response = await inner(request)
        if response.status_code < 400:
            response = await ledger.keep(response)
            kept = True
        return response
    finally:
        if not kept:
            await run_in_threadpool(ledger.forget)


class _Remembered:
    """One key's place in the ledger. What is stored is a line of headers, then the body."""

    def __init__(self, request: Request, key: str) -> None:
        who = who_of(request)
        self._platform = platform_of(request)
        self._place = (f"{who.tenant}/{who.key_id or 'local'}", f"{request.method} {request.url.path}", key)

    def begin(self, digest: str) -> Response | None:
        stored = self._platform.remember(*self._place, digest)
        if stored is None:
            return None
        status, content = stored
        head, _, body = content.partition(b"\n")
        return Response(body, status_code=status, headers={**json.loads(head), "Idempotency-Replayed": "true"})

    def forget(self) -> None:
        self._platform.forget(*self._place)

    def _store(self, response: Response, body: bytes) -> None:
        head = json.dumps({name: response.headers[name] for name in _KEPT if name in response.headers})
        self._platform.recall(*self._place, response.status_code, head.encode() + b"\n" + body)

    async def keep(self, response: Response) -> Response:
        if isinstance(response, StreamingResponse):
            response.body_iterator = self._recording(response, cast("AsyncIterator[bytes]", response.body_iterator))
        else:
            await run_in_threadpool(self._store, response, bytes(response.body))
        return response

    async def _recording(self, response: StreamingResponse, source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Store a stream once it is complete; a broken one is forgotten."""
        pieces, complete = list[bytes](), False
        try:
            async for piece in source:
                pieces.append(piece)
                yield piece
            complete = b"event: error\n" not in pieces[-1] if pieces else True
        finally:
            if complete:
                await run_in_threadpool(self._store, response, b"".join(pieces))
            else:
                await run_in_threadpool(self.forget)
