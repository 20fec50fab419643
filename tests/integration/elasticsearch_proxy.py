"""A proxy in front of a real Elasticsearch that can watch, alter, refuse or cut off single requests."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urlsplit

import orjson


class CutOff(Exception):
    """Raised by a rule: the connection closes without an answer."""


@dataclass
class Request:
    """One request on its way; `body` may be replaced by a rule."""

    method: str
    path: str
    body: bytes

    @property
    def lines(self) -> list[dict[str, object]]:
        return [orjson.loads(line) for line in self.body.splitlines() if line]

    @property
    def is_bulk(self) -> bool:
        return "/_bulk" in self.path


Rule = Callable[["Request", Callable[["Request"], bytes]], "bytes | None"]
"""(request, forward) → the answer to give instead, with status 200; None lets the request through."""


@dataclass
class Proxy:
    """`rule` decides on each request; `seen` keeps them all."""

    url: str
    rule: Rule | None = None
    seen: list[Request] = field(default_factory=list)


@contextmanager
def proxied(store_url: str) -> Iterator[Proxy]:
    """A proxy to the server of a store URL."""
    target = urlsplit(store_url.removeprefix("elasticsearch+")).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one(self) -> None:
            request = Request(self.command, self.path, self.rfile.read(int(self.headers.get("content-length") or 0)))
            proxy.seen.append(request)

            def forward(changed: Request) -> bytes:
                return self.ask(changed)[2]

            try:
                answer = proxy.rule(request, forward) if proxy.rule else None
                status, kind, content = self.ask(request) if answer is None else (200, "application/json", answer)
            except CutOff:
                self.close_connection = True
                self.connection.close()
                return
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("x-elastic-product", "Elasticsearch")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def ask(self, request: Request) -> tuple[int, str, bytes]:
            connection = http.client.HTTPConnection(target, timeout=60)
            wanted = {name: self.headers[name] for name in ("content-type", "accept", "authorization") if self.headers[name]}
            try:
                connection.request(request.method, request.path, request.body or None, wanted)
                answer = connection.getresponse()
                return answer.status, answer.headers.get("content-type", ""), answer.read()
            finally:
                connection.close()

        do_GET = do_POST = do_PUT = do_DELETE = handle_one

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    proxy = Proxy(f"elasticsearch+http://127.0.0.1:{server.server_address[1]}")
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
