"""Zstandard: the standard library's from Python 3.14, its backport before."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 14):
    from compression.zstd import ZstdCompressor, ZstdError, decompress
else:
    from backports.zstd import ZstdCompressor, ZstdError, decompress

__all__ = ["Packer", "ZstdError", "decompress"]


class Packer:
    """Frames at level 1, one context for many. One thread at a time."""

    def __init__(self) -> None:
        self._compressor = ZstdCompressor(level=1)

    def compress(self, data: bytes) -> bytes:
        """One complete frame."""
        return self._compressor.compress(data, ZstdCompressor.FLUSH_FRAME)
