"""Documents are replaced by another process while readers ask: every answer holds each document once, whole, in one version."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.contracts import CollectionSpec, Hit, StoreQuery
from pipeline.protocols import Store
from pipeline.stores import open_store
from tests.integration.elasticsearch_documents import new_name
from tests.stored import DIMENSION, lexical, numbered, vector_of
from tests.system import ROOT

DOCUMENTS, PIECES = 6, 3
ROUNDS = 4
"""Versions that each document must have gone through while somebody asked."""
SAID = re.compile(r"paragraph (\d) of document number(\d+) version(\d+)")
QUESTIONS = (
    lexical("paragraph", k=100),
    StoreQuery(vector=vector_of("paragraph"), k=100),
    lexical("paragraph document", k=100, vector=vector_of("anything")),
)
"""By words, by vectors, and by both."""


@pytest.fixture(params=["embedded", "elasticsearch"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store" if request.param == "embedded" else request.getfixturevalue("elasticsearch_url")


@pytest.fixture
def name(url: str) -> Iterator[str]:
    """A collection with the first version of every document."""
    made, store = new_name(), open_store(url, writer=True)
    store.ensure(CollectionSpec(made, DIMENSION))
    store.write(made, [numbered(number) for number in range(DOCUMENTS)])
    yield made
    store.drop(made)
    store.close()


def shown(hits: list[Hit]) -> dict[int, int]:
    """Document → the version that an answer holds of it. Fails where it holds two, a part of one, or one twice."""
    pieces: dict[int, list[tuple[int, int]]] = {}
    for hit in hits:
        said = SAID.fullmatch(hit.text)
        assert said is not None, hit.text
        piece, number, version = map(int, said.groups())
        assert hit.ordinal == piece
        pieces.setdefault(number, []).append((version, piece))
    assert sorted(pieces) == list(range(DOCUMENTS)), "a document is missing"
    for number, held in pieces.items():
        versions = {version for version, _ in held}
        assert len(versions) == 1, f"document {number} is shown in versions {sorted(versions)}"
        assert sorted(piece for _, piece in held) == list(range(PIECES)), f"document {number} is shown in part, or twice"
    return {number: held[0][0] for number, held in pieces.items()}


class Reader(threading.Thread):
    """Asks until it is told to stop, over a connection of its own."""

    def __init__(self, url: str, name: str, query: StoreQuery) -> None:
        super().__init__(daemon=True)
        self._store: Store = open_store(url, writer=False)
        self._name, self._query = name, query
        self.stopping = threading.Event()
        self.answers = 0
        self.seen: dict[int, int] = {}
        self.problem: AssertionError | None = None

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                found = shown(self._store.search(self._name, self._query))
                back = {number: (self.seen[number], version) for number, version in found.items() if version < self.seen.get(number, 0)}
                assert not back, f"versions went back: {back}"
                self.seen, self.answers = found, self.answers + 1
        except AssertionError as error:
            self.problem = error
        finally:
            self._store.close()


def test_a_reader_never_sees_a_gap_a_part_or_two_versions(url: str, name: str) -> None:
    command = [sys.executable, "-m", "tests.stored", url, name, "0", str(DOCUMENTS), "--forever"]
    readers = [Reader(url, name, query) for query in QUESTIONS]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for reader in readers:
            reader.start()
        for line in writer.stdout:
            number, version = map(int, line.split())
            alive = all(reader.is_alive() for reader in readers)
            if not alive or (version > ROUNDS and number == DOCUMENTS - 1 and min(reader.answers for reader in readers) > 20):
                break
        writer.kill()
    for reader in readers:
        reader.stopping.set()
        reader.join(30.0)
        if reader.problem is not None:
            raise reader.problem
    assert all(max(reader.seen.values()) > 1 for reader in readers), "nobody saw a document change"
