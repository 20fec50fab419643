"""How well and how fast a store finds the right document, on a labelled set of questions.

    python bench/retrieval.py DATASET_DIR [--store sqlite:///FOLDER | elasticsearch+http://HOST:9200] [--modes participle,semantic,hybrid]
                              [--embedder local] [--chunker sections] [--questions N] [--simplified] [--keep]

    python bench/retrieval.py DATA_DIR --table [--stores sqlite,elasticsearch+http://HOST:9200] [--sets cmrc2018,drcd,...] [--questions N]

The second form prints recall at 1 and 5 and MRR@10 of every mode on every set that DATA_DIR holds in folders of these names, on every
store, beside plain BM25, names what is below it, and then ends with 1.

DATASET_DIR holds ``corpus.jsonl.gz`` (``_id``, ``title``, ``text``), ``queries.jsonl.gz`` (``_id``, ``text``) and ``qrels.tsv.gz``
(query id, document id, relevance; one header line), the layout that BEIR made common. Everything goes through the product's own
stages, so that what is measured is what a user gets. A hit counts for its document; seconds are this process's CPU seconds.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from pipeline import chunk, embed
from pipeline.contracts import CollectionSpec, EmbeddedChunks, IndexedDocument, Mode, ParsedDocument, Question, Section
from pipeline.identity import document_id, index_name
from pipeline.index import index
from pipeline.protocols import Embedder, EmbedderProfile, Store
from pipeline.retrieve import Target, search
from pipeline.settings import Settings
from pipeline.stores import open_store
from pipeline.text import fold

BATCH = 64
"""Documents of one write, as in the product."""


@dataclass(frozen=True, slots=True)
class Case:
    """A question and the keys of the documents that answer it."""

    text: str
    relevant: frozenset[str]


class Prepared:
    """An embedder that has seen all questions before, so that only retrieval is timed."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._known: dict[str, EmbeddedChunks] = {}

    @property
    def profile(self) -> EmbedderProfile:
        return self._embedder.profile

    def learn(self, texts: Sequence[str]) -> None:
        """Embed what is new."""
        missing = [text for text in dict.fromkeys(texts) if text not in self._known]
        for start in range(0, len(missing), 256):
            part = missing[start : start + 256]
            made = self._embedder.encode_queries(part)
            for place, text in enumerate(part):
                self._known[text] = EmbeddedChunks(made.vectors[place : place + 1], made.model, made.revision)

    def encode(self, texts: Sequence[str]) -> EmbeddedChunks:
        return self._embedder.encode(texts)

    def encode_queries(self, texts: Sequence[str]) -> EmbeddedChunks:
        self.learn(texts)
        return self._known[texts[0]]


def rows(path: Path) -> Iterator[dict[str, str]]:
    """Records of a gzipped JSON-lines file."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def cases(folder: Path, limit: int) -> list[Case]:
    """Questions that have an answer, evenly thinned out to `limit` (0: all)."""
    relevant: dict[str, set[str]] = {}
    with gzip.open(folder / "qrels.tsv.gz", "rt", encoding="utf-8") as lines:
        next(lines)
        for line in lines:
            query, document, grade = line.split("\t")
            if int(grade) > 0:
                relevant.setdefault(query, set()).add(document)
    found = [
        Case(row["text"], frozenset(relevant[row["_id"]]))
        for row in rows(folder / "queries.jsonl.gz")
        if row["_id"] in relevant and row["text"].strip()
    ]
    return found[:: max(1, len(found) // limit)][:limit] if limit else found


def build(folder: Path, store: Store, name: str, embedder: Embedder, chunker_spec: str, *, vectors: bool) -> None:
    """Chunk, embed and index the corpus, and say what the writes cost."""
    chunker = chunk.create(chunker_spec)
    documents: list[IndexedDocument] = []
    dimension, chunks, spent = 0, 0, 0.0

    def flush() -> None:
        nonlocal spent, chunks
        started = time.process_time()
        index(store, name, documents)
        spent += time.process_time() - started
        chunks += sum(len(document.chunks) for document in documents)
        documents.clear()

    for row in rows(folder / "corpus.jsonl.gz"):
        title, text = row.get("title", ""), row["text"]
        parsed = ParsedDocument(text, (Section(0, len(text)),), title=title, media_type="text/plain")
        identity = document_id("bench", folder.name, row["_id"])
        pieces = chunk.chunk(parsed, identity, chunker)
        made = embedder.encode([piece.searched for piece in pieces]).vectors if vectors else np.zeros((len(pieces), 1), dtype=np.float32)
        if not dimension and pieces:
            dimension = made.shape[1]
            store.drop(name)
            store.ensure(CollectionSpec(name, dimension))
        documents.append(IndexedDocument(identity, 1, row["_id"], title, "", parsed, pieces, made))
        if len(documents) == BATCH:
            flush()
    flush()
    print(f"{chunks} chunks of {dimension} dimensions written at {spent / chunks * 1e6:.0f} µs of CPU each")


def measure(label: str, asked: Sequence[Case], target: Target, mode: Mode) -> None:
    """Print recall at 1 and 10, mean reciprocal rank of the first ten, and time."""
    first, ten, reciprocal = 0, 0, 0.0
    seconds: list[float] = []
    for case in asked:
        started = time.process_time()
        found = search(Question(case.text, (target.collection,), mode=mode, k=10), [target])
        seconds.append(time.process_time() - started)
        keys = list(dict.fromkeys(hit.key for hit in found.hits))
        rank = next((place for place, key in enumerate(keys, 1) if key in case.relevant), 0)
        first, ten, reciprocal = first + (rank == 1), ten + bool(rank), reciprocal + (1 / rank if rank else 0.0)
    n = len(asked)
    p50, p99 = np.percentile(seconds, [50, 99]) * 1e3
    print(f"{label:<24} R@1 {first / n:.4f}  R@10 {ten / n:.4f}  MRR {reciprocal / n:.4f}   {p50:6.1f} / {p99:6.1f} ms CPU p50 / p99", flush=True)


def main() -> None:
    """Build, measure each mode, and clean up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--store", default="")
    parser.add_argument("--modes", default="participle,semantic,hybrid")
    parser.add_argument("--embedder", default="local")
    parser.add_argument("--chunker", default="sections")
    parser.add_argument("--questions", type=int, default=0, help="ask only so many, evenly chosen")
    parser.add_argument("--simplified", action="store_true", help="ask again with the questions in Simplified Chinese")
    parser.add_argument("--keep", action="store_true", help="leave the collection in the store")
    parser.add_argument("--table", action="store_true", help="every mode on every set beside plain BM25")
    parser.add_argument("--stores", default="sqlite", help="for --table, with commas: sqlite is a folder that is removed afterwards")
    parser.add_argument("--sets", default="", help="for --table, with commas; all when left out")
    given = parser.parse_args()
    if given.table:
        from bench import retrieval_table

        names = given.sets.split(",") if given.sets else retrieval_table.SETS
        below = retrieval_table.run(given.dataset, given.stores.split(","), names, given.embedder, given.chunker, given.questions)
        sys.exit(1 if below else 0)
    modes = [Mode(mode) for mode in given.modes.split(",")]
    name = index_name("bench", given.dataset.name, 1)
    with tempfile.TemporaryDirectory() as scratch:
        store = open_store(given.store or f"sqlite:///{scratch}/store", writer=True)
        embedder = Prepared(embed.create(Settings(embedder=given.embedder)))
        semantic = any(mode is not Mode.PARTICIPLE for mode in modes)
        build(given.dataset, store, name, embedder, given.chunker, vectors=semantic)
        target = Target(given.dataset.name, name, 1, store, embedder)
        asked = cases(given.dataset, given.questions)
        sets = [("", asked)] + ([(" simplified", [Case(fold(case.text), case.relevant) for case in asked])] if given.simplified else [])
        for label, some in sets:
            if semantic:
                embedder.learn([case.text for case in some])
            for mode in modes:
                measure(f"{mode}{label}", some, target, mode)
        if not given.keep:
            store.drop(name)
        store.close()


if __name__ == "__main__":
    main()
