"""``TOKENS/OVERLAP`` as users write it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.errors import BadRequest

LEAST = 16
"""Below this a budget cannot even hold every single character with a word beside it."""
KNOWN = frozenset({"chunk_token_num", "delimiter"})


@dataclass(frozen=True, slots=True)
class Budget:
    """Tokens of one chunk, and tokens shared with the chunk before."""

    size: int
    overlap: int


def read_budget(name: str, rest: str, options: Mapping[str, str], default: Budget) -> Budget:
    """Read ``256/32`` or ``256``; the option chunk_token_num wins over the first number.

    Raises BadRequest for anything else, for an unknown option, and where the overlap exceeds half of the size.
    """
    unknown = sorted(set(options) - KNOWN)
    if unknown:
        raise _bad(f"unknown chunker option {unknown[0]!r}", f"Known: {', '.join(sorted(KNOWN))}.")
    match = re.fullmatch(r"(?:(\d{1,7})(?:/(\d{1,7}))?)?", rest.strip())
    if match is None:
        raise _bad(f"{name}:{rest} is not a chunk size", f"Write {name}:TOKENS/OVERLAP, for example {name}:{default.size}/{default.overlap}.")
    size = int(match[1] or default.size)
    wanted = options.get("chunk_token_num", "").strip()
    if wanted:
        if not re.fullmatch(r"\d{1,7}", wanted):
            raise _bad("chunk_token_num is not a whole number", "Write the number of tokens, for example 256.")
        size = int(wanted)
    overlap = int(match[2]) if match[2] else min(default.overlap, size // 8)
    if size < LEAST:
        raise _bad(f"a chunk of {size} tokens is too small", f"Use at least {LEAST} tokens.")
    if overlap * 2 > size:
        raise _bad(f"an overlap of {overlap} is too much for chunks of {size} tokens", "Use at most half of the size.")
    return Budget(size, overlap)


def _bad(detail: str, hint: str) -> BadRequest:
    return BadRequest(detail, hint=hint, code="bad_chunker")
