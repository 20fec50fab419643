"""A model server that speaks OpenAI's protocol, with faults and latency that can be set while it runs.

    python -m tests.simulators.model_server --port 0        prints its address
    curl $URL/_config -d '{"latency_ms": 200, "fail_429_rate": 0.02}'
    curl $URL/_stats ; curl $URL/_log ; curl -X POST $URL/_reset

Serves /v1/embeddings, /v1/chat/completions (also streamed), /v1/rerank and /v1/models. Equal texts get equal unit
vectors, texts that share words get near ones. Chat quotes the first passage of the prompt, or says `answers`.
It does next to nothing for a request, so that a benchmark measures its client.
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import orjson

from tests.simulators.model_answers import Config, Refusal, State, chat, embed, head, rerank, whole

ROOT = Path(__file__).resolve().parents[2]


FLAGS = frozenset(f.name for f in fields(Config))


class Connection(asyncio.Protocol):
    """HTTP/1.1 with Content-Length, one request at a time, kept alive."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.buffer = bytearray()
        self.wanted = 0
        self.busy = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        # an answer of 128 vectors is 700 kB: it should leave in one piece
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**21)
        self.state.counts["connections"] += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if not self.busy and len(self.buffer) >= self.wanted:
            self.read()

    def read(self) -> None:
        while self.transport is not None and not self.busy:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            lines = bytes(self.buffer[:end]).split(b"\r\n")
            headers = {key.lower(): value.strip() for key, _, value in (line.partition(b":") for line in lines[1:])}
            total = end + 4 + int(headers.get(b"content-length", b"0"))
            self.wanted = total
            if len(self.buffer) < total:
                if headers.get(b"expect"):
                    self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                return
            body = bytes(self.buffer[end + 4 : total])
            del self.buffer[:total]
            self.wanted = 0
            method, path, _ = lines[0].split(b" ", 2)
            self.answer(method.decode(), path.split(b"?")[0].decode(), headers, body)

    def answer(self, method: str, path: str, headers: dict[bytes, bytes], body: bytes) -> None:
        state, config = self.state, self.state.config
        if path.rsplit("/", 1)[-1].startswith("_"):
            self.send(control(state, path, body))
            return
        state.counts["requests"] += 1
        state.in_flight += 1
        state.most = max(state.most, state.in_flight)
        if config.hang or (config.hangs_on and config.hangs_on.encode() in body):
            self.busy = True
            self.note(path, 0)
            return
        try:
            parts, size = self.parts(method, path, headers, body)
            self.note(path, 200)
        except Refusal as refusal:
            parts, size = [self.refuse(refusal, headers, body)], 0
            self.note(path, refusal.status)
        wait = (config.latency_ms + config.latency_per_input_ms * size) / 1000
        if wait or len(parts) > 1:
            self.busy = True
            task = asyncio.ensure_future(self.later(wait, parts))
            task.add_done_callback(lambda _: None)
            return
        self.send(parts[0])
        state.in_flight -= 1

    def note(self, path: str, status: int) -> None:
        if self.state.config.keep_log:
            self.state.log.append((time.time(), path, status))

    async def later(self, wait: float, parts: list[bytes]) -> None:
        state, config = self.state, self.state.config
        try:
            await asyncio.sleep(wait)
            state.slept_s += wait
            for place, part in enumerate(parts):
                if config.cut_stream and place > config.cut_stream and self.transport is not None:
                    self.transport.abort()
                    break
                self.send(part)
                if config.pause_ms:
                    await asyncio.sleep(config.pause_ms / 1000)
        finally:
            state.in_flight -= 1
            self.busy = False
        self.read()

    def send(self, data: bytes) -> None:
        if self.transport is None:
            return
        if data:
            self.transport.write(data)
        else:
            self.transport.abort()

    def parts(self, method: str, path: str, headers: dict[bytes, bytes], body: bytes) -> tuple[list[bytes], int]:
        """The answer in pieces, and the number of inputs; an empty piece closes the connection."""
        state, config = self.state, self.state.config
        if config.drop:
            return [b""], 0
        wanted = f"Bearer {config.key}" if config.key_header == "authorization" else config.key
        if config.key and headers.get(config.key_header.encode()) != wanted.encode():
            raise Refusal(401, "wrong key", "invalid_api_key")
        if config.status:
            raise Refusal(config.status, "as configured", config.code)
        if config.concurrency and state.in_flight > config.concurrency:
            raise Refusal(429, "too many requests at once", config.code or "rate_limit_exceeded")
        if config.fail_429_rate and state.random.random() < config.fail_429_rate:
            raise Refusal(429, "slow down", config.code or "rate_limit_exceeded")
        if config.fail_500_rate and state.random.random() < config.fail_500_rate:
            raise Refusal(500, "it broke", config.code or "server_error")
        if config.garbage:
            return whole(b'{"object": "list", "data": [{"embedding": '), 0
        if config.raw:
            body = config.raw.encode()
            return [head(200, len(body), kind=(config.raw_type or "application/json").encode()) + body], 0
        if path.endswith("/models"):
            return whole(orjson.dumps({"object": "list", "data": [{"id": "stub", "object": "model", "created": 0, "owned_by": "stub"}]})), 0
        if method != "POST":
            raise Refusal(404, "no such page")
        try:
            asked = orjson.loads(body)
        except orjson.JSONDecodeError:
            raise Refusal(400, "not JSON", "invalid_json") from None
        if path.endswith("/embeddings"):
            return embed(state, asked)
        if path.endswith("/chat/completions"):
            return chat(state, asked), 0
        if path.endswith("/rerank"):
            return rerank(state, asked)
        raise Refusal(404, "no such page")

    def refuse(self, refusal: Refusal, headers: dict[bytes, bytes], body: bytes) -> bytes:
        """Error bodies quote the key and the request on purpose: nothing of either may reach a user."""
        state, config = self.state, self.state.config
        state.counts[f"fail_{refusal.status}" if refusal.status in {429, 500} else "refused"] += 1
        keys = b" ".join(headers.get(name, b"") for name in (b"authorization", b"api-key")).decode()
        quoted = f"{refusal}: {keys} {body[:200].decode('utf-8', 'replace')}"
        answer = orjson.dumps({"error": {"message": quoted, "type": "stub", "code": refusal.code or None}})
        after = {"Retry-After": config.retry_after} if config.retry_after else {}
        return head(refusal.status, len(answer), {**after, **config.headers}) + answer


def control(state: State, path: str, body: bytes) -> bytes:
    if path.endswith("/_config"):
        given = orjson.loads(body or b"{}")
        unknown = sorted(set(given) - set(FLAGS))
        if unknown:
            answer = orjson.dumps({"error": f"unknown: {', '.join(unknown)}"})
            return head(400, len(answer)) + answer
        for name, value in given.items():
            setattr(state.config, name, value)
        state.said = 0 if "answers" in given else state.said
        return whole(orjson.dumps(asdict(state.config)))[0]
    if path.endswith("/_reset"):
        state.reset()
        return whole(b"{}")[0]
    if path.endswith("/_messages"):
        return whole(orjson.dumps(state.messages))[0]
    if path.endswith("/_log"):
        return whole(orjson.dumps(state.log))[0]
    return whole(orjson.dumps(state.stats()))[0]


async def serve(config: Config, host: str, port: int, *, watch: bool) -> None:
    loop = asyncio.get_running_loop()
    state = State(config)
    server = await loop.create_server(lambda: Connection(state), host, port, backlog=1024)
    print(f"http://{host}:{server.sockets[0].getsockname()[1]}", flush=True)
    if watch:
        await orphaned(loop)
        server.close()
        return
    async with server:
        await server.serve_forever()


async def orphaned(loop: asyncio.AbstractEventLoop) -> None:
    """Returns when the parent is gone: its end of our standard input closes, or we get another parent."""
    ended = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), lambda: ended.set() if not os.read(sys.stdin.fileno(), 64) else None)
    parent = os.getppid()
    while not ended.is_set() and os.getppid() == parent:
        try:
            await asyncio.wait_for(ended.wait(), timeout=1.0)
        except TimeoutError:
            continue


class ModelServer:
    """The server as a child process: ``with ModelServer(latency_ms=50) as server: server.url``.

    `url` is the address to configure (it ends in /v1); `root` is the same without that.
    """

    def __init__(self, port: int = 0, **config: Any) -> None:
        self._port = port
        self._config = config
        self._process: subprocess.Popen[str] | None = None
        self.root = ""

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> ModelServer:
        command = [sys.executable, "-m", "tests.simulators.model_server", "--port", str(self._port), "--watch"]
        # large answers come from kept memory rather than from fresh pages each time
        environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "67108864", "MALLOC_TRIM_THRESHOLD_": "134217728"}
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        atexit.register(self.stop)
        assert self._process.stdout is not None
        self.root = self._process.stdout.readline().strip()
        if not self.root:
            raise RuntimeError(f"the model server ended with {self._process.wait()}")
        if self._config:
            self.config(**self._config)
        return self

    def stop(self) -> None:
        atexit.unregister(self.stop)
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> ModelServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def config(self, **values: Any) -> dict[str, Any]:
        """Set values, give back all of them."""
        return self._call("_config", json.dumps(values).encode())

    def clear(self) -> None:
        """Defaults again, and counters at zero."""
        self.config(**asdict(Config()))
        self.reset()

    def stats(self) -> dict[str, Any]:
        return self._call("_stats")

    def reset(self) -> None:
        self._call("_reset", b"")

    def log(self) -> list[tuple[float, str, int]]:
        """(time, path, status; 0 for no answer) of each request since the last reset, where `keep_log` is set."""
        return [tuple(row) for row in self._call("_log")]

    def messages(self) -> list[dict[str, Any]]:
        """The chat requests since the last reset, whole, where `keep_messages` is set."""
        return self._call("_messages")

    def _call(self, path: str, body: bytes | None = None) -> Any:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(urllib.request.Request(f"{self.root}/{path}", data=body), timeout=10) as answer:
            return json.loads(answer.read())


def flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    for name, default in asdict(Config()).items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(default, bool):
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, int | float | str):
            parser.add_argument(flag, type=type(default), default=default)
        else:
            continue
        yield name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--watch", action="store_true", help="end when standard input closes")
    names = list(flags(parser))
    given = parser.parse_args()
    config = Config(**{name: getattr(given, name) for name in names})
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(config, given.host, given.port, watch=given.watch))


if __name__ == "__main__":
    main()
