"""ZIP containers, refused before they can hurt: checked by their directory, then counted while inflating."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Generator
from contextlib import contextmanager

from pipeline.errors import Malformed, TooLarge

MOST_BYTES = 200 * 1024 * 1024
MOST_RATIO = 100
RATIO_FROM = 20 * 1024 * 1024
MOST_ENTRIES = 5000
MOST_DEFLATE_RATIO = 1032
"""No deflate stream grows more than this, so that a small container cannot lie about its size."""
_STEP = 1 << 20


@contextmanager
def opened(data: bytes, what: str) -> Generator[zipfile.ZipFile]:
    """The container, once its directory has passed the limits. `what` names the format in messages.

    Raises Malformed (``truncated``, ``encrypted``, ``malformed``) and TooLarge (``zip_bomb``).
    """
    try:
        container = zipfile.ZipFile(io.BytesIO(data))
    except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError) as error:
        if b"PK\x05\x06" not in data[-65600:]:
            raise Malformed(
                f"the {what} file ends before its directory: it was cut off while being saved or copied",
                hint="Copy or download the file again.",
                code="truncated",
            ) from error
        raise Malformed(f"the {what} file is a damaged ZIP container") from error
    with container:
        check(container, len(data), what)
        yield container


def check(container: zipfile.ZipFile, size: int, what: str) -> None:
    """Refuse by the directory alone. `size` is the container's length in bytes."""
    entries = container.infolist()
    total = sum(entry.file_size for entry in entries)
    packed = sum(entry.compress_size for entry in entries)
    if len(entries) > MOST_ENTRIES:
        raise TooLarge(f"the {what} file has {len(entries):,} parts; the limit is {MOST_ENTRIES:,}", code="zip_bomb", hint=_HINT)
    if total > MOST_BYTES:
        raise TooLarge(f"the {what} file would unpack to {total >> 20:,} MB; the limit is {MOST_BYTES >> 20} MB", code="zip_bomb", hint=_HINT)
    if total > RATIO_FROM and total > MOST_RATIO * max(1, min(size, packed)):
        raise TooLarge(
            f"the {what} file would grow {total // max(1, min(size, packed))} times when unpacked; the limit is {MOST_RATIO}",
            code="zip_bomb",
            hint=_HINT,
        )
    if packed > size:
        raise TooLarge(f"the parts of the {what} file overlap", code="zip_bomb", hint=_HINT)
    if any(entry.flag_bits & 1 for entry in entries):
        raise Malformed(f"the {what} file is encrypted", hint="Remove the password and ingest it again.", code="encrypted")


_HINT = "Save the document anew; if it is really that large, split it."


def read(container: zipfile.ZipFile, name: str, what: str, *, most: int = MOST_BYTES) -> bytes:
    """Inflate one part, stopping at `most` bytes whatever the directory says. Raises KeyError when there is no such part."""
    try:
        with container.open(name) as part:
            data = part.read(most + 1)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        raise Malformed(f"a part of the {what} file is damaged") from error
    if len(data) > most:
        raise TooLarge(f"a part of the {what} file unpacks to more than {most >> 20} MB", code="zip_bomb", hint=_HINT)
    return data


def count(data: bytes, what: str) -> None:
    """Inflate and count every part of a container that a foreign library will read next.

    Streams are inflated from the raw bytes, since `zipfile` itself stops at the size that the directory claims.
    """
    if len(data) * MOST_DEFLATE_RATIO <= MOST_BYTES:
        return
    with opened(data, what) as container:
        left = MOST_BYTES
        for entry in container.infolist():
            at = entry.header_offset
            names = int.from_bytes(data[at + 26 : at + 28], "little") + int.from_bytes(data[at + 28 : at + 30], "little")
            begin = at + 30 + names
            left -= _inflated(memoryview(data)[begin : begin + entry.compress_size], entry.compress_type, left)
            if left < 0:
                raise TooLarge(f"the {what} file unpacks to more than {MOST_BYTES >> 20} MB", code="zip_bomb", hint=_HINT)


def _inflated(packed: memoryview, method: int, most: int) -> int:
    """Size of a member once unpacked; counting stops just above `most`."""
    if method != zipfile.ZIP_DEFLATED:
        return len(packed)
    engine = zlib.decompressobj(-zlib.MAX_WBITS)
    size, rest = 0, bytes(packed)
    while rest and size <= most and not engine.eof:
        try:
            size += len(engine.decompress(rest, _STEP))
        except zlib.error:
            break
        rest = engine.unconsumed_tail
    return size
