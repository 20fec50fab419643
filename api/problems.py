"""Failures as RFC 9457 problems, and back: the HTTP boundary.

Importing this module loads nothing but the error tree, because the command line prints problems too.
"""

from __future__ import annotations

import json
import logging
import math
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast

from pipeline import errors as tree
from pipeline.errors import PipelineError

log = logging.getLogger("dujiang.api")

MEDIA_TYPE = "application/problem+json"

STATUS: Mapping[type[PipelineError], int] = {
    tree.BadRequest: 400,
    tree.Unauthorised: 401,
    tree.Forbidden: 403,
    tree.NotFound: 404,
    tree.Conflict: 409,
    tree.Gone: 410,
    tree.TooLarge: 413,
    tree.Unsupported: 415,
    tree.Malformed: 422,
    tree.RateLimited: 429,
    tree.QuotaExhausted: 429,
    tree.BrokenContract: 502,
    tree.Garbled: 502,
    tree.Unavailable: 503,
    tree.Retryable: 503,
    tree.Skipped: 409,
    tree.Rejected: 422,
    tree.PipelineError: 500,
}
"""The nearest class in the method resolution order counts."""

EXIT: Mapping[type[PipelineError], int] = {
    tree.BadRequest: 2,
    tree.Unauthorised: 4,
    tree.Forbidden: 4,
    tree.RateLimited: 7,
    tree.QuotaExhausted: 7,
    tree.PipelineError: 1,
}

TITLES: Mapping[int, str] = {
    400: "Bad request",
    401: "Not authenticated",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    410: "Gone",
    413: "Too large",
    415: "Unsupported",
    422: "Cannot be processed",
    429: "Too many requests",
    500: "Internal error",
    502: "Bad answer from a dependency",
    503: "Unavailable",
}

BY_STATUS: Mapping[int, type[tree.PipelineError]] = {
    400: tree.BadRequest,
    401: tree.Unauthorised,
    403: tree.Forbidden,
    404: tree.NotFound,
    405: tree.BadRequest,
    409: tree.Conflict,
    410: tree.Gone,
    413: tree.TooLarge,
    415: tree.Unsupported,
    422: tree.BadRequest,
    429: tree.RateLimited,
    502: tree.BrokenContract,
}


@dataclass(frozen=True, slots=True)
class FieldError:
    """One wrong field: `pointer` is its JSON pointer in the body, or ``/name`` of a query parameter."""

    pointer: str
    detail: str


@dataclass(frozen=True, slots=True)
class Problem:
    """Body of every failed answer. `stage` and `document` are empty where none is concerned."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    hint: str
    document: str = ""
    stage: str = ""
    errors: tuple[FieldError, ...] = ()
    instance: str = ""
    """Id under which the log holds the traceback; only for unexpected failures."""

    def json(self) -> dict[str, object]:
        """Plain JSON values; `instance` only where there is one."""
        value: dict[str, object] = asdict(self)
        if not self.instance:
            del value["instance"]
        return value


def _nearest(table: Mapping[type[PipelineError], int], error: PipelineError) -> int:
    for kind in type(error).__mro__:
        if kind in table:
            return table[kind]
    return table[PipelineError]


def make(status: int, detail: str, *, code: str, hint: str, **more: Any) -> Problem:
    """A problem with the title that belongs to its status."""
    return Problem(f"urn:dujiang:problem:{code}", TITLES.get(status, "Error"), status, detail, code, hint, **more)


def problem(error: PipelineError) -> Problem:
    """What a caller is told about a deliberate failure."""
    status = _nearest(STATUS, error)
    fields: tuple[FieldError, ...] = ()
    if isinstance(error, tree.BadRequest):
        if error.pointer:
            fields = (FieldError(error.pointer, error.detail),)
        if error.pointer or error.code == "idempotency_mismatch":
            status = 422
    stage = str(getattr(error, "stage", ""))
    return make(status, error.detail, code=error.code, hint=error.hint, document=error.document, stage=stage, errors=fields)


def exit_code(error: PipelineError) -> int:
    """Exit code of the command line: 2 wrong usage, 4 not allowed, 7 rate limited, else 1."""
    return _nearest(EXIT, error)


def headers(error: PipelineError) -> dict[str, str]:
    """Headers that belong to the status: who must authenticate how, and when to come back (whole seconds)."""
    if isinstance(error, tree.Unauthorised):
        return {"WWW-Authenticate": 'Bearer realm="dujiang"'}
    after: float | None = None
    if isinstance(error, tree.QuotaExhausted) and error.until is not None:
        after = (error.until - datetime.now(UTC)).total_seconds()
    elif isinstance(error, tree.Retryable):
        after = error.after
        if after is None and isinstance(error, tree.RateLimited):
            after = 1.0
    return {} if after is None else {"Retry-After": str(max(1, math.ceil(after)))}


def retry_after(value: str | None) -> float | None:
    """Seconds of a Retry-After header, which holds seconds or a date; None when it says nothing readable."""
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        until = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, (until - datetime.now(UTC)).total_seconds()) if until.tzinfo else None


def read(status: int, body: bytes, retry: str | None = None) -> PipelineError:
    """The failure that a remote system reported, as the class of its code, else of its status."""
    try:
        parsed: object = json.loads(body)
    except ValueError:
        parsed = None
    value = cast("dict[str, object]", parsed) if isinstance(parsed, dict) else {}
    code, hint = str(value.get("code") or ""), str(value.get("hint") or "")
    detail = str(value.get("detail") or f"the server answered {status}")
    document = str(value.get("document") or "")
    kind = _codes().get(code) or BY_STATUS.get(status) or (tree.Unavailable if status >= 500 else tree.Rejected)
    if issubclass(kind, tree.RateLimited):
        return kind(detail, after=retry_after(retry), hint=hint, code=code)
    if issubclass(kind, tree.QuotaExhausted):
        return kind(detail, hint=hint, code=code)
    if issubclass(kind, tree.BadRequest):
        return kind(detail, pointer=_pointer(value.get("errors")), hint=hint, code=code)
    if issubclass(kind, tree.Unavailable):
        return kind(detail, dependency=True, after=retry_after(retry), hint=hint, code=code, document=document)
    return kind(detail, hint=hint, code=code, document=document)


def _codes() -> dict[str, type[PipelineError]]:
    return {kind.code: kind for kind in STATUS}


def _pointer(value: object) -> str:
    items = cast("list[object]", value) if isinstance(value, list) else []
    first = items[0] if items else None
    return str(cast("dict[str, object]", first).get("pointer") or "") if isinstance(first, dict) else ""


def fields(problems: Sequence[Mapping[str, Any]]) -> tuple[FieldError, ...]:
    """Pydantic's list of errors as JSON pointers, without the input that was wrong."""
    found: list[FieldError] = []
    for item in problems:
        place = [str(part) for part in item.get("loc", ())]
        if place and place[0] in {"body", "query", "path", "header"}:
            place = place[1:]
        escaped = (part.replace("~", "~0").replace("/", "~1") for part in place)
        message = str(item.get("msg", "is wrong"))
        if item.get("type") == "extra_forbidden":
            message = "unknown field"
        found.append(FieldError("".join(f"/{part}" for part in escaped), message))
    return tuple(found)


def invalid(problems: Sequence[Mapping[str, Any]]) -> Problem:
    """422 that names every wrong field."""
    if problems and problems[0].get("type") == "json_invalid":
        return make(400, "the body is not valid JSON", code="bad_request", hint="Send valid JSON in UTF-8.")
    wrong = fields(problems)
    named = "; ".join(f"{item.pointer or '/'}: {item.detail}" for item in wrong[:5])
    return make(422, f"the request has wrong fields ({named})", code="invalid_request", hint="Correct the fields that `errors` names.", errors=wrong)


Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Boundary:
    """ASGI middleware: whatever was not foreseen becomes a 500 with an id; its traceback goes to the log only."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = streaming = False

        async def watched(message: Message) -> None:
            nonlocal started, streaming
            if message["type"] == "http.response.start":
                started = True
                streaming = any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in message["headers"])
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception:
            incident = secrets.token_hex(8)
            log.exception("unexpected failure %s in %s %s", incident, scope.get("method"), scope.get("path"))
            if streaming:
                line = json.dumps(unexpected(incident).json())
                await send({"type": "http.response.body", "body": f"event: error\ndata: {line}\n\n".encode()})
            elif started:
                raise
            else:
                await send_problem(unexpected(incident), send)


def unexpected(incident: str) -> Problem:
    """What is said about a bug: only where its traceback is to be found."""
    return make(
        500,
        f"an unexpected failure, logged as {incident}",
        code="internal_error",
        hint="Look for this id in the server's log, then report it.",
        instance=f"urn:dujiang:incident:{incident}",
    )


async def send_problem(value: Problem, send: Send) -> None:
    """Answer with a problem below the framework."""
    body = json.dumps(value.json()).encode()
    head = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": value.status, "headers": head})
    await send({"type": "http.response.body", "body": body})


def install(app: Any) -> None:
    """Let a FastAPI application answer every failure as a problem."""
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import Response

    def answer(value: Problem, more: Mapping[str, str] | None = None) -> Response:
        body = json.dumps(value.json(), ensure_ascii=False).encode("utf-8", "backslashreplace")
        return Response(body, status_code=value.status, headers=dict(more or {}), media_type=MEDIA_TYPE)

    async def deliberate(_request: Request, error: Exception) -> Response:
        assert isinstance(error, PipelineError)
        return answer(problem(error), headers(error))

    async def wrong_fields(_request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return answer(invalid(cast("Sequence[Mapping[str, Any]]", error.errors())))

    async def framework(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return answer(_of_framework(error.status_code, request.url.path, request.method, error.detail), error.headers)

    app.add_exception_handler(PipelineError, deliberate)
    app.add_exception_handler(RequestValidationError, wrong_fields)
    app.add_exception_handler(HTTPException, framework)


def _of_framework(status: int, path: str, method: str, detail: str) -> Problem:
    match status:
        case 404:
            return make(404, f"there is nothing at {path}", code="not_found", hint="The paths there are stand at /docs.")
        case 405:
            return make(405, f"{path} does not answer {method}", code="method_not_allowed", hint="The header Allow names the methods it answers.")
        case _:
            kind = BY_STATUS.get(status)
            code = kind.code if kind else f"http_{status}"
            return make(status, detail, code=code, hint=kind.hint if kind else "Correct the request.")
