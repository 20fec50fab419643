"""Documents that every kind of harm is done to, what they come to undisturbed, and a system to harm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulators.model_server import ModelServer
from tests.system import Counts, System, fill

TEXTS, DOCUMENTS = 240, 60


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 small documents: Markdown, which passes three stages in one task, and DOCX, which goes from queue to queue."""
    return fill(tmp_path_factory.mktemp("corpus") / "docs", TEXTS, documents=DOCUMENTS)


@pytest.fixture(scope="session")
def undisturbed(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Counts:
    """What the corpus comes to when nothing happens."""
    system = System(tmp_path_factory.mktemp("undisturbed"))
    counts = system.counts(system.inline(corpus))
    system.close()
    assert (counts.indexed, counts.documents, counts.failed) == (TEXTS + DOCUMENTS, TEXTS + DOCUMENTS, 0)
    return counts


@pytest.fixture(scope="session")
def model() -> Iterator[ModelServer]:
    """A model server that takes its time, so that a worker can be caught waiting for it."""
    with ModelServer(dim=64, latency_ms=60) as server:
        yield server


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, model: ModelServer) -> Iterator[System]:
    """One running system for the harm that it survives. Every test uses a tenant of its own, so that none finds another's work done."""
    with System(tmp_path_factory.mktemp("home"), embedder="openai:stub", embedder_base_url=model.url) as running:
        yield running
