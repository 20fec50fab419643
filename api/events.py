"""Server-sent events: the progress of a run, and an answer as it is written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import chain
from types import GeneratorType
from typing import TypeVar, cast

from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from api import problems
from api.encoding import dumps
from pipeline.contracts import Answer
from pipeline.errors import PipelineError
from pipeline.shapes import answer_json
from workers.views import RunView, shape

T = TypeVar("T")

HEARTBEAT_S = 15.0
"""Proxies close a connection that is silent for a minute."""
POLL_S = 0.5
MEDIA_TYPE = "text/event-stream"
BEAT = b": keep-alive\n\n"


def event(name: str, value: object, *, number: int | None = None) -> bytes:
    """One event whose data is one line of JSON."""
    head = f"id: {number}\n" if number is not None else ""
    return f"{head}event: {name}\ndata: ".encode() + dumps(value) + b"\n\n"


def stream(source: AsyncIterator[bytes]) -> StreamingResponse:
    """The response that no proxy may hold back."""
    return StreamingResponse(source, media_type=MEDIA_TYPE, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})


async def run_events(first: RunView, fetch: Callable[[], RunView], *, last_id: str = "") -> AsyncIterator[bytes]:
    """`progress` at each change, then `finished`; each carries the whole run, so nothing is lost by a reconnection."""
    number = int(last_id) if last_id.isdigit() and len(last_id) < 16 else 0
    run, shown, silent_s = first, b"", 0.0
    while True:
        value = shape(run)
        line = dumps({key: item for key, item in value.items() if key != "duration_s"})
        if run.finished:
            yield event("finished", value, number=number + 1)
            return
        if line != shown:
            number, shown, silent_s = number + 1, line, 0.0
            yield event("progress", value, number=number)
        elif silent_s >= HEARTBEAT_S:
            silent_s = 0.0
            yield BEAT
        await asyncio.sleep(POLL_S)
        silent_s += POLL_S
        try:
            run = await run_in_threadpool(fetch)
        except PipelineError as error:
            yield event("error", problems.problem(error).json())
            return


_END = object()


async def answer_events(pieces: Iterator[str | Answer], *, trace: bool) -> AsyncIterator[bytes]:
    """`token` for each piece of text, then `answer` with the whole; `error` with a problem when it breaks off."""
    try:
        async for piece in unhurried(pieces):
            if piece is None:
                yield BEAT
            elif isinstance(piece, str):
                yield event("token", {"text": piece})
            else:
                yield event("answer", answer_json(piece, trace=trace))
    except PipelineError as error:
        yield event("error", problems.problem(error).json())


def started(pieces: Iterator[str | Answer]) -> Iterator[str | Answer]:
    """The same pieces, the first one drawn already: what fails before it still gets its own status."""
    first = next(pieces, None)
    return pieces if first is None else _closing(first, pieces)


def _closing(first: str | Answer, rest: Iterator[str | Answer]) -> Iterator[str | Answer]:
    try:
        yield from chain((first,), rest)
    finally:
        close = getattr(rest, "close", None)
        if close is not None:
            close()


async def unhurried(source: Iterator[T]) -> AsyncIterator[T | None]:
    """Items of a blocking iterator, each taken in a thread; None whenever the next one is slow."""
    task: asyncio.Future[T | object] | None = None
    try:
        while True:
            task = asyncio.ensure_future(run_in_threadpool(_next, source))
            while not (await asyncio.wait({task}, timeout=HEARTBEAT_S))[0]:
                yield None
            item = task.result()
            if item is _END:
                return
            yield cast(T, item)
    finally:
        if task is None or task.done():
            _close(source)
        else:
            # the reader left while a thread waits for the next piece: close when it comes back
            task.add_done_callback(lambda done: (done.cancelled() or done.exception(), _close(source)))


def _next(source: Iterator[T]) -> T | object:
    return next(source, _END)


def _close(source: Iterator[object]) -> None:
    if isinstance(source, GeneratorType) and not source.gi_running:
        source.close()
