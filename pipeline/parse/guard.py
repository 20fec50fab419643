"""Parsing in a child process that may hang, swell or crash: only the document at fault pays.

The child is started with `subprocess`, since a Celery pool child may have no `multiprocessing` children. Parent and
child speak frames over pipes: four bytes of length, then msgpack. Requests are written ahead, so that small documents
cost no round trip each; every reply is written before the next document begins, so that a dead child names its culprit.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self, cast

from pipeline import errors, wire
from pipeline.contracts import ParsedDocument, RawDocument
from pipeline.errors import Malformed, PipelineError, TooLarge, Unavailable
from pipeline.parse import PARSERS, RISKY, packed

Outcome = ParsedDocument | PipelineError

_PIPE_BYTES = 1 << 20
_START_S = 60.0
"""Most wall seconds a child may take to start on a busy machine."""
_BOOT = "import sys; sys.path[:] = sys.argv[1:]; from pipeline.parse.child import serve; serve()"
_OUT_OF_MEMORY = (b"memory allocation of", b"bad_alloc", b"MemoryError", b"Cannot allocate memory", b"out of memory")


class Guard:
    """One long-lived child. Safe to call from several threads, which then take turns; safe to create before or after a fork.

    Args:
        timeout_s: most wall and CPU seconds a document.
        memory_mb: address space of the child.
        recycle_after: documents in formats read by native code (`RISKY`) after which the child is replaced.
        parsers: media type → "module:function"; modules must be importable in the child, which gets this process's `sys.path`.
    """

    def __init__(self, *, timeout_s: float, memory_mb: int, recycle_after: int = 500, parsers: Mapping[str, str] = PARSERS) -> None:
        self.timeout_s = timeout_s
        self.memory_mb = memory_mb
        self.recycle_after = recycle_after
        self.parsers = dict(parsers)
        self._lock = threading.Lock()
        self._child: _Child | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the child; the guard may be used again."""
        with self._lock:
            self._drop()

    def parse_many(self, raws: Sequence[RawDocument], options: Mapping[str, str] = {}) -> list[Outcome]:
        """One outcome each, in order; never raises for a document.

        TooLarge ``parse_memory``, Malformed ``parse_timeout`` or ``parse_crashed`` for what killed the child; Unavailable
        for the rest when no child can be started. A child that somebody else killed gets a second try at its document.
        """
        outcomes: list[Outcome] = []
        again = -1
        with self._lock:
            while len(outcomes) < len(raws):
                try:
                    child = self._ready()
                except Unavailable as error:
                    outcomes.extend([error] * (len(raws) - len(outcomes)))
                    break
                got, failure = child.converse(raws[len(outcomes) :], options, self.timeout_s)
                outcomes.extend(got)
                if failure is not None:
                    if child.process.returncode == -signal.SIGKILL and again != len(outcomes):
                        again = len(outcomes)
                    else:
                        outcomes.append(failure)
                    self._drop()
                elif child.stale:
                    self._drop()
        return outcomes

    def _ready(self) -> _Child:
        child = self._child
        if child is not None and child.owner != os.getpid():
            child = self._child = None
        if child is not None and child.process.poll() is not None:
            self._drop()
            child = None
        if child is None:
            child = self._child = _Child(self.timeout_s, self.memory_mb, self.recycle_after, self.parsers)
        return child

    def _drop(self) -> None:
        child, self._child = self._child, None
        if child is not None and child.owner == os.getpid():
            child.end()


class _Child:
    """The process, its pipes, and the thread that started it.

    Linux kills a child when the *thread* that started it ends, so a thread of its own stays for as long as the child lives.
    """

    def __init__(self, timeout_s: float, memory_mb: int, recycle_after: int, parsers: Mapping[str, str]) -> None:
        self.owner = os.getpid()
        self.left = recycle_after
        self.stale = False
        self._said = b""
        started = threading.Event()
        self._failure: OSError | None = None
        self._keeper = threading.Thread(target=self._keep, args=(started,), name="parse-guard", daemon=True)
        self._keeper.start()
        started.wait()
        if self._failure is not None:
            raise Unavailable("the parsing process cannot be started", dependency=True) from self._failure
        config = (float(timeout_s), memory_mb, self.owner, sorted(RISKY), dict(parsers))
        self._input, self._output = _pipes(self.process)
        self._inbox = bytearray()
        failed = self._exchange([_frame(config)], 1, _START_S, [])
        if failed:
            self.end()
            raise Unavailable(f"the parsing process did not start: {failed}", dependency=True)

    def _keep(self, started: threading.Event) -> None:
        """Start the child, then drain what it says, keeping the end of it, until it is dead."""
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            self._failure = error
            return
        finally:
            started.set()
        assert self.process.stderr is not None
        with self.process.stderr as noise:
            while piece := noise.read(65536):
                self._said = (self._said + piece)[-4096:]
        self.process.wait()

    def converse(self, raws: Sequence[RawDocument], options: Mapping[str, str], timeout_s: float) -> tuple[list[Outcome], PipelineError | None]:
        """Outcomes until the child fails, is due for replacement or all is done; then the failure of the document at fault."""
        replies: list[bytes] = []
        plan = dict(options)
        frames = (_frame(_request(raw, plan)) for raw in raws)
        failed = self._exchange(frames, len(raws), timeout_s, replies)
        outcomes: list[Outcome] = []
        for raw, reply in zip(raws, replies, strict=False):
            outcomes.append(_outcome(reply, raw))
            self.left -= reply[:1] in b"RM"
            self.stale = self.stale or reply[:1] == b"M" or self.left <= 0
        if not failed or len(outcomes) == len(raws):
            return outcomes, None
        return outcomes, self._verdict(failed, raws[len(outcomes)].item.key, timeout_s)

    def _exchange(self, frames: Iterable[bytes], expected: int, timeout_s: float, replies: list[bytes]) -> str:
        """Write frames and collect as many replies; returns what went wrong, or an empty string.

        The clock of a document starts with the reply to the one before it.
        """
        source = iter(frames)
        pending = memoryview(b"")
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._output, selectors.EVENT_READ)
            writing = False
            while len(replies) < expected:
                if not pending and (following := next(source, None)) is not None:
                    pending = memoryview(following)
                if bool(pending) != writing:
                    writing = bool(pending)
                    _ = selector.register(self._input, selectors.EVENT_WRITE) if writing else selector.unregister(self._input)
                left = deadline - time.monotonic()
                ready = selector.select(left) if left > 0 else []
                if not ready:
                    return "timeout"
                for key, _ in ready:
                    if key.fd == self._output:
                        if not self._receive(replies, expected):
                            return "ended"
                        deadline = time.monotonic() + timeout_s
                    else:
                        try:
                            pending = pending[os.write(self._input, pending) :]
                        except BlockingIOError:
                            continue
                        except BrokenPipeError:
                            source, pending = iter(()), memoryview(b"")
        return ""

    def _receive(self, replies: list[bytes], expected: int) -> bool:
        """Take what the child wrote; False at its end."""
        try:
            piece = os.read(self._output, _PIPE_BYTES)
        except BlockingIOError:
            return True
        if not piece:
            return False
        inbox = self._inbox
        inbox += piece
        at = 0
        while len(inbox) - at >= 4 and len(replies) < expected:
            size = int.from_bytes(inbox[at : at + 4], "big")
            if len(inbox) - at - 4 < size:
                break
            replies.append(bytes(inbox[at + 4 : at + 4 + size]))
            at += 4 + size
        del inbox[:at]
        return True

    def _verdict(self, failed: str, key: str, timeout_s: float) -> PipelineError:
        """What the death of the child says about the document it was at."""
        if failed == "timeout":
            return _slow(timeout_s, key)
        code = self.process.wait()
        self._keeper.join()
        said = self._said
        if code == -signal.SIGKILL:
            return TooLarge("the parsing process was killed, most likely for want of memory", code="parse_memory", document=key)
        if code == -signal.SIGXCPU:
            return _slow(timeout_s, key)
        if any(mark in said for mark in _OUT_OF_MEMORY):
            return TooLarge(
                "parsing needed more memory than the parser may use",
                code="parse_memory",
                hint="Split the document, or raise DUJIANG_PARSE_MEMORY_MB.",
                document=key,
            )
        how = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
        where = next((line[7:] for line in reversed(said.decode("utf-8", "replace").splitlines()) if line.startswith("crash: ")), "")
        return Malformed(
            f"the parser crashed on the document: {where or how}",
            code="parse_crashed",
            hint="Save the document anew in another program; if it opens well everywhere, report it.",
            document=key,
        )

    def end(self) -> None:
        """Kill and reap; a child between documents has nothing to lose."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self._keeper.join()


def _slow(timeout_s: float, key: str) -> Malformed:
    return Malformed(
        f"parsing took longer than {timeout_s:g} s and was stopped",
        code="parse_timeout",
        hint="Split the document, or raise DUJIANG_PARSE_TIMEOUT_S.",
        document=key,
    )


def _pipes(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    """Descriptors of the child's input and output, not blocking, as large as the system allows."""
    assert process.stdin is not None and process.stdout is not None
    ends = process.stdin.fileno(), process.stdout.fileno()
    for end in ends:
        os.set_blocking(end, False)
        if sys.platform == "linux":
            try:
                fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            except OSError:
                continue
    return ends


def _frame(content: object) -> bytes:
    body = wire.pack(content)
    return len(body).to_bytes(4, "big") + body


def _request(raw: RawDocument, options: Mapping[str, str]) -> tuple[object, ...]:
    item = raw.item
    return item.key, item.title, item.url, item.path, item.media_type, raw.sha256, raw.media_type, raw.charset, options, raw.data


def _outcome(reply: bytes, raw: RawDocument) -> Outcome:
    """A reply's first byte tells: D a document, R one in a risky format, E an error, M an error after running out of memory."""
    if reply[:1] in {b"D", b"R"}:
        return packed.load(reply[1:])
    kind, detail, hint, code = cast(tuple[str, str, str, str], wire.unpack(reply[1:]))
    error: PipelineError = getattr(errors, kind)(detail, hint=hint, code=code)
    error.document = raw.item.key
    return error
