"""Traces, sent by real workers to a real receiver: one for each run of a document, whoever worked on it and however often it was issued."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("opentelemetry.proto")

from tests.simulators.trace_receiver import Receiver, Span, receiving
from tests.system import ROOT, System, fill, until
from workers import queues
from workers.ledger import batches, losses
from workers.runtime import Runtime
from workers.stage import run_stage
from workers.tracing import trace_ids

STAGES = [stage.value for stage in queues.ORDER]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


def by_trace(spans: list[Span]) -> dict[str, list[Span]]:
    found: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        found[span.trace].append(span)
    return found


def test_every_document_has_one_trace_with_a_span_for_each_stage(receiver: Receiver, tmp_path: Path) -> None:
    folder = fill(tmp_path / "docs", 8, documents=2)
    (folder / "broken.docx").write_bytes(b"PK\x03\x04 no archive")
    with System(tmp_path / "home", otel_endpoint=receiver.url) as system:
        run = system.finish(system.ingest(folder))
        assert (run.indexed, run.failed) == (10, 1)
        ids = {document for (document,) in system.rows("SELECT id FROM documents")}
        until(lambda: len(receiver.named("document")) >= 11, 20.0, "all documents have told their end")
    assert receiver.paths == {"/v1/traces"}
    traces = by_trace(receiver.spans)
    assert set(traces) == {f"{trace_ids(document, 1)[0]:032x}" for document in ids}
    whole = [spans for spans in traces.values() if not any(span.failed for span in spans)]
    assert len(whole) == 10
    for spans in whole:
        (root,) = [span for span in spans if not span.parent]
        stages = sorted((span for span in spans if span.parent), key=lambda span: span.start_ns)
        assert [span.name for span in stages] == STAGES
        assert root.name == "document" and {span.parent for span in stages} == {root.id}
        assert root.start_ns <= stages[0].start_ns and root.end_ns >= stages[-1].end_ns
        assert {span.attributes["dujiang.run"] for span in spans} == {"run_1"}
        assert all(span.attributes["dujiang.batch"] and span.attributes["dujiang.token"] == 1 for span in stages)
    (failed,) = [spans for spans in traces.values() if any(span.failed for span in spans)]
    assert sorted(span.name for span in failed) == ["document", "load", "parse"]
    assert "station" not in str([span.attributes for span in receiver.spans]), "spans name no document and hold no content"


def test_a_document_that_is_issued_again_stays_in_its_trace(receiver: Receiver, tmp_path: Path) -> None:
    alone = System(tmp_path / "home", otel_endpoint=receiver.url)
    runtime = alone.platform.runtime
    alone.ingest(fill(tmp_path / "docs", 2))
    (first,) = _formed(runtime)
    assert batches.claim(runtime.db, first.batch_id, first.token, "dead:1:1", lease_s=60.0, deadline_s=60.0) is not None
    halves = losses.expire(runtime.db, first.batch_id, first.token, reason="it died")
    for issue in halves:
        run_stage(issue.batch_id, issue.token, runtime)
    alone.close()
    traces = by_trace(receiver.spans)
    assert len(traces) == 2
    assert {len({span.attributes["dujiang.batch"] for span in spans}) for spans in traces.values()} == {1}
    documents = {str(span.attributes["dujiang.document"]) for span in receiver.spans}
    assert set(traces) == {f"{trace_ids(document, 1)[0]:032x}" for document in documents}


def _formed(runtime: Runtime):
    from workers.feeder import windows
    from workers.ledger import forming

    return forming.form(runtime.db, windows(runtime.profile, processes=1, threads=1))


@pytest.mark.parametrize(("ratio", "traced"), [(0.0, 0), (1.0, 6)])
def test_only_the_wanted_share_of_documents_is_traced(receiver: Receiver, tmp_path: Path, ratio: float, traced: int) -> None:
    alone = System(tmp_path / "home", otel_endpoint=receiver.url, otel_ratio=ratio)
    alone.inline(fill(tmp_path / "docs", 6))
    alone.close()
    assert len(by_trace(receiver.spans)) == traced


def test_a_receiver_that_is_away_costs_no_document(tmp_path: Path) -> None:
    alone = System(tmp_path / "home", otel_endpoint="http://127.0.0.1:9")
    assert alone.inline(fill(tmp_path / "docs", 3)).indexed == 3
    alone.close()


def test_nothing_of_it_is_imported_where_no_endpoint_is_set(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.system import System, fill;"
        f"s = System(Path({str(tmp_path / 'home')!r})); s.inline(fill(Path({str(tmp_path / 'docs')!r}), 2)); s.close();"
        "print([name for name in sys.modules if name.startswith(('opentelemetry.sdk.trace', 'opentelemetry.exporter'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"
