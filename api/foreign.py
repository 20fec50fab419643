"""Routes that speak another product's protocol: authentication comes before parsing here too, but failures have that product's shape."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, cast

import orjson
from fastapi import Depends
from fastapi.security import HTTPBearer
from starlette.requests import Request
from starlette.responses import Response

from api import problems
from api.auth import need, need_read, visible
from api.encoding import dumps
from api.guard import GuardedRoute, body_of, platform_of, who_of
from api.problems import Problem
from api.questions import every_collection
from pipeline.errors import BadRequest, PipelineError

Json = dict[str, Any]

BEARER = Depends(HTTPBearer(auto_error=False))
"""For the API page; who asks is settled before."""


class ForeignRoute(GuardedRoute):
    """As every route of ours, with `shape` for what failed, and `statuses` where the other product has another than ours."""

    shape: ClassVar[Callable[[Problem, PipelineError], Json]]
    statuses: ClassVar[Mapping[int, int]] = MappingProxyType({})

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        inner = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await inner(request)
            except PipelineError as error:
                told = problems.problem(error)
                status = self.statuses.get(told.status, told.status)
                return Response(dumps(type(self).shape(told, error)), status, problems.headers(error), "application/json")

        return handle


def in_words(told: Problem) -> str:
    """What failed and the cure, for protocols that have one field for both."""
    return f"{told.detail}. {told.hint}" if told.hint else told.detail


def body_json(request: Request) -> Json:
    """The body as a JSON object. Raises BadRequest."""
    try:
        value: object = orjson.loads(body_of(request).raw)
    except orjson.JSONDecodeError as error:
        raise BadRequest("the body is not valid JSON", hint="Send a JSON object in UTF-8.") from error
    found = object_of(value)
    if found is None:
        raise BadRequest("the body is not a JSON object", hint="Send a JSON object.")
    return found


def object_of(value: object) -> Json | None:
    """The value where it is a JSON object."""
    return cast("Json", value) if isinstance(value, dict) else None


def list_of(value: object) -> list[Any] | None:
    """The value where it is a JSON list."""
    return cast("list[Any]", value) if isinstance(value, list) else None


def text_of(body: Mapping[str, Any], name: str) -> str:
    """A field that must be text. Raises BadRequest naming it."""
    value = body.get(name)
    if not isinstance(value, str) or not value.strip():
        raise BadRequest(f"{name} is missing, or no text", pointer=f"/{name}", hint=f"Send {name} as text.", code="bad_field")
    return value


def readable(request: Request, names: list[str]) -> list[str]:
    """The collections, if this key may read all of them. Raises Forbidden, NotFound."""
    who = who_of(request)
    need(who, "read")
    for name in names:
        need_read(who, name)
    return names


def all_readable(request: Request) -> list[str]:
    """Every collection that this key may read. Raises Forbidden, NotFound when there is none at all."""
    who = who_of(request)
    need(who, "read")
    return [name for name in every_collection(platform_of(request), who.tenant) if visible(who, name)]
