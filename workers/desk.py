"""One batch on the desk: its documents with what has been made of them so far, and what will be committed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from pipeline.contracts import Chunk, ParsedDocument, RawDocument, SourceItem, Stage, Vectors
from pipeline.errors import Cancelled, NotFound, PipelineError, Rejected, Unavailable
from pipeline.protocols import Chunker, Embedder, Store
from workers import verdict
from workers.artifacts import Artifacts, Entry
from workers.ledger import batches
from workers.ledger import refs as references
from workers.ledger.engine import Database
from workers.ledger.work import Advance, Batch, CollectionRow, Detail, Outcome, Ref, Setback, Spent, Work
from workers.tracing import Spans

LOOK_S = 1.0
"""How long a document that was cancelled may still be worked on, where its stage can be left in the middle."""

_NEEDED: Mapping[Stage, tuple[Stage, ...]] = {
    Stage.LOAD: (Stage.LOAD,),
    Stage.PARSE: (Stage.LOAD,),
    Stage.CHUNK: (Stage.PARSE,),
    Stage.EMBED: (Stage.CHUNK,),
    Stage.INDEX: (Stage.PARSE, Stage.CHUNK, Stage.EMBED),
}
"""First stage of a batch → earlier outputs that it reads."""


class Tools(Protocol):
    """What the stages work with; `workers.runtime` builds it, once a process."""

    @property
    def owner(self) -> str: ...

    @property
    def db(self) -> Database: ...

    @property
    def artifacts(self) -> Artifacts: ...

    @property
    def lease_s(self) -> float: ...

    @property
    def deadline_s(self) -> float: ...

    @property
    def max_attempts(self) -> int: ...

    @property
    def max_wait_s(self) -> float: ...

    @property
    def max_bytes(self) -> int: ...

    @property
    def spans(self) -> Spans: ...

    def fetch(self, source_id: str, item: SourceItem) -> tuple[RawDocument, Detail]: ...

    def parse(self, raws: Sequence[RawDocument], options: Mapping[str, str]) -> list[ParsedDocument | PipelineError]: ...

    def chunker(self, collection: CollectionRow) -> Chunker: ...

    def chunker_fingerprint(self, collection: CollectionRow) -> str: ...

    def embedder(self, collection: CollectionRow) -> Embedder: ...

    def store(self, collection: CollectionRow, dimension: int) -> tuple[Store, str]:
        """The store, ready for this collection, and the collection's name in it."""
        ...


@dataclass(slots=True)
class Item:
    """One document on its way through the stages of this batch."""

    work: Work
    source_hash: str
    chunk_count: int
    raw: RawDocument | None = None
    parsed: ParsedDocument | None = None
    chunks: tuple[Chunk, ...] | None = None
    searched: Sequence[str] = ()
    """What is embedded of each chunk."""
    vectors: Vectors | None = None
    reached: Stage | None = None
    setback: Setback | None = None
    keys: dict[Stage, str] = field(default_factory=dict[Stage, str])
    detail: Detail | None = None


class Desk:
    """Items, new artifacts and costs of one batch. Used by one thread."""

    def __init__(self, batch: Batch, tools: Tools) -> None:
        self.batch = batch
        self.tools = tools
        self.items = [Item(work, work.source_hash, work.chunks) for work in batch.documents]
        self.spent: list[Spent] = []
        self.refs: list[Ref] = []
        self.dimension: int | None = None
        self._stored: dict[tuple[Stage, str], Ref] | None = None
        self._looked = time.monotonic()
        self._held = frozenset(work.document_id for work in batch.documents)

    def alive(self) -> list[Item]:
        """Items that no stage of this batch has stopped."""
        return [item for item in self.items if item.setback is None]

    def still(self, items: Sequence[Item], stage: Stage) -> list[Item]:
        """Those that nobody has cancelled, deleted or begun anew meanwhile, nor taken from us. The ledger is asked once a second at most."""
        if time.monotonic() - self._looked >= LOOK_S:
            self._looked = time.monotonic()
            with suppress(Unavailable):
                self._held = batches.held(self.tools.db, self.batch)
        for item in items:
            if item.work.document_id not in self._held and item.setback is None:
                self.fail(item, stage, Cancelled(f"{item.work.key} was cancelled, deleted or begun anew meanwhile"))
        return [item for item in items if item.setback is None]

    def fail(self, item: Item, stage: Stage, error: PipelineError) -> None:
        """Stop one document with a deliberate failure; its neighbours go on."""
        item.setback = verdict.setback(error, item.work, stage, max_attempts=self.tools.max_attempts, max_wait_s=self.tools.max_wait_s)
        if item.setback.unchanged and item.detail is not None:
            item.setback = replace(item.setback, again=item.detail.again, revision=item.detail.revision)

    def fail_together(self, items: Sequence[Item], stage: Stage, error: PipelineError) -> None:
        """Stop documents by one failure that they share. Those that wait come back at the same time, and so in one full batch again."""
        delay_s: float | None = None
        for item in items:
            self.fail(item, stage, error)
            if item.setback is not None and item.setback.status == "retry":
                delay_s = item.setback.delay_s if delay_s is None else delay_s
                item.setback = replace(item.setback, delay_s=delay_s)

    def each(self, stage: Stage, items: Iterable[Item], work: Callable[[Item], None]) -> None:
        """Run `work` on one document after the other; a failure, or a bug, stops only its own."""
        for item in items:
            if self.still([item], stage):
                self._guarded(stage, [item], partial(work, item))

    def whole(self, stage: Stage, work: Callable[[Desk], None]) -> None:
        """Run a stage. What stops it as a whole (no embedder, no chunker) stops every document that it had not stopped by then.

        Raises a bug that strikes among several documents: halving the batch finds whose it is.
        """
        self._guarded(stage, self.items, partial(work, self))

    def _guarded(self, stage: Stage, items: Sequence[Item], work: Callable[[], None]) -> None:
        try:
            work()
        except PipelineError as error:
            self.fail_together([item for item in items if item.setback is None], stage, error)
        except Exception as error:
            if len(items) > 1:
                raise
            for item in items:
                item.setback = verdict.bug(error, item.work, stage)

    def keep(self, stage: Stage, entries: Sequence[Entry]) -> None:
        """Write one pack for this batch and stage; a disk that refuses stops the documents, not the worker."""
        name = f"{stage.value}/{self.batch.id}-{self.batch.token}"
        try:
            self.refs += self.tools.artifacts.write(name, entries)
        except PipelineError as error:
            self.fail_together(self.alive(), stage, error)

    def reuse(self, keys: Mapping[str, Item], stage: Stage) -> dict[str, Ref]:
        """Outputs that somebody made already under the same key; the item then points at the same bytes."""
        found = references.by_key(self.tools.db, keys) if keys else {}
        for key, ref in found.items():
            work = keys[key].work
            self.refs.append(Ref(work.document_id, work.version, stage, key, ref.pack, ref.start, ref.length))
        return found

    def kept(self, stage: Stage, items: Sequence[Item]) -> dict[str, bytes]:
        """Document id → its output of a stage, where this version has one that can be read."""
        if not items:
            return {}
        stored = self._places()
        present = [item for item in items if (stage, item.work.document_id) in stored]
        outcomes = self._read([stored[stage, item.work.document_id] for item in present])
        pairs = zip(present, outcomes, strict=True)
        return {item.work.document_id: outcome for item, outcome in pairs if not isinstance(outcome, Rejected)}

    def fetch(self, stage: Stage, items: Sequence[Item], use: Callable[[Item, bytes], None]) -> None:
        """Hand each item its output of an earlier stage. Where that is gone or damaged, the document starts again from load."""
        if not items:
            return
        for item, data in self._payloads(stage, items):
            try:
                use(item, data)
            except PipelineError as error:
                self.fail(item, stage, error)
                self._restart(item)

    def _payloads(self, stage: Stage, items: Sequence[Item]) -> list[tuple[Item, bytes]]:
        found = {name: ref for (of, name), ref in self._places().items() if of is stage}
        present: list[Item] = []
        for item in items:
            if item.work.document_id in found:
                present.append(item)
                item.keys[stage] = found[item.work.document_id].key
            else:
                self.fail(item, stage, NotFound(f"the {stage.value} artifact of {item.work.key} is missing", code="artifact_missing"))
                self._restart(item)
        pairs: list[tuple[Item, bytes]] = []
        for item, outcome in zip(present, self._read([found[item.work.document_id] for item in present]), strict=True):
            if isinstance(outcome, Rejected):
                self.fail(item, stage, outcome)
                self._restart(item)
            else:
                pairs.append((item, outcome))
        return pairs

    def _places(self) -> dict[tuple[Stage, str], Ref]:
        if self._stored is None:
            self._stored = references.of_batch(self.tools.db, self.batch.id, _NEEDED[self.batch.stages[0]])
        return self._stored

    def _read(self, refs: Sequence[Ref]) -> list[bytes | Rejected]:
        """Outputs, or why one is not there. A deletion may have written a pack anew since its place was looked up; the ledger then knows where."""
        outcomes = self.tools.artifacts.each(refs)
        lost = [position for position, outcome in enumerate(outcomes) if isinstance(outcome, Rejected)]
        if lost:
            self._stored = None
        for position in lost:
            now = self._places().get((refs[position].stage, refs[position].document_id))
            if now is not None and now != refs[position]:
                outcomes[position] = self.tools.artifacts.each([now])[0]
        return outcomes

    def _restart(self, item: Item) -> None:
        work = item.work
        if item.setback is None or work.attempts + 1 >= self.tools.max_attempts:
            return
        item.setback = Setback(
            work.document_id, Stage.LOAD, "retry", item.setback.code, item.setback.detail, item.setback.hint, delay_s=verdict.jitter(work.attempts)
        )

    def outcome(self, seconds: float) -> Outcome:
        """What to commit: every document is in exactly one of advances and setbacks."""
        advances: list[Advance] = []
        setbacks: list[Setback] = []
        for item in self.items:
            if item.setback is not None:
                setbacks.append(item.setback)
            elif item.reached is not None:
                parsed = item.parsed
                told = item.detail
                title = (told.title if told else "") or item.work.title or (parsed.title if parsed else "")
                media_type = parsed.media_type if parsed else (told.media_type if told else item.work.media_type)
                remark = "; ".join(parsed.warnings) if parsed else ""
                advances.append(Advance(item.work.document_id, item.reached, item.source_hash, item.chunk_count, title, media_type, remark, told))
        return Outcome(tuple(advances), tuple(setbacks), tuple(self.refs), tuple(self.spent), seconds, self.dimension)
