"""The store of one machine: a folder of SQLite files with full text, exact vectors and the documents themselves."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from pipeline.contracts import CollectionSpec, Hit, IndexedDocument, ParsedDocument, Section, Span, StoreAudit, StoreQuery, Vectors
from pipeline.errors import BrokenContract, Conflict, NotFound, Unavailable
from pipeline.protocols import NO_FENCE, WriteOutcome
from pipeline.stores import embedded_read as reading
from pipeline.stores import embedded_search as searching
from pipeline.stores import embedded_write as writing
from pipeline.stores.embedded_files import Files, told, transaction
from pipeline.stores.embedded_graph import EmbeddedGraph, forget_removed
from pipeline.stores.embedded_sql import Sql
from pipeline.stores.vectors import Matrix, Resident

SLICE = 200
"""Documents deleted in one transaction: the log and the memory of a big removal stay small."""
RESIDENT_BYTES = 2 << 30
"""Vectors kept in memory; those of the collection that was not searched for longest go first."""
REMEMBERED = 50_000
"""Term frequencies kept for one state of a collection."""


@dataclass(frozen=True, slots=True)
class State:
    """The collection's counters as one transaction sees them."""

    dimension: int
    next: int
    changes: int
    removals: int
    chunks: int
    made: int


@dataclass(slots=True)
class Known:
    """What this process remembers of one file."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    made: int = 0
    resident: Resident | None = None
    counted: tuple[int, int] = (0, 0)
    """(made, changes) that `frequencies` hold for."""
    frequencies: dict[str, int] = field(default_factory=dict[str, int])


class EmbeddedStore:
    """`Store` on SQLite. Safe to use from several threads and processes, also after a fork.

    Args:
        path_or_url: a folder, or ``sqlite:///absolute/folder``. Nothing is created before `ensure`.
        writer: False opens for reading only: every write is a Conflict.
    """

    def __init__(self, path_or_url: str, *, writer: bool = True) -> None:
        self._files = Files(path_or_url, writer=writer)
        self._lock = threading.Lock()
        self._known: dict[str, Known] = {}
        self._graph = EmbeddedGraph(self._files)

    def graph(self) -> EmbeddedGraph:
        """The graphs in the same files."""
        return self._graph

    def ensure(self, spec: CollectionSpec) -> None:
        """Create the collection where it is missing. Raises Conflict when it exists with another dimension."""
        self._check_writer()
        try:
            connection = self._files.connect(spec.name)
        except NotFound:
            self._files.create(spec.name, spec.dimension)
            connection = self._files.connect(spec.name)
        with told(self._files.path(spec.name)):
            present = _state(connection).dimension
        if present != spec.dimension:
            raise Conflict(
                f"collection {spec.name} holds vectors of {present} dimensions, not {spec.dimension}",
                hint="Build a new generation of the collection.",
            )

    def write(self, collection: str, documents: Sequence[IndexedDocument]) -> list[WriteOutcome]:
        """Make each document's version visible and remove older ones, all in one transaction. Repeating it changes nothing.

        Raises: BrokenContract before anything is written, when a vector's dimension is not the collection's or a count differs.
        """
        self._check_writer()
        connection = self._files.connect(collection)
        with told(self._files.path(collection)):
            prepared = writing.prepare(documents, _state(connection).dimension)
            with self._writing(connection, collection):
                return writing.write(connection, prepared)

    def delete(self, collection: str, document_ids: Sequence[str], *, fence: Mapping[str, int] = NO_FENCE) -> int:
        """Remove documents whole, `SLICE` in a transaction; returns how many existed. Unknown ids, and an unknown collection, are no error."""
        self._check_writer()
        try:
            connection = self._files.connect(collection)
        except NotFound:
            return 0
        names, removed = list(dict.fromkeys(document_ids)), 0
        with told(self._files.path(collection)):
            for start in range(0, len(names), SLICE):
                with self._writing(connection, collection):
                    removed += writing.withdraw(connection, names[start : start + SLICE], fence)
            if removed:
                connection.execute("PRAGMA incremental_vacuum").fetchall()
        return removed

    def search(self, collection: str, query: StoreQuery) -> list[Hit]:
        """Candidates of the lexical and the semantic side, united, with both scores; best first, ties by (key, ordinal).

        With both sides, best is the sum of BM25 divided by its maximum and the cosine. `Hit.score` is left at 0.
        The best k carry a highlight.
        """
        known = self._remembered(collection)
        with ExitStack() as stack:
            with known.lock:
                # begun under the lock, so that no thread sees vectors of a later state than its own
                connection, state = stack.enter_context(self._reading(collection))
                matrix = self._matrix(collection, known, connection, state, query)
            terms = searching.terms_of(query)
            if terms and state.chunks > searching.COMMON:
                terms = searching.telling(terms, self._frequencies(known, connection, state, [term for _, term in terms]), state.chunks)
            sides = searching.candidates(connection, query, terms, matrix) if query.k > 0 else {}
            shown = reading.Shown(connection, collection, query, state.dimension)
            places = shown.places({one.chunk for side in sides.values() for one in side})
            return [shown.hit(one, rank) for rank, one in enumerate(searching.ordered(sides, query.k, places))]

    def chunks(self, collection: str, places: Sequence[tuple[str, int]], limits: StoreQuery) -> list[Hit]:
        """The chunks at (document id, ordinal), in that order; what is not there, or not let through, is left out."""
        with self._reading(collection) as (connection, state):
            found = searching.at_places(connection, limits, places)
            shown = reading.Shown(connection, collection, limits, state.dimension)
            shown.places(found)
            return [shown.hit(searching.Candidate(chunk, {}), limits.k) for chunk in found]

    def frequencies(self, collection: str, terms: Sequence[str]) -> tuple[int, Mapping[str, int]]:
        """(number of chunks, chunks holding each term) over words and grams; remembered until the collection changes."""
        known = self._remembered(collection)
        with self._reading(collection) as (connection, state):
            return state.chunks, self._frequencies(known, connection, state, terms)

    def vectors(self, collection: str, document_id: str) -> tuple[tuple[str, ...], Vectors]:
        """Hash of `search_text` and vector of each chunk of the visible version, shape (n, d), exactly as written; empty when unknown."""
        with self._reading(collection) as (connection, state):
            try:
                document, count, _ = reading.head(connection, collection, document_id)
            except NotFound:
                return (), np.zeros((0, state.dimension), dtype=np.float32)
            return reading.hashes(connection, document, count), reading.vectors(connection, document, count, state.dimension)

    def document(self, collection: str, document_id: str) -> ParsedDocument:
        """The visible version's parsed text with sections and tables. Raises NotFound."""
        with self._reading(collection) as (connection, _):
            document, _, length = reading.head(connection, collection, document_id)
            return reading.parsed(connection, document, length)

    def text(self, collection: str, document_id: str, start: int = 0, end: int | None = None) -> str:
        """The visible version's parsed text between two offsets, which count as in a Python slice. Raises NotFound."""
        with self._reading(collection) as (connection, _):
            document, _, length = reading.head(connection, collection, document_id)
            first, last, _ = slice(start, end).indices(length)
            return reading.Texts(connection).slice(document, first, last)

    def sections(self, collection: str, document_id: str, start: int = 0, end: int | None = None) -> tuple[Section, ...]:
        """The sections that touch the span. Raises NotFound."""
        with self._reading(collection) as (connection, _):
            document, _, length = reading.head(connection, collection, document_id)
            return reading.touching(reading.layout(connection, document).sections, start, length if end is None else end)

    def spans(self, collection: str, document_id: str) -> tuple[tuple[str, Span], ...]:
        """(chunk id, span) of each chunk of the visible version, in order; empty when unknown."""
        with self._reading(collection) as (connection, _):
            try:
                document, count, _ = reading.head(connection, collection, document_id)
            except NotFound:
                return ()
            return reading.spans(connection, document, count)

    def audit(self, collection: str) -> StoreAudit:
        """Count and hash the rows themselves, in one point of time; texts are hashed anew. Counters are not trusted."""
        with self._reading(collection) as (connection, state):
            return reading.audit(connection, state.dimension)

    def versions(self, collection: str) -> Mapping[str, int]:
        """Document id → visible version. Raises NotFound."""
        with self._reading(collection) as (connection, _):
            return {str(name): cast("int", version) for name, version in connection.execute("SELECT document_id, version FROM documents")}

    def collections(self) -> list[str]:
        """Names of the collections that are there, in order."""
        return self._files.names()

    def drop(self, collection: str) -> None:
        """Remove the collection with its file. Unknown names are no error; a process that is reading it goes on until its call ends."""
        self._check_writer()
        self._files.remove(collection)
        with self._lock:
            self._known.pop(collection, None)

    def expunge(self, collection: str) -> None:
        """Merge the text index, which forgets the terms of removed documents for good, empty the log, and give free pages back to the disk.

        Raises Unavailable when a reader kept the log from being emptied: then call again.
        """
        self._check_writer()
        try:
            connection = self._files.connect(collection)
        except NotFound:
            return
        with told(self._files.path(collection)):
            with self._writing(connection, collection):
                # FTS5's own secure-delete does nothing for a table without content: only a merge drops the terms
                connection.execute("INSERT INTO terms (terms) VALUES ('optimize')")
                forget_removed(connection)
            connection.execute("PRAGMA incremental_vacuum").fetchall()
            ((busy, *_),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        if busy:
            raise Unavailable(f"the log of collection {collection} is being read", dependency=True, hint="Ask again in a moment.", code="store_busy")

    def close(self) -> None:
        """Close the files and forget the vectors; a later call opens them again."""
        self._files.close()
        with self._lock:
            self._known.clear()

    def _check_writer(self) -> None:
        if not self._files.writer:
            raise Conflict("this store was opened for reading only", hint="Open it with writer=True.")

    def _remembered(self, collection: str) -> Known:
        """Last used, last in order."""
        with self._lock:
            known = self._known.pop(collection, None) or Known()
            self._known[collection] = known
            return known

    @contextmanager
    def _reading(self, collection: str) -> Generator[tuple[Sql, State]]:
        """One point of time of the collection. Raises NotFound."""
        connection = self._files.connect(collection)
        with told(self._files.path(collection)), transaction(connection, write=False):
            yield connection, _state(connection)

    @contextmanager
    def _writing(self, connection: Sql, collection: str) -> Generator[None]:
        """The collection's only writer. Raises NotFound when it was dropped meanwhile."""
        with transaction(connection):
            if connection.execute("SELECT dropped FROM state").fetchone() != (0,):
                raise NotFound(f"collection {collection} was dropped")
            yield

    def _frequencies(self, known: Known, connection: Sql, state: State, terms: Sequence[str]) -> dict[str, int]:
        """Chunks that hold each term in this state."""
        mark = (state.made, state.changes)
        with known.lock:
            counts = dict(known.frequencies) if known.counted == mark else {}
        missing = [term for term in dict.fromkeys(terms) if term not in counts]
        for term in missing:
            counts[term] = reading.frequency(connection, searching.quoted(term)) if searching.searchable(term) else 0
        if missing and len(counts) <= REMEMBERED:
            with known.lock:
                known.counted, known.frequencies = mark, counts
        return {term: counts[term] for term in terms}

    def _matrix(self, collection: str, known: Known, connection: Sql, state: State, query: StoreQuery) -> Matrix | None:
        """Vectors of this state; None for a query that needs none. The caller holds the collection's lock."""
        if query.vector is None:
            return None
        if query.vector.shape != (state.dimension,):
            raise BrokenContract(f"a query vector of shape {query.vector.shape} for collection {collection} of {state.dimension} dimensions")
        if known.resident is None or known.made != state.made:
            known.resident, known.made = Resident(state.dimension), state.made
        matrix = known.resident.refresh(connection, next_id=state.next, removals=state.removals, chunks=state.chunks)
        self._evict(keep=known)
        return matrix

    def _evict(self, keep: Known) -> None:
        """Forget vectors of collections that were not searched for long, beyond `RESIDENT_BYTES`."""
        with self._lock:
            resident = [known for known in self._known.values() if known.resident is not None]
            total = sum(known.resident.size for known in resident if known.resident is not None)
            for known in resident:
                if total <= RESIDENT_BYTES or known is keep or known.resident is None:
                    continue
                total -= known.resident.size
                known.resident = None


def _state(connection: Sql) -> State:
    row = connection.execute("SELECT dimension, next, changes, removals, chunks, made FROM state").fetchone()
    return State(*cast("tuple[int, int, int, int, int, int]", row))
