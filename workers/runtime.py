"""The composition root: settings in, connected parts out. One a process, made after the fork."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, cast

from pipeline.contracts import CollectionSpec, ParsedDocument, RawDocument, SourceItem, Stage
from pipeline.errors import BadRequest, PipelineError
from pipeline.identity import index_name
from pipeline.protocols import LLM, Cache, Chunker, Embedder, EmbedderProfile, Service, Store, Surroundings
from pipeline.settings import Settings
from workers.artifacts import open_artifacts
from workers.broker import CACHE_DB, Broker, connect, open_broker
from workers.caching import Tally
from workers.fetching import Fetcher
from workers.figures import Figures
from workers.ledger.engine import Database
from workers.ledger.forming import Window
from workers.ledger.sources import SourceRow
from workers.ledger.work import CollectionRow, Detail
from workers.limits import Gate, Limits, pace
from workers.surroundings import Around, Notebook, Values, account
from workers.tracing import Spans, open_spans

if TYPE_CHECKING:
    from graphrag.search import GraphSearch
    from pipeline.parse.guard import Guard
    from pipeline.pricing import Prices
    from pipeline.protocols import Reranker
    from workers.graphs import GraphDesk


WARM = RawDocument(SourceItem("warm.md"), "# Warm 预热\n\nTen stations report. 雷達測站每月校準。\n".encode(), "")
"""A document of no consequence: parsing and chunking it builds tokenizer, segmenter and folding tables."""


def preload(stages: Collection[Stage], settings: Settings) -> None:
    """Build before a fork what every child needs, so that they share the memory and the start-up time."""
    if Stage.PARSE in stages or Stage.CHUNK in stages:
        from pipeline import chunk, parse
        from pipeline.load import files
        from pipeline.parse import guard

        assert files and guard
        chunk.chunk(parse.parse(WARM), "warm", chunk.create(settings.chunker, encoding=settings.tokenizer))
    if Stage.EMBED in stages:
        from pipeline import embed

        embedder = embed.create(settings)
        if embedder.profile.in_process:
            embedder.encode(["warm"])
        else:
            import_module("httpx")
    if Stage.INDEX in stages:
        from pipeline import index, stores

        stores.open_store(settings.store_url, writer=True).close()
        assert index


class Runtime:
    """Everything the settings describe, built on first use. Safe for threads, not for forks."""

    def __init__(self, settings: Settings, *, node: str = "local") -> None:
        self.settings = settings
        self.node = node
        self.db = Database(settings.ledger_url)
        self.artifacts = open_artifacts(settings)
        self.lease_s = float(settings.lease_s)
        self.deadline_s = float(settings.stage_deadline_s)
        self.max_attempts = settings.max_attempts
        self.max_wait_s = settings.max_wait_hours * 3600.0
        self.max_bytes = settings.max_file_mb * 1_000_000
        self.figures = Figures()
        self.spending = Figures()
        self._spans: Spans | None = None
        self._lock = threading.RLock()
        self._embedders: dict[str, Embedder] = {}
        self._stores: dict[str, Store] = {}
        self._chunkers: dict[str, Chunker] = {}
        self._ensured: set[tuple[str, int, float]] = set()

    @property
    def owner(self) -> str:
        """Who leases: node, process and thread."""
        return f"{self.node}:{os.getpid()}:{threading.get_ident()}"

    @property
    def processes(self) -> int:
        """Processes for what computes."""
        return self.settings.worker_processes or min(4, os.cpu_count() or 1)

    @cached_property
    def profile(self) -> EmbedderProfile:
        from pipeline import embed

        return embed.profile(self.settings)

    def profile_of(self, spec: str) -> EmbedderProfile:
        """The profile of an embedder by its spec, without loading a model. Raises Unsupported, BadRequest."""
        from pipeline import embed

        return embed.profile(replace(self.settings, embedder=spec))

    def check_chunker(self, spec: str, options: Mapping[str, str]) -> None:
        """Raises Unsupported or BadRequest when it is no chunker."""
        from pipeline import chunk

        chunk.create(spec, encoding=self.settings.tokenizer, options=options)

    @property
    def spans(self) -> Spans:
        """Where this process's traces go."""
        with self._lock:
            if self._spans is None:
                self._spans = open_spans(self.settings, self.db)
            return self._spans

    @cached_property
    def broker(self) -> Broker:
        return open_broker(self.settings, self.db)

    @cached_property
    def _guard(self) -> Guard:
        from pipeline.parse.guard import Guard

        return Guard(timeout_s=self.settings.parse_timeout_s, memory_mb=self.settings.parse_memory_mb)

    @cached_property
    def fetcher(self) -> Fetcher:
        """Downloads items of sources."""
        return Fetcher(self.settings, self.db, self.surroundings)

    def surroundings(self, source: SourceRow, check: Callable[[], None]) -> Surroundings:
        """What a connector of this source is given; `check` raises Cancelled once its work was stopped."""
        with self._lock:
            limits, values = self.limits, self._values
        return Around(limits, values, source.kind, account(self.settings, source.id, source.secrets), check, Notebook(self.db, source.id))

    @cached_property
    def limits(self) -> Limits:
        """What all processes together may ask of services."""
        return Limits(self.settings, self.db)

    @cached_property
    def _values(self) -> Values:
        return Values(self.settings)

    def _gate(self, service: Service | None) -> Gate | None:
        with self._lock:
            return self.limits.gate(service) if service is not None else None

    @cached_property
    def _paced(self) -> Mapping[Stage, Gate]:
        """Stages that wait for a service, which may be blocked or down."""
        from pipeline import embed, stores

        found: dict[Stage, Gate] = {}
        for stage, describe in ((Stage.EMBED, lambda: embed.service(self.settings)), (Stage.INDEX, lambda: stores.service(self.settings.store_url))):
            # A setting that is wrong is told of the documents that need it.
            with suppress(BadRequest):
                gate = self._gate(describe())
                found |= {stage: gate} if gate is not None else {}
        return found

    def pace(self, windows: Mapping[Stage, Window]) -> Mapping[Stage, Window]:
        """Windows as the services of the stages allow them now."""
        return pace(windows, self._paced)

    def fetch(self, source_id: str, item: SourceItem) -> tuple[RawDocument, Detail]:
        """Download one item of a source. Raises what its connector raises."""
        with self._lock:
            fetcher = self.fetcher
        return fetcher.fetch(source_id, item)

    def parse(self, raws: Sequence[RawDocument], options: Mapping[str, str]) -> list[ParsedDocument | PipelineError]:
        """Parse in the guarded child process, one outcome each."""
        with self._lock:
            guard = self._guard
        return guard.parse_many(raws, options)

    def chunker(self, collection: CollectionRow) -> Chunker:
        from pipeline import chunk

        with self._lock:
            # Not by the collection: its next generation is cut by another one.
            key = f"{collection.tokenizer} {collection.chunker} {sorted(collection.chunk_options.items())}"
            if key not in self._chunkers:
                self._chunkers[key] = chunk.create(collection.chunker, encoding=collection.tokenizer, options=collection.chunk_options)
            return self._chunkers[key]

    def chunker_fingerprint(self, collection: CollectionRow) -> str:
        from pipeline import chunk

        return chunk.fingerprint(collection.chunker, collection.chunk_options, collection.tokenizer)

    def embedder(self, collection: CollectionRow) -> Embedder:
        """The embedder that the collection was made with, whatever is configured now."""
        from pipeline import embed

        with self._lock:
            if collection.embedder not in self._embedders:
                settings = replace(self.settings, embedder=collection.embedder)
                self._embedders[collection.embedder] = embed.create(settings, self._gate(embed.service(settings)))
            return self._embedders[collection.embedder]

    def open_store(self, url: str, *, writer: bool) -> Store:
        from pipeline import stores

        key = f"{url} {writer}"
        with self._lock:
            if key not in self._stores:
                # Questions go to the store without asking first: an index that fails to write may well answer.
                gate = self._gate(stores.service(url)) if writer else None
                self._stores[key] = stores.open_store(url, writer=writer, limiter=gate)
            return self._stores[key]

    def store(self, collection: CollectionRow, dimension: int) -> tuple[Store, str]:
        """The store for writing, with the collection made ready in it, and the collection's name there."""
        store = self.open_store(self.settings.store_url, writer=True)
        name = index_name(collection.tenant, collection.name, collection.generation)
        with self._lock:
            # A collection that was deleted and made again is another one under the same name.
            made = (name, dimension, collection.created_at)
            if dimension and made not in self._ensured:
                store.ensure(CollectionSpec(name, dimension))
                self._ensured.add(made)
        return store, name

    @cached_property
    def graph_extractor(self) -> str:
        """Fingerprint of how documents become a graph; empty where it is off. Raises Unsupported for a mode that there is not."""
        from workers import graphs

        return graphs.extractor(self.settings)

    def graph_desk(self, collection: CollectionRow) -> GraphDesk:
        """The graph of a collection's present generation, for writing."""
        from workers import graphs

        store, name = self.store(collection, collection.dimension or 0)
        return graphs.desk(store, name, self.owner)

    @cached_property
    def prices(self) -> Prices:
        """What models cost. Raises BadRequest when the list cannot be read."""
        from pipeline import pricing

        return pricing.load(self.settings.prices)

    @cached_property
    def graph_search(self) -> GraphSearch | None:
        """The retriever over graphs; None where there are none."""
        from workers import graphs

        return graphs.search() if self.graph_extractor else None

    def graph_audit(self, index: str) -> tuple[int, str]:
        """(entities and relations, digest) of the graph beside an index. Raises Unavailable."""
        from workers import graphs

        return graphs.audited(self.reader_store, index)

    def leave_graph(self, store: Store, index: str, fence: Mapping[str, int]) -> None:
        """Take documents out of the graph beside an index. Raises Unavailable."""
        from workers import graphs

        graphs.leave(store, index, self.owner, fence, folded_later=bool(self.graph_extractor))

    @cached_property
    def reader_store(self) -> Store:
        return self.open_store(self.settings.store_url, writer=False)

    @cached_property
    def llm(self) -> LLM:
        from pipeline import llm

        return llm.create(self.settings, self._gate(llm.service(self.settings)))

    @cached_property
    def reranker(self) -> Reranker | None:
        if not self.settings.reranker:
            return None
        from pipeline import rerank

        return rerank.create(self.settings, limiter=self._gate(rerank.service(self.settings)))

    @cached_property
    def cache(self) -> Cache | None:
        """The answer cache, in a Redis database of its own; None when it is turned off or there is no Redis."""
        if not self.settings.cache_ttl or not self.settings.redis_url:
            return None
        from pipeline.cache import RedisCache, RedisClient

        return RedisCache(cast("RedisClient", connect(self.settings.redis_url, CACHE_DB)))

    @cached_property
    def cache_tally(self) -> Tally:
        return Tally(self.cache)

    def close(self) -> None:
        """Stop the parser child and close files and connections. Safe to call twice."""
        if "cache_tally" in self.__dict__:
            self.cache_tally.flush()
        if "_guard" in self.__dict__:
            self._guard.close()
        for store in self._stores.values():
            store.close()
        if "broker" in self.__dict__:
            self.broker.close()
        if "limits" in self.__dict__:
            self.limits.close()
        if "_values" in self.__dict__:
            self._values.close()
        if self._spans is not None:
            self._spans.close()
        self.db.close()
