"""Every mode on every labelled set, beside a plain lexical baseline: see `python bench/retrieval.py --help`, `--table`.

Recall at k counts the needed documents among the first k, of as many as k can hold; of chunking-eval, whose questions are answered by spans
of long documents, a chunk that touches such a span. The baseline is BM25 (k1 1.5, b 0.75) over whole documents, there over the same chunks:
single characters and bigrams of Chinese, lower-cased words of the rest. It knows no phrases, no titles, no stems and no vectors.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench.retrieval import BATCH, Prepared, cases, rows
from pipeline import chunk, embed
from pipeline.contracts import CollectionSpec, IndexedDocument, Mode, ParsedDocument, Question, Section, Span
from pipeline.identity import content_hash, document_id, index_name
from pipeline.index import index
from pipeline.protocols import Store
from pipeline.retrieve import Target, search
from pipeline.settings import Settings
from pipeline.stores import open_store
from pipeline.text import fold

SETS = ("cmrc2018", "drcd", "hotpotqa100", "rgb", "chunking-eval")
MODES = {
    "participle": (Mode.PARTICIPLE, ""),
    "semantic": (Mode.SEMANTIC, ""),
    "hybrid weighted": (Mode.HYBRID, "weighted"),
    "hybrid rrf": (Mode.HYBRID, "rrf"),
}
NOISE = 2
"""Questions by which a mode may differ from the baseline before it is called below it."""
TOKEN = re.compile(r"[\u3400-\u9fff]|[^\W_\u3400-\u9fff]+")

Found = tuple[str, int, int]
"""Key and span of a hit."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, and what answers it: documents, or spans of them."""

    text: str
    needed: Mapping[str, tuple[Span, ...]]
    """Document key → spans; none: the whole document."""

    def answered(self, hit: Found) -> bool:
        key, start, end = hit
        spans = self.needed.get(key)
        return spans is not None and (not spans or any(first < end and start < last for first, last in spans))


@dataclass(frozen=True, slots=True)
class Labelled:
    """Documents as (key, title, text), and questions."""

    documents: list[tuple[str, str, str]]
    asked: list[Asked]
    spans: bool = False


@dataclass(frozen=True, slots=True)
class Figures:
    """Recall at 1 and at 5, and mean reciprocal rank of the first ten."""

    first: float
    five: float
    reciprocal: float
    ms: float = 0.0


def load(folder: Path, limit: int) -> Labelled:
    """One of `SETS`, with at most so many questions, evenly chosen (0: all)."""
    if folder.name == "chunking-eval":
        return _spans(folder, limit)
    if folder.name == "rgb":
        return _pooled(folder, limit)
    documents = [(row["_id"], row.get("title", ""), row["text"]) for row in rows(folder / "corpus.jsonl.gz")]
    return Labelled(documents, [Asked(case.text, dict.fromkeys(case.relevant, ())) for case in cases(folder, limit)])


def _thinned(asked: list[Asked], limit: int) -> list[Asked]:
    return asked[:: max(1, len(asked) // limit)][:limit] if limit else asked


def _spans(folder: Path, limit: int) -> Labelled:
    documents: list[tuple[str, str, str]] = []
    for path in sorted((folder / "corpora").glob("*.md.gz")):
        with gzip.open(path, "rt", encoding="utf-8", newline="") as lines:
            documents.append((path.name.removesuffix(".md.gz"), "", lines.read()))
    asked: list[Asked] = []
    with gzip.open(folder / "queries.jsonl.gz", "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            asked.append(Asked(row["text"], {row["corpus"]: tuple((one["start"], one["end"]) for one in row["references"])}))
    return Labelled(documents, _thinned(asked, limit), spans=True)


def _pooled(folder: Path, limit: int) -> Labelled:
    """All passages of all questions in one pool; those that answer a question are its documents."""
    documents: dict[str, tuple[str, str, str]] = {}
    asked: list[Asked] = []
    with gzip.open(folder / "zh_refine.jsonl.gz", "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            named = {text: content_hash(text.encode())[:16] for text in (*row["positive"], *row["negative"]) if text.strip()}
            documents |= {name: (name, "", text) for text, name in named.items()}
            needed = {named[text]: () for text in row["positive"] if text in named}
            if needed:
                asked.append(Asked(row["query"], needed))
    return Labelled(list(documents.values()), _thinned(asked, limit))


def judge(asked: Sequence[Asked], ranked: Iterator[list[Found]]) -> Figures:
    """Figures over all questions; of one document's chunks only the first counts, unless spans answer."""
    first = five = reciprocal = 0.0
    for one, hits in zip(asked, ranked, strict=True):
        whole = not any(one.needed.values())
        shown = [hit for place, hit in enumerate(hits) if not whole or all(hit[0] != other[0] for other in hits[:place])]
        right = [one.answered(hit) for hit in shown[:10]]
        possible = len(one.needed) if whole else 1
        first += bool(right[:1] and right[0])
        five += min(sum(right[:5]), possible) / min(5, possible)
        reciprocal += next((1 / rank for rank, good in enumerate(right, 1) if good), 0.0)
    n = len(asked)
    return Figures(first / n, five / n, reciprocal / n)


def tokens(text: str) -> Iterator[str]:
    """Characters and bigrams of Chinese, words of the rest; scripts folded, lower case."""
    before = ""
    for match in TOKEN.finditer(fold(text)):
        token = match[0]
        yield token
        single = len(token) == 1 and "\u3400" <= token <= "\u9fff"
        if single and before:
            yield before + token
        before = token if single else ""


def baseline(pieces: Sequence[tuple[Found, str]], asked: Sequence[Asked]) -> Figures:
    """Plain BM25 over the pieces."""
    counts = [Counter(tokens(text)) for _, text in pieces]
    lengths = np.array([sum(one.values()) for one in counts], dtype=np.float64)
    postings: dict[str, tuple[list[int], list[int]]] = {}
    for number, one in enumerate(counts):
        for token, count in one.items():
            where, often = postings.setdefault(token, ([], []))
            where.append(number)
            often.append(count)
    norm = 1.5 * (1 - 0.75 + 0.75 * lengths / max(lengths.mean(), 1.0))

    def ranked() -> Iterator[list[Found]]:
        for one in asked:
            scores = np.zeros(len(pieces))
            for token in tokens(one.text):
                where, often = postings.get(token, ([], []))
                if where:
                    places, counted = np.array(where), np.array(often, dtype=np.float64)
                    scores[places] += math.log1p((len(pieces) - len(where) + 0.5) / (len(where) + 0.5)) * counted * 2.5 / (counted + norm[places])
            yield [pieces[place][0] for place in np.argsort(-scores, kind="stable")[:10] if scores[place] > 0]

    return judge(asked, ranked())


def run(folder: Path, stores: Sequence[str], names: Sequence[str], embedder_spec: str, chunker_spec: str, questions: int) -> int:
    """Print the table; returns in how many rows a mode is below its lexical baseline."""
    embedder = Prepared(embed.create(Settings(embedder=embedder_spec)))
    below: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            labelled = load(folder / name, questions)
            embedder.learn([one.text for one in labelled.asked])
            plain: Figures | None = None
            for url in stores or ("sqlite",):
                store = open_store(f"sqlite:///{scratch}/{name}" if url == "sqlite" else url, writer=True)
                kind, collection = url.partition("+")[0].partition(":")[0], index_name("bench", name, 1)
                pieces = _build(labelled, store, collection, embedder, chunker_spec)
                if plain is None:
                    units = pieces if labelled.spans else [((key, 0, len(text)), f"{title}\n{text}") for key, title, text in labelled.documents]
                    plain = baseline(units, labelled.asked)
                    _row(name, "", "plain BM25", plain, len(labelled.asked))
                target = Target(name, collection, 1, store, embedder)
                for label, (mode, merge) in MODES.items():
                    figures = _measured(labelled.asked, target, mode, merge)
                    _row(name, kind, label, figures, len(labelled.asked))
                    below += _below(f"{name}, {kind}, {label}", figures, plain, len(labelled.asked))
                store.drop(collection)
                store.close()
    print("\n".join(["", "below the lexical baseline:", *below]) if below else "\nno mode is below its lexical baseline")
    return len(below)


def _build(labelled: Labelled, store: Store, collection: str, embedder: Prepared, chunker_spec: str) -> list[tuple[Found, str]]:
    """Index all documents; gives the chunks."""
    chunker = chunk.create(chunker_spec)
    made: list[IndexedDocument] = []
    pieces: list[tuple[Found, str]] = []
    store.drop(collection)
    store.ensure(CollectionSpec(collection, embedder.encode(["."]).vectors.shape[1]))
    for number, (key, title, text) in enumerate(labelled.documents, 1):
        parsed = ParsedDocument(text, (Section(0, len(text)),), title=title, media_type="text/plain")
        identity = document_id("bench", collection, key)
        chunks = chunk.chunk(parsed, identity, chunker)
        pieces += [((key, one.start, one.end), one.text) for one in chunks]
        if chunks:
            made.append(IndexedDocument(identity, 1, key, title, "", parsed, chunks, embedder.encode([one.searched for one in chunks]).vectors))
        if len(made) == BATCH or number == len(labelled.documents):
            index(store, collection, made)
            made.clear()
    return pieces


def _measured(asked: Sequence[Asked], target: Target, mode: Mode, merge: str) -> Figures:
    spent: list[float] = []

    def ranked() -> Iterator[list[Found]]:
        for one in asked:
            started = time.process_time()
            found = search(Question(one.text, (target.collection,), mode=mode, k=10, merge=merge), [target])
            spent.append(time.process_time() - started)
            yield [(hit.key, hit.start, hit.end) for hit in found.hits]

    return replace(judge(asked, ranked()), ms=float(np.median(spent)) * 1e3) if asked else Figures(0, 0, 0)


def _row(name: str, kind: str, label: str, figures: Figures, n: int) -> None:
    shown = f"{figures.first:.4f}  {figures.five:.4f}  {figures.reciprocal:.4f}"
    print(f"{name:<14} {kind:<14} {label:<16} n={n:<5} R@1 R@5 MRR@10  {shown}  {figures.ms:6.1f} ms CPU", flush=True)


def _below(where: str, figures: Figures, plain: Figures, n: int) -> list[str]:
    """By more than a question or two, which no order of ties explains."""
    compared = (("R@1", figures.first, plain.first), ("R@5", figures.five, plain.five), ("MRR@10", figures.reciprocal, plain.reciprocal))
    return [f"  {where}: {name} {ours:.4f} against {theirs:.4f}" for name, ours, theirs in compared if theirs - ours > NOISE / n]
