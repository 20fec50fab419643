"""Questions: the collections they name, joined with store, embedder, reader and cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pipeline import answer, grounding, pricing, retrieve
from pipeline.contracts import Answer, Question, SearchResult
from pipeline.identity import index_name
from pipeline.retrieve import Target
from workers import costs
from workers.collecting import check_store
from workers.ledger import catalog
from workers.runtime import Runtime


class Asking:
    """The question path over one runtime. Safe for threads."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        settings = runtime.settings
        self._options = answer.Reading(grounding=grounding.policy(settings.grounding_threshold, settings.grounding_action))

    def targets(self, question: Question) -> list[Target]:
        """One target a collection, at its present revision. Raises NotFound, Conflict for a store that is not the pinned one."""
        found: list[Target] = []
        for name in question.collections:
            row = catalog.find(self._runtime.db, question.tenant, name)
            check_store(self._runtime, row)
            store, embedder = self._runtime.reader_store, self._runtime.embedder(row)
            found.append(Target(row.name, index_name(row.tenant, row.name, row.generation), row.revision, store, embedder))
        return found

    def search(self, question: Question) -> SearchResult:
        found = retrieve.search(question, self.targets(question), reranker=self._runtime.reranker)
        costs.note(self._runtime.spending, found)
        return replace(found, steps=(*found.steps, pricing.bill(found.usage, found.steps)))

    def ask(self, question: Question) -> Answer:
        runtime = self._runtime
        found = answer.ask(
            question,
            self.targets(question),
            runtime.llm,
            cache=runtime.cache,
            ttl_s=float(runtime.settings.cache_ttl),
            reranker=runtime.reranker,
            options=self._options,
        )
        return self._billed(found)

    def stream(self, question: Question) -> Iterator[str | Answer]:
        runtime = self._runtime
        pieces = answer.stream(
            question,
            self.targets(question),
            runtime.llm,
            cache=runtime.cache,
            ttl_s=float(runtime.settings.cache_ttl),
            reranker=runtime.reranker,
            options=self._options,
        )
        for piece in pieces:
            yield self._billed(piece) if isinstance(piece, Answer) else piece

    def _billed(self, found: Answer) -> Answer:
        """The answer counted, with its bill as the trace's last line."""
        self._runtime.figures.add(found.cache)
        self._runtime.cache_tally.add(found)
        costs.note(self._runtime.spending, found)
        return replace(found, steps=(*found.steps, pricing.bill(found.usage, found.steps)))
