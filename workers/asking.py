"""Questions: the collections they name, joined with store, embedder, reader and cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pipeline import answer, assist, grounding, pricing, retrieve
from pipeline.contracts import Answer, EvidencePack, Question, SearchResult
from pipeline.identity import index_name
from pipeline.packs import cache_group
from pipeline.protocols import LLM
from pipeline.retrieve import Target
from pipeline.shelf import Shelf
from workers import costs
from workers.collecting import check_store
from workers.ledger import catalog
from workers.runtime import Runtime

USUAL_HITS = 10
NO_ASSIST = ("none",)
"""What a question says that wants none of what the settings name."""


def settled(question: Question, targets: Sequence[Target]) -> Question:
    """With the number of hits that it leaves open (k of 0): the largest that its collections are set to."""
    if question.k:
        return question
    return replace(question, k=max((target.tuning.top_k or USUAL_HITS for target in targets), default=USUAL_HITS))


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
            calibrated = row.calibration.threshold if row.calibration else None
            index = index_name(row.tenant, row.name, row.generation)
            found.append(Target(row.name, index, row.revision, store, embedder, row.search, calibrated))
        return found

    def search(self, question: Question) -> SearchResult:
        targets = self.targets(question)
        found = self._searched(settled(self._helped(question), targets), targets)
        costs.note(self._runtime.spending, found)
        return replace(found, steps=(*found.steps, pricing.bill(found.usage, found.steps)))

    def _helped(self, question: Question) -> Question:
        """With the assistance that the settings name, where the question leaves it open. Raises BadRequest."""
        kinds = question.assist or tuple(part.strip() for part in self._runtime.settings.assist.split(",") if part.strip())
        return replace(question, assist=() if kinds == NO_ASSIST else assist.check(kinds))

    def _searched(self, question: Question, targets: Sequence[Target]) -> SearchResult:
        runtime = self._runtime
        if not question.assist:
            return retrieve.search(question, targets, reranker=runtime.reranker, graph=runtime.graph_search)
        understood, step = retrieve.begin(question)
        groups = [cache_group(question.tenant, target.collection) for target in targets]
        shelf = Shelf(runtime.cache, float(runtime.settings.cache_ttl), groups)
        found = assist.find(understood.question, targets, runtime.llm, shelf, reranker=runtime.reranker, graph=runtime.graph_search)
        hits, around = retrieve.widened(understood.question, found.hits, targets)
        return replace(found, hits=hits, steps=(step, *found.steps, *around))

    def ask(self, question: Question) -> Answer:
        runtime, targets = self._runtime, self.targets(question)
        found = answer.ask(
            settled(self._helped(question), targets),
            targets,
            runtime.llm,
            cache=runtime.cache,
            ttl_s=float(runtime.settings.cache_ttl),
            reranker=runtime.reranker,
            graph=runtime.graph_search,
            options=self._options,
        )
        return self._billed(found)

    def gather(self, question: Question) -> EvidencePack:
        """The evidence alone, for readers of one's own; `read` takes it, or what JSON made of it."""
        targets = self.targets(question)
        runtime, asked = self._runtime, settled(self._helped(question), targets)
        return answer.gather(asked, targets, reranker=runtime.reranker, graph=runtime.graph_search, options=self._options, llm=runtime.llm)

    def read(self, pack: EvidencePack, llm: LLM | None = None) -> Answer:
        """An answer from a pack, by this reader or the configured one; nothing is searched and nothing cached."""
        found = answer.read(pack, llm or self._runtime.llm, options=self._options)
        costs.note(self._runtime.spending, found)
        return replace(found, steps=(*found.steps, pricing.bill(found.usage, found.steps)))

    def stream(self, question: Question) -> Iterator[str | Answer]:
        runtime, targets = self._runtime, self.targets(question)
        pieces = answer.stream(
            settled(self._helped(question), targets),
            targets,
            runtime.llm,
            cache=runtime.cache,
            ttl_s=float(runtime.settings.cache_ttl),
            reranker=runtime.reranker,
            graph=runtime.graph_search,
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
