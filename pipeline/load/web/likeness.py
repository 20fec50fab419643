"""How alike pages are: equal texts by hash, nearly equal ones by SimHash, pages that only say "not found" by their word groups."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

GROUP = 3
NEAR_BITS = 6
"""Differing bits of 64 up to which two pages count as nearly the same: an edit of half a percent changes 3, unrelated pages 16 and more."""
LEAST_TOKENS = 60
"""Shorter pages are alike by what surrounds them."""
MOST_PAGES = 20_000
"""Beyond it all pairs take too long."""
SOFT = 0.8
"""Part of the word groups of two pages that is common, from which on one that should not exist gives the other away."""

_TOKEN = re.compile(r"[\u3400-\u9fff\uac00-\ud7af\u3040-\u30ff]|[^\W_]+")


def tokens(text: str) -> list[str]:
    """Words, and single characters of scripts without spaces."""
    return _TOKEN.findall(text.lower())


def exact(text: str) -> str:
    """Hash of the words; empty for a text without any."""
    found = tokens(text)
    return blake2b(" ".join(found).encode("utf-8", "surrogatepass"), digest_size=12).hexdigest() if found else ""


def simhash(text: str) -> int:
    """64 bits that differ little for texts that differ little; 0 for texts too short to tell."""
    words = tokens(text)
    if len(words) < LEAST_TOKENS:
        return 0
    groups = {" ".join(words[start : start + GROUP]) for start in range(len(words) - GROUP + 1)}
    packed = b"".join(blake2b(group.encode("utf-8", "surrogatepass"), digest_size=8).digest() for group in groups)
    bits = np.unpackbits(np.frombuffer(packed, np.uint8).reshape(-1, 8), axis=1)
    ones = bits.sum(axis=0, dtype=np.int64) * 2 > len(groups)
    return int.from_bytes(np.packbits(ones).tobytes(), "big")


def near(prints: Mapping[str, int], most: int) -> list[tuple[str, str]]:
    """Pairs of pages that are nearly the same, at most so many, each page named once as the later one."""
    names = [name for name, value in prints.items() if value]
    if len(names) < 2 or len(names) > MOST_PAGES:
        return []
    values: NDArray[np.uint64] = np.array([prints[name] for name in names], np.uint64)
    found: list[tuple[str, str]] = []
    for place in range(1, len(names)):
        differing = np.bitwise_count(values[:place] ^ values[place])
        best = int(differing.argmin())
        if differing[best] <= NEAR_BITS:
            found.append((names[best], names[place]))
            if len(found) >= most:
                break
    return found


def groups(text: str, url: str) -> frozenset[str]:
    """Word groups of a page without what its address says, to compare it with the answer for an address that does not exist."""
    own = set(tokens(url))
    words = [word for word in tokens(text) if word not in own]
    return frozenset(" ".join(words[start : start + GROUP]) for start in range(max(1, len(words) - GROUP + 1)))


def same(one: frozenset[str], other: frozenset[str]) -> bool:
    """Whether two pages say the same."""
    both = len(one | other)
    return bool(both) and len(one & other) / both >= SOFT
