"""The answer cache as one question sees it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TypeVar

from pipeline.errors import BrokenContract, Unavailable
from pipeline.protocols import Cache

T = TypeVar("T")


class Shelf:
    """The cache as one question sees it: off after its first failure, which is remembered."""

    def __init__(self, cache: Cache | None, ttl_s: float, groups: Sequence[str]) -> None:
        self._cache = cache if ttl_s > 0.0 else None
        self._ttl_s = ttl_s
        self._groups = groups or ("",)
        self.lost = ""

    @property
    def on(self) -> bool:
        return self._cache is not None

    def get(self, key: str, load: Callable[[bytes], T]) -> T | None:
        """What is kept under the key; bytes that cannot be read are as good as none."""
        if self._cache is None:
            return None
        try:
            data = self._cache.get(key)
            return None if data is None else load(data)
        except Unavailable as error:
            self._fail(error)
        except BrokenContract:
            pass
        return None

    def put(self, key: str, value: bytes, most_s: float = math.inf) -> None:
        """Keep the value, `most_s` seconds at most, in the group of every collection it came from."""
        for group in self._groups:
            if self._cache is not None:
                try:
                    self._cache.put(key, value, ttl_s=min(self._ttl_s, most_s), group=group)
                except Unavailable as error:
                    self._fail(error)

    def lead(self, stack: ExitStack, key: str, wait_s: float) -> bool:
        """True for the one who computes; the lock is held until the stack closes."""
        if self._cache is None:
            return True
        try:
            return stack.enter_context(self._cache.flight(key, wait_s=wait_s))
        except Unavailable as error:
            self._fail(error)
            return True

    def _fail(self, error: Unavailable) -> None:
        self._cache, self.lost = None, f"answer cache off for this question: {error.detail}"
