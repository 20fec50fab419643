"""`/mcp`: the MCP server over streamable HTTP, without sessions."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from api import intake, mcp
from api.auth import FORWARDING, authenticate, loopback, need
from api.guard import platform_of, settings_of
from api.mcp_library import Here
from pipeline.errors import Forbidden

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


class McpRoute(APIRoute):
    """Who asks, and from which page, is settled before a byte of the body is read; the SDK answers the rest."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        async def handle(request: Request) -> Response:
            settings, platform = settings_of(request), platform_of(request)
            check_names(request, settings.public_url)
            who = await run_in_threadpool(authenticate, request, platform, public_url=settings.public_url)
            need(who, "read")
            # the first time it takes a second, which other requests should not have to wait
            await run_in_threadpool(mcp.need_sdk)
            body = await intake.read(request, max_bytes=mcp.MAX_BODY)
            return Exchange(Here(platform, who), body.raw)

        return handle


class Exchange(Response):
    """A response that the SDK writes."""

    def __init__(self, library: Here, body: bytes) -> None:
        super().__init__()
        self._library, self._given = library, body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await mcp.exchange(self._library, self._given, scope, receive, send)


def check_names(connection: HTTPConnection, public_url: str) -> None:
    """Raise Forbidden for a request that a web page of somebody else may have caused, whether or not it carries a key.

    A page whose name was re-bound to this machine sends its own name as Host, and any page its own as Origin.
    """
    known = {_name(public_url)} - {""}
    host = _name(f"//{connection.headers.get('host', '')}")
    client = connection.client
    direct = client is not None and loopback(client.host) and not any(name in connection.headers for name in FORWARDING)
    if direct and not (host and (host in known or loopback(host))):
        raise Forbidden(
            "the Host header does not name this machine", hint="Set DUJIANG_PUBLIC_URL to the address that clients use.", code="wrong_host"
        )
    origin = connection.headers.get("origin")
    if origin is None:
        return
    name = _name(origin)
    if not (name and (name in known or loopback(name) or (name == host and not direct))):
        raise Forbidden(
            "the Origin header names another site", hint="Set DUJIANG_PUBLIC_URL to the address that its page is served from.", code="wrong_origin"
        )


def _name(url: str) -> str:
    """The host of a URL, empty where none stands in it."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


router = APIRouter(route_class=McpRoute, tags=["mcp"])


@router.post(
    "/mcp",
    summary="The MCP server (streamable HTTP, without sessions)",
    openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}},
    responses={200: {"content": {"application/json": {}, "text/event-stream": {"schema": {"type": "string"}}}}},
)
def exchange() -> None:
    """One JSON-RPC message of the Model Context Protocol. Tools: list_collections, search, ask, read_source. Needs the extra `mcp`."""
