"""From views to HTTP answers: JSON, pages, links."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, TypeVar

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from api.encoding import dumps
from api.guard import settings_of
from api.schemas import ProblemOut
from workers.views import Page, shape

T = TypeVar("T")

LEFT: dict[int | str, dict[str, object]] = {202: {"description": "It is gone for everybody; `Location` tells what still holds something of it."}}
"""The other answer to a DELETE."""

Limit = Annotated[int, Query(ge=1, le=1000, description="Most entries of this page.")]
After = Annotated[str, Query(max_length=500, description="`last_id` of the page before.")]

PROBLEM: dict[int | str, dict[str, object]] = {
    "4XX": {"model": ProblemOut, "description": "Problem (RFC 9457)", "content": {"application/problem+json": {}}},
    "5XX": {"model": ProblemOut, "description": "Problem (RFC 9457)", "content": {"application/problem+json": {}}},
}


def answer(value: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A view, or plain JSON values, as the body."""
    return Response(dumps(shape(value)), status_code=status, headers=dict(headers or {}), media_type="application/json")


def link(request: Request, path: str) -> str:
    """Where something of the API stands: absolute when a public URL is set, else from the host's root."""
    settings = settings_of(request)
    if settings.public_url:
        return f"{settings.public_url.rstrip('/')}/api/v1{path}"
    root = str(request.scope.get("root_path", "")).rstrip("/")
    return f"{root}/api/v1{path}"


def deletion(request: Request, value: object, outstanding: Sequence[str]) -> Response:
    """200 when nothing holds anything of it any more; 202 with where to look, while something does."""
    return answer(value, status=202, headers={"Location": link(request, "/deletions")}) if outstanding else answer(value)


def seen(fetch: Callable[[int, str], Page[T]], keep: Callable[[T], bool], identity: Callable[[T], str], limit: int, after: str) -> Page[T]:
    """A full page of what the caller may see, though the ledger pages over everything."""
    kept = list[T]()
    more = True
    while more and len(kept) <= limit:
        page = fetch(limit, after)
        kept += [item for item in page.data if keep(item)]
        more, after = page.has_more, page.last_id or after
    data = tuple(kept[:limit])
    first, last = (identity(data[0]), identity(data[-1])) if data else (None, None)
    return Page(data, first, last, more or len(kept) > limit)
