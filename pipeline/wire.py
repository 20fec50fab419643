"""msgpack with types: what stands on the pipe and in stored outputs."""

from __future__ import annotations

from typing import cast

import msgpack  # pyright: ignore[reportMissingTypeStubs]

from pipeline.errors import BrokenContract


def pack(content: object) -> bytes:
    """Numbers, texts, bytes, None, tuples, lists and dicts of them, as one message."""
    return cast(bytes, msgpack.packb(content))  # pyright: ignore[reportUnknownMemberType]


def unpack(data: bytes | memoryview) -> object:
    """The content of one message, lists as tuples. Raises BrokenContract when it is none."""
    try:
        return cast(object, msgpack.unpackb(data, use_list=False))  # pyright: ignore[reportUnknownMemberType]
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise BrokenContract("a stored or piped message cannot be read") from error
