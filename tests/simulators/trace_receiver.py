"""A receiver of traces: OTLP over HTTP, in this process; keeps every span that arrives."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Span:
    trace: str
    id: str
    parent: str
    """Empty for a root."""
    name: str
    start_ns: int
    end_ns: int
    failed: bool
    attributes: dict[str, str | int]


@dataclass
class Receiver:
    url: str = ""
    spans: list[Span] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)

    def named(self, name: str) -> list[Span]:
        return [span for span in list(self.spans) if span.name == name]


def _spans(body: bytes) -> Iterator[Span]:
    request = ExportTraceServiceRequest()
    request.ParseFromString(body)
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            for one in scope.spans:
                values = {item.key: item.value.string_value or item.value.int_value for item in one.attributes}
                yield Span(
                    one.trace_id.hex(),
                    one.span_id.hex(),
                    one.parent_span_id.hex(),
                    one.name,
                    one.start_time_unix_nano,
                    one.end_time_unix_nano,
                    one.status.code == 2,
                    values,
                )


@contextmanager
def receiving() -> Iterator[Receiver]:
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            found.paths.add(self.path)
            found.spans += _spans(body)
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
