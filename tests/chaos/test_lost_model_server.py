"""The model server at fault in every way, in mid-run: what passes is waited for at no document's cost, what does not is a reason."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.proof import Reference, Trial, balanced, failures_say_why, nothing_left
from tests.simulators.model_server import ModelServer
from tests.system import Counts, System, until

PATIENCE_S = 1.5


@pytest.fixture(scope="module")
def moody() -> Iterator[ModelServer]:
    """A model server of this module's own, to be put out of order."""
    with ModelServer(dim=64, latency_ms=30) as server:
        yield server


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory, moody: ModelServer) -> Iterator[System]:
    home = tmp_path_factory.mktemp("home")
    with System(home, embedder="openai:stub", embedder_base_url=moody.url, request_timeout_s=PATIENCE_S) as running:
        yield running


@pytest.fixture
def well(moody: ModelServer) -> ModelServer:
    moody.clear()
    moody.config(dim=64, latency_ms=30)
    return moody


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


PASSING: dict[str, dict[str, object]] = {
    "a storm of 429 with Retry-After": {"fail_429_rate": 0.7, "retry_after": "1"},
    "every second answer a 500": {"fail_500_rate": 0.5},
    "no answer": {"hang": True},
    "broken connections": {"drop": True},
}


@pytest.mark.parametrize("fault", [pytest.param(name, marks=pytest.mark.full if number else ()) for number, name in enumerate(PASSING)])
def test_a_fault_that_passes_costs_no_document_an_attempt(patient: System, well: ModelServer, corpus: Path, reference: Reference, fault: str) -> None:
    tenant = f"fault-{list(PASSING).index(fault)}"
    well.config(**PASSING[fault])
    trial = Trial(corpus, reference, well, patient, tenant).begin()
    waited = "SELECT attempts FROM documents WHERE tenant = ? AND waits > 0"
    rows = until(lambda: patient.rows(waited, tenant), 30.0, "documents wait")
    assert {attempts for (attempts,) in rows} == {0}
    began = time.monotonic()
    until(lambda: time.monotonic() > began + PATIENCE_S, 10.0, "time passes")
    well.config(fail_429_rate=0.0, fail_500_rate=0.0, retry_after="", hang=False, drop=False)
    trial.prove(seconds=120.0, waste=None)


@pytest.mark.full
def test_two_in_a_hundred_refused_and_one_broken_cost_next_to_nothing(patient: System, well: ModelServer, corpus: Path, reference: Reference) -> None:
    """What answered may be asked for again only where its neighbour in the batch was refused."""
    well.config(fail_429_rate=0.02, fail_500_rate=0.01)
    trial = Trial(corpus, reference, well, patient, "trickle").begin()
    trial.prove(seconds=120.0, waste=None)


LASTING: dict[str, tuple[dict[str, object], set[str]]] = {
    "an answer that is cut off": ({"garbage": True}, {"bad_vectors"}),
    "vectors of another dimension": ({"other_dimension": 32}, {"dimension", "conflict", "bad_vectors", "broken_contract"}),
}


@pytest.mark.parametrize("fault", [pytest.param(name, marks=pytest.mark.full if number else ()) for number, name in enumerate(LASTING)])
def test_a_fault_of_the_answer_is_a_reason_and_the_next_run_brings_everything(
    patient: System, well: ModelServer, corpus: Path, reference: Reference, fault: str
) -> None:
    tenant = f"lasting-{list(LASTING).index(fault)}"
    config, codes = LASTING[fault]
    trial = Trial(corpus, reference, well, patient, tenant).begin()
    trial.reached(1)
    well.config(**config)
    spoilt = patient.finish(trial.run)
    balanced(spoilt)
    nothing_left(patient)
    failures_say_why(patient, tenant, spoilt.failed)
    found = {failure.code for failure in patient.platform.failures(tenant=tenant, limit=1000).data}
    assert found <= codes, found
    well.config(garbage=False, other_dimension=0)
    again = Trial(corpus, reference, well, patient, tenant).begin()
    again.run = patient.finish(again.run)
    assert again.run.indexed + again.run.unchanged == reference.counts.indexed
    assert patient.audit(tenant=tenant).digest == reference.counts.digest
