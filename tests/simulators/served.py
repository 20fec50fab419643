"""What the simulators of vendors share: a real HTTP server on loopback, a clock that tests turn, scripted faults, a log of requests."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any, Self
from urllib.parse import parse_qsl

import orjson
import uvicorn

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Clock:
    """Seconds since the epoch that pass only when a test says so, or with real time when `real`."""

    def __init__(self, start: float = 1_780_000_000.0, *, real: bool = False) -> None:
        self._now, self._real = start, real

    def now(self) -> float:
        return time.time() if self._real else self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds


@dataclass(frozen=True, slots=True)
class Call:
    """One request as it arrived."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    at: float
    status: int = 0
    raw_query: str = ""
    """As it came: the only place that shows a name given twice."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the simulator sends back."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    delay_s: float = 0.0
    cut_at: int | None = None
    """Bytes of the body after which the connection breaks."""

    @classmethod
    def json(cls, content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
        return cls(status, orjson.dumps(content), {"content-type": "application/json; charset=utf-8", **(headers or {})})


@dataclass(slots=True)
class Fault:
    """Answers requests whose path matches, `times` times, instead of the simulator; `skip` such requests pass first."""

    path: str
    answer: Answer
    times: int = 1
    skip: int = 0

    def strikes(self, path: str) -> bool:
        if self.times <= 0 or not re.search(self.path, path):
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


class Simulator:
    """Serves `answer` on a free port of loopback, in a thread, until the block ends."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.calls: list[Call] = []
        self.faults: list[Fault] = []
        self.after: dict[int, Callable[[], object]] = {}
        """Number of the request (from 1) → what happens right after it."""
        self.lock = threading.RLock()
        self.url = ""
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def answer(self, call: Call) -> Answer:
        """To be written by each simulator."""
        raise NotImplementedError

    def asked(self, pattern: str) -> list[Call]:
        """Requests whose path matches."""
        with self.lock:
            return [call for call in self.calls if re.search(pattern, call.path)]

    def start(self, port: int = 0) -> Self:
        config = uvicorn.Config(
            self._app, host="127.0.0.1", port=port, log_level="error", interface="asgi3", lifespan="off", ws="none", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True, name=type(self).__name__)
        self._thread.start()
        until = time.monotonic() + 10
        while not self._server.started:
            if time.monotonic() > until or not self._thread.is_alive():
                raise RuntimeError(f"{type(self).__name__} did not start")
            time.sleep(0.005)
        self.url = f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"
        return self

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(timeout=5)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        query = dict(parse_qsl(scope["query_string"].decode(), keep_blank_values=True))
        call = Call(scope["method"], scope["path"], query, headers, body, self.clock.now(), raw_query=scope["query_string"].decode())
        answer = self._decide(call)
        if answer.delay_s:
            await asyncio.sleep(answer.delay_s)
        sent = {"content-length": str(len(answer.body)), **answer.headers}
        start = {"type": "http.response.start", "status": answer.status, "headers": [(k.encode(), v.encode()) for k, v in sent.items()]}
        await send(start)
        if answer.cut_at is not None:
            await send({"type": "http.response.body", "body": answer.body[: answer.cut_at], "more_body": True})
            # uvicorn closes a connection whose application ends before its announced length
            return
        await send({"type": "http.response.body", "body": answer.body})

    def _decide(self, call: Call) -> Answer:
        with self.lock:
            number = len(self.calls) + 1
            fault = next((fault for fault in self.faults if fault.strikes(call.path)), None)
            answer = fault.answer if fault is not None else self.answer(call)
            self.calls.append(replace(call, status=answer.status))
            then = self.after.pop(number, None)
            if then is not None:
                then()
            return answer


class Around:
    """`Surroundings` of one process on the simulator's clock: waiting turns the clock, limits are real token buckets on it."""

    def __init__(self, clock: Clock, *, patience_s: float = 5.0) -> None:
        self.clock, self.patience_s = clock, patience_s
        self.stopped = False
        self.slept = 0.0
        self._buckets: dict[str, tuple[float, float]] = {}
        self._blocked: dict[str, float] = {}
        self._shared: dict[str, tuple[str, float]] = {}
        self.notes: dict[str, str] = {}
        self._lock = threading.RLock()

    def now(self) -> float:
        return self.clock.now()

    def sleep(self, seconds: float) -> None:
        self.check()
        self.slept += seconds
        self.clock.advance(seconds)

    def check(self) -> None:
        from pipeline.errors import Cancelled

        if self.stopped:
            raise Cancelled("the run was stopped")

    def acquire(self, route: str, *, rate: float, burst: float, slots: int = 0) -> Any:
        from contextlib import nullcontext

        from pipeline.errors import RateLimited

        with self._lock:
            wait = max(0.0, self._blocked.get(route, 0.0) - self.now())
            if not wait and rate > 0:
                held, at = self._buckets.get(route, (burst, self.now()))
                held = min(burst, held + (self.now() - at) * rate)
                wait = max(0.0, (1.0 - held) / rate)
                if not wait:
                    self._buckets[route] = (held - 1.0, self.now())
            if not wait:
                return nullcontext()
            if wait > self.patience_s:
                raise RateLimited(f"{route} is used up", after=wait, scope=route)
        self.sleep(wait + 1e-6)
        return self.acquire(route, rate=rate, burst=burst, slots=slots)

    def blocked(self, route: str, seconds: float) -> None:
        self._blocked[route] = self.now() + seconds

    def shared(self, name: str, make: Callable[[], tuple[str, float]], *, stale: str = "") -> str:
        with self._lock:
            value, until = self._shared.get(name, ("", 0.0))
            if value and until > self.now() and value != stale:
                return value
            value, life = make()
            self._shared[name] = (value, self.now() + life)
            return value

    def remembered(self) -> Iterator[tuple[str, str]]:
        return iter(list(self.notes.items()))

    def remember(self, notes: Mapping[str, str | None]) -> None:
        self.notes = {name: text for name, text in {**self.notes, **notes}.items() if text is not None}
