"""Counts and durations of HTTP requests, by route template, never by path: ids would make endless series."""

from __future__ import annotations

import time
from typing import cast

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from api.problems import App, Message, Receive, Scope, Send

PREFIX = "/api/v1"


class Requests:
    """The figures of one application."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        labels = ["method", "route", "status"]
        self._count = Counter("dujiang_http_requests", "HTTP requests answered", labels, registry=self._registry)
        self._seconds = Histogram("dujiang_http_request_seconds", "Seconds until an answer began", ["route"], registry=self._registry)

    def add(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one answer; `seconds` until its head was sent."""
        self._count.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def text(self) -> str:
        """Prometheus exposition format."""
        return generate_latest(self._registry).decode()


class Measured:
    """ASGI middleware that fills `Requests`."""

    def __init__(self, app: App, requests: Requests) -> None:
        self._app, self._requests = app, requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.perf_counter()

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                method = str(scope["method"]) if scope["method"] in {"GET", "POST", "PATCH", "PUT", "DELETE", "HEAD"} else "other"
                self._requests.add(method, _route(scope), int(message["status"]), time.perf_counter() - begun)
            await send(message)

        await self._app(scope, receive, watched)


def _route(scope: Scope) -> str:
    template = str(getattr(cast(object, scope.get("route")), "path", "")) or "unmatched"
    # a route of an included router may know its own part only
    if template.startswith("/") and not template.startswith(PREFIX) and PREFIX in str(scope["path"]):
        return PREFIX + template
    return template
