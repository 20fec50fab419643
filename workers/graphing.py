"""Documents into their collection's graph: chunks in, contributions out, what became dirty folded. Behind the index; no run waits for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pipeline.chunk import packed as packed_chunks
from pipeline.contracts import Chunk, Stage
from pipeline.errors import NotFound, PipelineError, Rejected, Retryable, Unavailable
from pipeline.identity import index_name
from workers.feeder import Feeder
from workers.ledger import graphing, losses, refs
from workers.ledger.graphing import Claimed, Stopped, Wanted
from workers.logs import bound
from workers.runtime import Runtime
from workers.stage import Lease
from workers.verdict import jitter

if TYPE_CHECKING:
    from graphrag.contracts import Contribution

LOOK_EVERY_S = 1.0

log = logging.getLogger("dujiang.graph")


class Looker:
    """Looks for what the graphs lack, once a second at most. Safe to run in the supervisor and in `beat` at once."""

    def __init__(self, feeder: Feeder, runtime: Runtime) -> None:
        self._feeder, self._runtime = feeder, runtime
        self._looked = 0.0

    def turn(self) -> int:
        """Form and publish what fits now; returns how many batches. Raises Unavailable when the ledger is away."""
        extractor = self._runtime.graph_extractor
        now = time.monotonic()
        if not extractor or now - self._looked < LOOK_EVERY_S:
            return 0
        self._looked = now
        return feed(self._feeder, extractor)


def feed(feeder: Feeder, extractor: str) -> int:
    """Form and publish the next batches of every collection that lacks something."""
    number = 0
    for row in graphing.pending(feeder.db, extractor):
        issues = graphing.form(feeder.db, row, extractor)
        feeder.send(issues)
        number += len(issues)
    return number


def run_graph(batch_id: int, token: int, runtime: Runtime) -> bool:
    """Do one batch and commit it; False when there was nothing to do or the lease was lost meanwhile. Raises Unavailable: the lease runs out."""
    claimed = graphing.claim(runtime.db, batch_id, token, runtime.owner, lease_s=runtime.lease_s, deadline_s=runtime.deadline_s)
    if claimed is None:
        return False
    with bound(batch=batch_id, token=token, stage=Stage.GRAPH.value):
        try:
            return _run(claimed, runtime)
        except Exception as error:
            log.error("graph broke", exc_info=error)
            # A bug or a store that is away: the documents go again, each alone, so that the one at fault is found.
            losses.expire(runtime.db, batch_id, token, reason=f"{type(error).__name__} in stage graph")
            raise


def _run(claimed: Claimed, runtime: Runtime) -> bool:
    started = time.monotonic()
    stopped: list[Stopped] = []
    with Lease(claimed.batch, runtime):
        if claimed.batch.collection.dimension is not None:
            stopped = list(_added(runtime, claimed))
    seconds = time.monotonic() - started
    log.info("stage done", extra={"documents": len(claimed.documents), "stopped": len(stopped), "seconds": round(seconds, 3)})
    committed = graphing.commit(runtime.db, claimed, stopped, seconds)
    if not committed:
        log.warning("lease lost")
    return committed


def _added(runtime: Runtime, claimed: Claimed) -> Iterator[Stopped]:
    """Extract, add and fold; gives the documents that did not get through."""
    graph = runtime.graph_desk(claimed.batch.collection)
    read = _chunks(runtime, claimed)
    made: dict[str, Contribution] = {}
    for wanted in claimed.documents:
        try:
            found = read.get(wanted.document_id)
            chunks = _from_store(runtime, claimed, wanted) if found is None else found
            made[wanted.document_id] = graph.extract(wanted.document_id, wanted.version, wanted.title or wanted.key, chunks)
        except PipelineError as error:
            yield _stopped(wanted, error)
    try:
        graph.add(list(made.values()))
        # The last batch of a look is an empty one: then nothing may wait any longer.
        graph.fold(everything=not claimed.documents)
    except Retryable as error:
        if not claimed.documents:
            raise
        yield from (_stopped(wanted, error) for wanted in claimed.documents if wanted.document_id in made)


def _chunks(runtime: Runtime, claimed: Claimed) -> Mapping[str, tuple[Chunk, ...]]:
    """Document id → its chunks as the artifacts have them."""
    places = refs.of(runtime.db, Stage.CHUNK, {wanted.document_id: wanted.version for wanted in claimed.documents})
    found: dict[str, tuple[Chunk, ...]] = {}
    for document_id, outcome in zip(places, runtime.artifacts.each(list(places.values())), strict=True):
        if isinstance(outcome, Rejected):
            continue
        try:
            found[document_id] = packed_chunks.load(outcome)
        except Rejected:
            continue
    return found


def _from_store(runtime: Runtime, claimed: Claimed, wanted: Wanted) -> tuple[Chunk, ...]:
    """The same from the document that the store shows, where artifacts are past their retention. Raises Retryable when it is another version."""
    row = claimed.batch.collection
    name = index_name(row.tenant, row.name, row.generation)
    store = runtime.open_store(runtime.settings.store_url, writer=False)
    try:
        text = store.document(name, wanted.document_id).text
        spans = store.spans(name, wanted.document_id)
    except NotFound as error:
        raise Unavailable(f"{wanted.key} is not in the store at this moment", code="document_changing") from error
    return tuple(Chunk(chunk_id, number, start, end, text[start:end]) for number, (chunk_id, (start, end)) in enumerate(spans))


def _stopped(wanted: Wanted, error: PipelineError) -> Stopped:
    log.warning("document stopped", extra={"document": wanted.document_id, "code": error.code, "attempt": wanted.attempts + 1})
    if not isinstance(error, Retryable):
        return Stopped(wanted.document_id, error.code, error.detail, None)
    if not error.costs_attempt:
        return Stopped(wanted.document_id, error.code, error.detail, error.after if error.after is not None else jitter(3), costs_attempt=False)
    final = wanted.attempts + 1 >= 6
    return Stopped(wanted.document_id, error.code, error.detail, None if final else error.after or jitter(wanted.attempts))
