"""A store, an embedder and a reader in memory, for what the question path decides by itself."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeline import text
from pipeline.contracts import Completion, EmbeddedChunks, Evidence, Hit, StoreQuery, Usage, Vectors
from pipeline.errors import PipelineError, Unavailable
from pipeline.protocols import EmbedderProfile, Generation
from pipeline.retrieve import Target


def hit(body: str, *, key: str = "file:///a.md", ordinal: int = 0, start: int = 0, title: str = "A", **changed: object) -> Hit:
    base: dict[str, object] = {
        "chunk_id": f"{key}#{ordinal}",
        "document_id": key,
        "version": 1,
        "ordinal": ordinal,
        "key": key,
        "title": title,
        "url": "",
        "text": body,
        "start": start,
        "end": start + len(body),
        "score": 0.0,
        "scores": {},
    }
    return Hit(**{**base, **changed})  # type: ignore[arg-type]


def evidence(*bodies: str) -> tuple[Evidence, ...]:
    """Numbered passages, each from a document of its own, all from its start."""
    return tuple(
        Evidence(number, hit(body, key=f"file:///{number}.md", title=f"D{number}"), body, 0, len(body)) for number, body in enumerate(bodies, 1)
    )


class HashEmbedder:
    """Terms hashed into `dimension` places; equal texts have cosine 1, foreign ones about 0."""

    def __init__(self, name: str = "hash", *, dimension: int = 512, refuse_below: float = 0.25, in_process: bool = True) -> None:
        self.profile = EmbedderProfile(name, "1", dimension, 8192, 64, 100_000, 0.5, refuse_below, in_process)
        self.calls = 0
        self.fault: PipelineError | None = None

    def encode(self, texts: Sequence[str]) -> EmbeddedChunks:
        vectors = np.zeros((len(texts), self.profile.dimension or 0), dtype=np.float32)
        for row, one in enumerate(texts):
            words, grams = text.query_terms(one)
            for term in words + grams:
                vectors[row, zlib.crc32(term.encode()) % vectors.shape[1]] += 1.0
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors /= np.where(norms == 0, 1, norms).astype(np.float32)
        return EmbeddedChunks(vectors, self.profile.name, "1", tokens=None if self.profile.in_process else 7)

    def encode_queries(self, texts: Sequence[str]) -> EmbeddedChunks:
        self.calls += 1
        if self.fault is not None:
            raise self.fault
        return self.encode(texts)


class ListStore:
    """Chunks in a list; lexical scores are idf sums, similarities true cosines. Honours k and both limits."""

    def __init__(self, hits: Sequence[Hit], embedder: HashEmbedder) -> None:
        self.hits = list(hits)
        self.queries: list[StoreQuery] = []
        self.fault: PipelineError | None = None
        self._terms = [frozenset(" ".join(text.terms(one.text)).split()) for one in hits]
        self._vectors: Vectors = embedder.encode([one.text for one in hits]).vectors

    def frequencies(self, collection: str, terms: Sequence[str]) -> tuple[int, Mapping[str, int]]:
        return len(self.hits), {term: sum(term in held for held in self._terms) for term in terms}

    def search(self, collection: str, query: StoreQuery) -> list[Hit]:
        self.queries.append(query)
        if self.fault is not None:
            raise self.fault
        terms = set(query.words + query.grams)
        count, frequencies = self.frequencies(collection, tuple(terms))
        weight = {term: math.log(1 + count / (0.5 + frequencies[term])) for term in terms}
        lexical = [sum(weight[term] for term in terms & held) for held in self._terms]
        shares = [len(terms & held) / len(terms) if terms else 0.0 for held in self._terms]
        by_text = [n for n, score in enumerate(lexical) if score > 0 and shares[n] >= query.min_match]
        chosen = set(sorted(by_text, key=lambda n: -lexical[n])[: query.k])
        cosines = self._vectors @ query.vector if query.vector is not None else None
        if cosines is not None:
            near = [n for n in range(len(self.hits)) if cosines[n] >= query.min_similarity]
            chosen |= set(sorted(near, key=lambda n: -cosines[n])[: query.k])
        found: list[Hit] = []
        for n in sorted(chosen):
            scores = {"lexical": lexical[n]} if terms else {}
            scores |= {"similarity": float(cosines[n])} if cosines is not None else {}
            found.append(hit_with(self.hits[n], scores))
        return found


def hit_with(one: Hit, scores: Mapping[str, float]) -> Hit:
    from dataclasses import replace

    return replace(one, scores=scores)


def target(*bodies: str, collection: str = "handbook", embedder: HashEmbedder | None = None, revision: int = 1) -> Target:
    used = embedder or HashEmbedder()
    hits = [hit(body, key=f"file:///{collection}/{n}.md", title=f"{collection}-{n}") for n, body in enumerate(bodies)]
    return Target(collection, f"dujiang-{collection}-g1", revision, ListStore(hits, used), used)  # type: ignore[arg-type]


@dataclass
class Reader:
    """Says what it was told to, and remembers what it was sent."""

    says: str = "Yes [1]."
    name: str = "reader:test"
    revision: str = "1"
    finish: str = "stop"
    pieces: int = 3
    fault: PipelineError | None = None
    prompts: list[Sequence[tuple[str, str]]] = field(default_factory=list)

    def complete(self, messages: Sequence[tuple[str, str]], options: Generation) -> Completion:
        self.prompts.append(messages)
        if self.fault is not None:
            raise self.fault
        return Completion(self.says, self.name, Usage(10, 5, 15, requests=1), self.finish)

    def stream(self, messages: Sequence[tuple[str, str]], options: Generation) -> Iterator[str | Completion]:
        whole = self.complete(messages, options)
        size = max(1, len(self.says) // self.pieces)
        for start in range(0, len(self.says), size):
            yield self.says[start : start + size]
        yield whole


class AwayCache:
    """A cache whose server is down."""

    def get(self, key: str) -> bytes | None:
        raise Unavailable("the cache is away", dependency=True)

    put = purge = flight = get
