"""Reading request bodies within their limits, before anything is parsed into models."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from pipeline.errors import BadRequest, TooLarge

MAX_FILES = 2000
MAX_FIELD_BYTES = 16 * 1024 * 1024
FILES_TOTAL = 10
"""A request may carry this many times the largest single file."""


@dataclass(frozen=True, slots=True)
class Body:
    """A request's body: `raw` of anything but forms, `form` of multipart; `digest` is the same for the same payload."""

    raw: bytes
    form: FormData | None
    digest: str


class _LimitedForm(MultiPartParser):
    """Stops at the first file over the limit, not after it was spooled to disk."""

    def __init__(self, headers: Headers, stream: AsyncGenerator[bytes, None], *, max_bytes: int, total_bytes: int) -> None:
        super().__init__(headers, stream, max_files=MAX_FILES, max_fields=1000, max_part_size=MAX_FIELD_BYTES)
        self._max_bytes, self._total_bytes = max_bytes, total_bytes
        self._part_bytes = self._all_bytes = 0

    def on_part_begin(self) -> None:
        self._part_bytes = 0
        super().on_part_begin()

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        self._part_bytes += end - start
        self._all_bytes += end - start
        file = self._current_part.file
        if file is not None and self._part_bytes > self._max_bytes:
            raise too_large(self._max_bytes, file.filename or "")
        if self._all_bytes > self._total_bytes:
            raise TooLarge(f"the request is larger than {_mb(self._total_bytes)} MB", hint="Send fewer files at a time.")
        super().on_part_data(data, start, end)


def too_large(limit: int, name: str = "") -> TooLarge:
    """The failure that names the setting behind the limit."""
    what = f"{name!r}" if name else "the request"
    return TooLarge(f"{what} is larger than {_mb(limit)} MB", hint="Split it, or raise DUJIANG_MAX_FILE_MB on the server.", document=name)


def _mb(size: int) -> int:
    return size // 1_000_000


async def read(request: Request, *, max_bytes: int) -> Body:
    """Read the whole body.

    Args:
        max_bytes: limit of one uploaded file, and of any body that is no form.
    Raises: TooLarge as soon as the limit is passed, BadRequest for a broken form.
    """
    if request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        form = await _form(request, max_bytes)
        return Body(b"", form, await run_in_threadpool(_form_digest, form))
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise too_large(max_bytes)
    pieces, size = list[bytes](), 0
    async for piece in request.stream():
        size += len(piece)
        if size > max_bytes:
            raise too_large(max_bytes)
        pieces.append(piece)
    raw = b"".join(pieces)
    return Body(raw, None, hashlib.sha256(raw).hexdigest())


async def _form(request: Request, max_bytes: int) -> FormData:
    stream: AsyncIterator[bytes] = request.stream()
    parser = _LimitedForm(request.headers, _generator(stream), max_bytes=max_bytes, total_bytes=max_bytes * FILES_TOTAL)
    try:
        return await parser.parse()
    except MultiPartException as error:
        raise BadRequest(f"the form cannot be read: {error.message}", hint="Send multipart/form-data with one part per file.") from error


async def _generator(stream: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    async for piece in stream:
        yield piece


def _form_digest(form: FormData) -> str:
    """Over names, file names and contents: a client that tries again draws another boundary."""
    digest = hashlib.sha256()
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            _add(digest, f"{name}\0{value.filename}\0{value.content_type}".encode("utf-8", "surrogatepass"))
            while piece := value.file.read(1 << 20):
                digest.update(piece)
            value.file.seek(0)
        else:
            _add(digest, f"{name}\0{value}".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _add(digest: Any, piece: bytes) -> None:
    digest.update(len(piece).to_bytes(8, "big"))
    digest.update(piece)
