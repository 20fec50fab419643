"""Documents that every kind of harm is done to, what they come to undisturbed, and a system to harm."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.chaos.proof import Begin, Reference, Trial
from tests.chaos.strikes import recovered
from tests.simulators.model_server import ModelServer
from tests.system import Counts, System, fill

TEXTS, DOCUMENTS = 240, 60
SEED = "DUJIANG_CHAOS_SEED"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is marked `full` is for `make chaos`."""
    if config.getoption("--chaos-full"):
        return
    later = [item for item in items if item.get_closest_marker("full")]
    if later:
        config.hook.pytest_deselected(items=later)
        items[:] = [item for item in items if item not in later]


def seed() -> int:
    """Of every choice that is left to chance; DUJIANG_CHAOS_SEED has the same choices made again."""
    # Processes that share the tests between them must choose alike.
    return int(os.environ.get(SEED) or random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID")).randrange(10**6))


@pytest.fixture(scope="session")
def full(pytestconfig: pytest.Config) -> bool:
    """True for `make chaos`: the long form."""
    return bool(pytestconfig.getoption("--chaos-full"))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 small documents: Markdown, which passes three stages in one task, and DOCX, which goes from queue to queue."""
    return fill(tmp_path_factory.mktemp("corpus") / "docs", TEXTS, documents=DOCUMENTS)


@pytest.fixture(scope="session")
def model() -> Iterator[ModelServer]:
    """A model server that takes its time, so that a worker can be caught waiting for it."""
    with ModelServer(dim=64, latency_ms=60) as server:
        yield server


@pytest.fixture(scope="session")
def reference(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """What the corpus comes to when nothing happens, and what it asks of the model server."""
    with ModelServer(dim=64) as server:
        system = System(tmp_path_factory.mktemp("undisturbed"), embedder="openai:stub", embedder_base_url=server.url)
        counts = system.counts(system.inline(corpus))
        system.close()
        stats = server.stats()
    assert (counts.indexed, counts.documents, counts.failed) == (TEXTS + DOCUMENTS, TEXTS + DOCUMENTS, 0)
    return Reference(counts, stats["embed"], stats["inputs"])


@pytest.fixture(scope="session")
def undisturbed(reference: Reference) -> Counts:
    return reference.counts


@pytest.fixture(scope="session")
def begin(corpus: Path, reference: Reference, model: ModelServer) -> Begin:
    """Begins a run over the corpus; what it gives proves at the end that nothing came of the harm."""
    make = partial(Trial, corpus, reference, model)
    return lambda system, tenant: make(system, tenant).begin()


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory, model: ModelServer) -> Iterator[System]:
    with System(tmp_path_factory.mktemp("home"), embedder="openai:stub", embedder_base_url=model.url) as running:
        yield running


@pytest.fixture
def system(home: System) -> System:
    """One running system for the harm that it survives. Every test uses a tenant of its own, so that none finds another's work done."""
    recovered(home)
    return home
