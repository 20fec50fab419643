"""Traces by OpenTelemetry: one for each run of a document, its stages as spans. Off, and nothing of it imported, unless an endpoint is set.

A trace's id derives from document and run, not from chance: whoever works on the document, on whatever host, however often its batch was issued,
adds to the same trace, and nothing has to be remembered.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol

from sqlalchemy import select

from pipeline.contracts import Stage
from pipeline.errors import Unavailable, Unsupported
from pipeline.settings import Settings
from workers import queues
from workers.ledger.engine import Database
from workers.ledger.schema import runs
from workers.ledger.work import Batch, Setback, Work

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

FLUSH_S = 2.0
SEND_S = 2.0
"""For one attempt and all its repetitions; a process that ends waits no longer than this."""
KNOWN_RUNS = 1000


class Spans(Protocol):
    """What a stage tells when it has ended. Safe for threads."""

    def stage(self, batch: Batch, stage: Stage, seconds: float, stopped: Mapping[str, Setback]) -> None:
        """One stage of a batch took `seconds` and has ended now; `stopped` are the documents that did not get through it."""
        ...

    def close(self) -> None: ...


class Nowhere:
    """No traces."""

    def stage(self, batch: Batch, stage: Stage, seconds: float, stopped: Mapping[str, Setback]) -> None:
        pass

    def close(self) -> None:
        pass


def open_spans(settings: Settings, db: Database) -> Spans:
    """Where traces of this process go. Open it after a fork. Raises Unsupported when an endpoint is set and the extra is missing."""
    if not settings.otel_endpoint:
        return Nowhere()
    try:
        return Exported(settings, db)
    except ImportError as error:
        raise Unsupported(
            "traces need a package that is not installed",
            hint="pip install 'dujiang[otel]', or unset DUJIANG_OTEL_ENDPOINT.",
            code="no_opentelemetry",
        ) from error


def trace_ids(document_id: str, run_id: int) -> tuple[int, int]:
    """(trace, root span) of one run of a document; the same everywhere and always."""
    digest = blake2b(f"{run_id}:{document_id}".encode(), digest_size=24).digest()
    return int.from_bytes(digest[:16]) or 1, int.from_bytes(digest[16:]) or 1


class Exported:
    """Spans to an OTLP endpoint over HTTP, in batches, from a thread; a receiver that is away costs spans, not documents."""

    def __init__(self, settings: Settings, db: Database) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from workers.span_ids import Ids

        self._db, self._ratio = db, settings.otel_ratio
        self._ids = Ids()
        self._provider = TracerProvider(resource=Resource.create({"service.name": "dujiang"}), id_generator=self._ids)
        endpoint = settings.otel_endpoint.rstrip("/")
        exporter = OTLPSpanExporter(endpoint=endpoint if endpoint.endswith("/v1/traces") else f"{endpoint}/v1/traces", timeout=SEND_S)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=FLUSH_S * 1000))
        self._tracer: Tracer = self._provider.get_tracer("dujiang")
        self._began: dict[int, float] = {}

    def stage(self, batch: Batch, stage: Stage, seconds: float, stopped: Mapping[str, Setback]) -> None:
        ended = time.time_ns()
        started = ended - int(seconds * 1e9)
        for work in batch.documents:
            setback = stopped.get(work.document_id)
            # A document that an earlier stage of this batch stopped was not in this one.
            if setback is not None and queues.ORDER.index(setback.stage) < queues.ORDER.index(stage):
                continue
            if self._chosen(work):
                self._one(batch, work, stage, started, ended, setback)

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()

    def _chosen(self, work: Work) -> bool:
        trace_id, _ = trace_ids(work.document_id, work.run_id)
        return trace_id & 0xFFFFFFFFFFFFFFFF < self._ratio * 2**64

    def _one(self, batch: Batch, work: Work, stage: Stage, started: int, ended: int, setback: Setback | None) -> None:
        from opentelemetry import trace

        trace_id, root = trace_ids(work.document_id, work.run_id)
        above = trace.SpanContext(trace_id, root, is_remote=True, trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED))
        context = trace.set_span_in_context(trace.NonRecordingSpan(above))
        attributes = {
            "dujiang.run": f"run_{work.run_id}",
            "dujiang.document": work.document_id,
            "dujiang.collection": batch.collection.name,
            "dujiang.tenant": batch.collection.tenant,
            "dujiang.batch": batch.id,
            "dujiang.batch_documents": len(batch.documents),
            "dujiang.token": batch.token,
            "dujiang.attempt": work.attempts + 1,
            "dujiang.worker": batch.owner,
        }
        span = self._tracer.start_span(stage.value, context=context, start_time=started, attributes=attributes)
        _outcome(span, setback)
        span.end(ended)
        final = queues.following(stage) is None and setback is None
        if final or (setback is not None and setback.status != "retry"):
            self._root(trace_id, root, work, ended, setback)

    def _root(self, trace_id: int, root: int, work: Work, ended: int, setback: Setback | None) -> None:
        """The span above the stages, from the beginning of the run to the document's end: what is not covered below was waiting."""
        from opentelemetry.context import Context

        with self._ids.given(trace_id, root):
            attributes = {"dujiang.run": f"run_{work.run_id}", "dujiang.document": work.document_id}
            span = self._tracer.start_span("document", context=Context(), start_time=self._beginning(work.run_id, ended), attributes=attributes)
        _outcome(span, setback)
        span.end(ended)

    def _beginning(self, run_id: int, otherwise: int) -> int:
        if run_id not in self._began:
            try:
                with self._db.read() as connection:
                    found = connection.scalar(select(runs.c.started_at).where(runs.c.id == run_id))
            except Unavailable:
                return otherwise
            if len(self._began) >= KNOWN_RUNS:
                self._began.clear()
            self._began[run_id] = float(found or otherwise / 1e9)
        return min(int(self._began[run_id] * 1e9), otherwise)


def _outcome(span: Span, setback: Setback | None) -> None:
    from opentelemetry.trace import Status, StatusCode

    if setback is None:
        return
    span.set_attribute("dujiang.outcome", setback.status)
    span.set_attribute("dujiang.code", setback.code)
    if setback.status in ("dead", "retry"):
        span.set_status(Status(StatusCode.ERROR, setback.code))
