"""Ids for spans: by chance, except where one is given."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

from opentelemetry.sdk.trace.id_generator import RandomIdGenerator


class Ids(RandomIdGenerator):
    """OpenTelemetry lets nobody name the id of a new root span, but asks for it in the thread that makes the span."""

    def __init__(self) -> None:
        self._local = threading.local()

    @contextmanager
    def given(self, trace_id: int, span_id: int) -> Generator[None]:
        """A span that this thread begins in the block has these ids."""
        self._local.ids = (trace_id, span_id)
        try:
            yield
        finally:
            self._local.ids = None

    def generate_trace_id(self) -> int:
        ids = getattr(self._local, "ids", None)
        return super().generate_trace_id() if ids is None else int(ids[0])

    def generate_span_id(self) -> int:
        ids = getattr(self._local, "ids", None)
        return super().generate_span_id() if ids is None else int(ids[1])
