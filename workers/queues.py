"""Stages, lanes and queues: who runs what, in what size, for how long."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.contracts import Lane, Stage

PREFIX = "dujiang."
"""Of every broker queue and Redis key, so that a shared server is safe."""

ORDER: tuple[Stage, ...] = (Stage.LOAD, Stage.PARSE, Stage.CHUNK, Stage.EMBED, Stage.INDEX)
APART: tuple[Stage, ...] = (Stage.GRAPH,)
"""Behind the others, with rows of their own in the ledger: no document waits for them, and no run."""
FUSED: tuple[Stage, ...] = (Stage.LOAD, Stage.PARSE, Stage.CHUNK)
"""Local text passes these in one task: that is what makes bulk ingestion cheap."""

MAX_DOCUMENTS = 64
MAX_CHUNKS = 512
MAX_BYTES = 4_000_000
"""About two seconds of parsing and chunking; a larger document travels alone."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Most a batch of one stage may hold; one document over a bound still travels, alone."""

    documents: int
    chunks: int
    bytes: int


def bounds(stage: Stage, *, chunks_per_batch: int = MAX_CHUNKS) -> Bounds:
    """Bounds per stage; `chunks_per_batch` is smaller for an embedder that computes in this process."""
    if stage in (Stage.EMBED, Stage.INDEX):
        return Bounds(4 * MAX_DOCUMENTS, chunks_per_batch, 1 << 62)
    return Bounds(MAX_DOCUMENTS, 1 << 62, MAX_BYTES)


def queue(stage: Stage, lane: Lane) -> str:
    """``dujiang.parse.bulk``: the broker's queue of a stage and lane."""
    return f"{PREFIX}{stage.value}.{lane.value}"


def all_queues() -> tuple[str, ...]:
    """Every queue that must have a consumer."""
    return tuple(queue(stage, lane) for stage in ORDER for lane in Lane)


def declared() -> tuple[str, ...]:
    """Every queue that there is: also those that have a consumer only where their stage is switched on."""
    return (*all_queues(), *(queue(stage, Lane.BULK) for stage in APART))


def stage_of(name: str) -> Stage:
    """The stage whose pool serves a queue."""
    return Stage(name.removeprefix(PREFIX).partition(".")[0])


def home(stages: tuple[Stage, ...], lane: Lane) -> str:
    """The queue that a batch of consecutive stages goes to.

    A fused batch computes, so it goes where the processes are, not to the threads that wait for networks.
    """
    return queue(Stage.PARSE if len(stages) > 1 else next(iter(stages)), lane)


def following(stage: Stage) -> Stage | None:
    """The next stage, or None after the last."""
    position = ORDER.index(stage) + 1
    return ORDER[position] if position < len(ORDER) else None
