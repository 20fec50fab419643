"""The model server dies in mid-run and comes back: nobody loses an attempt, and the index is the same."""

from __future__ import annotations

from pathlib import Path

from tests.simulators.model_server import ModelServer
from tests.system import Counts, System, until


def test_a_model_server_away_in_mid_run_is_waited_for_at_no_documents_cost(tmp_path: Path, corpus: Path, undisturbed: Counts) -> None:
    model = ModelServer(dim=64, latency_ms=30).start()
    port = int(model.root.rpartition(":")[2])
    try:
        with System(tmp_path, embedder="openai:stub", embedder_base_url=model.url) as system:
            run = system.ingest(corpus)
            until(lambda: model.stats()["embed"] > 0, 30.0, "the first vectors are made")
            model.stop()
            waiting = "SELECT attempts, waits FROM documents WHERE status = 'retry'"
            rows = until(lambda: system.rows(waiting), 30.0, "documents wait for it")
            assert all(attempts == 0 and waits > 0 for attempts, waits in rows)
            assert not system.platform.failures().data
            model = ModelServer(port, dim=64).start()
            ended = system.finish(run)
            assert system.counts(ended) == undisturbed
    finally:
        model.stop()
