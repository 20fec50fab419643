"""The other end of `guard`: reads requests, parses under limits, writes replies. Imports a format's library with its first document."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import cast

from pipeline import wire
from pipeline.contracts import RawDocument, SourceItem
from pipeline.errors import Malformed, PipelineError, TooLarge
from pipeline.parse import packed, parse

_PR_SET_PDEATHSIG = 1
_MOST_WRITTEN = 1 << 20
_MEGABYTE = 1 << 20


def serve() -> None:
    """Run until the input ends. Never returns normally: the process ends with it."""
    source, target = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    config = _next(source)
    if config is None:
        os._exit(0)
    timeout_s, memory_mb, parent, risky, parsers = cast(tuple[float, int, int, tuple[str, ...], dict[str, str]], config)
    _prepare(parent, memory_mb)
    _send(target, b"D")
    while (request := _next(source)) is not None:
        _rearm(timeout_s)
        _send(target, _answer(request, parsers, frozenset(risky)))
        del request
    os._exit(0)


def _prepare(parent: int, memory_mb: int) -> None:
    """Limits of this process: memory, files, core dumps, and the parent's death."""
    sys.excepthook = _note
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(0)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, _MOST_WRITTEN)
    _limit(resource.RLIMIT_AS, memory_mb * _MEGABYTE)
    _limit(resource.RLIMIT_DATA, memory_mb * _MEGABYTE)


def _limit(what: int, most: int) -> None:
    """Lower a soft limit, never above the hard one; systems that know no such limit go without."""
    _, hard = resource.getrlimit(what)
    try:
        resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    except (ValueError, OSError):
        return


def _rearm(timeout_s: float) -> None:
    """CPU seconds for the next document, counted from now. The parent's wall clock ends it first on an idle machine."""
    _limit(resource.RLIMIT_CPU, int(time.process_time() + timeout_s) + 2)


def _answer(request: object, parsers: Mapping[str, str], risky: frozenset[str]) -> bytes:
    raw, options = _document(request)
    try:
        document = parse(raw, options, parsers=parsers)
        return (b"R" if document.media_type in risky else b"D") + packed.dump(document)
    except PipelineError as error:
        return b"E" + _error(error)
    except MemoryError:
        hint = "Split the document, or raise DUJIANG_PARSE_MEMORY_MB."
        return b"M" + _error(TooLarge("parsing needed more memory than the parser may use", code="parse_memory", hint=hint))
    except RecursionError:
        return b"E" + _error(Malformed("the document is nested too deep", code="too_deep"))


def _document(request: object) -> tuple[RawDocument, Mapping[str, str]]:
    key, title, url, path, hint, sha, kind, charset, options, data = cast(
        tuple[str, str, str, str, str, str, str, str, dict[str, str], bytes], request
    )
    return RawDocument(SourceItem(key, "", title, url, path, hint), data, sha, kind, charset), options


def _error(error: PipelineError) -> bytes:
    return wire.pack((type(error).__name__, error.detail, error.hint, error.code))


def _note(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An unexpected exception in one line without its message, which may quote the document."""
    frames = [frame for frame in traceback.extract_tb(trace) if not frame.filename.endswith(("child.py", "__init__.py"))]
    own = [frame for frame in frames if f"{os.sep}parse{os.sep}" in frame.filename] or frames
    at = own[-1] if own else None
    place = f" in {at.name} ({os.path.basename(at.filename)}:{at.lineno})" if at else ""
    sys.stderr.write(f"crash: {kind.__name__}{place}\n")
    sys.stderr.flush()


def _next(source: int) -> object:
    """The next frame's content; None at the end of the input."""
    head = _exactly(source, 4)
    if head is None:
        return None
    body = _exactly(source, int.from_bytes(head, "big"))
    return None if body is None else wire.unpack(body)


def _exactly(source: int, size: int) -> bytes | None:
    piece = os.read(source, size)
    if len(piece) == size:
        return piece
    pieces = [piece]
    left = size - len(piece)
    while left and piece:
        piece = os.read(source, min(left, 1 << 20))
        pieces.append(piece)
        left -= len(piece)
    return None if left else b"".join(pieces)


def _send(target: int, body: bytes) -> None:
    left = memoryview(len(body).to_bytes(4, "big") + body)
    while left:
        left = left[os.write(target, left) :]
