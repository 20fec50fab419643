"""One string for all that a store holds of a collection, the same whatever the store and the order of writing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from pipeline.contracts.graph import GraphAudit

_SPAN = 1 << 256


def digest_rows(rows: Iterable[tuple[str, int, str, str, bool]]) -> str:
    """Lower-case hex of 32 bytes: the hash of how many rows there are and of the sum of the rows' SHA-256, so order does not matter.

    Args:
        rows: (document key, ordinal, hash of `search_text`, hash of `text`, vector present) of each chunk, both
            hashes as `identity.text_hash` makes them. A vector is present when it is there and not all zeros.
            A row that stands twice counts twice.
    """
    total, count = 0, 0
    for key, ordinal, search_hash, text_hash, present in rows:
        name = key.encode("utf-8", "surrogatepass")
        line = b"%d:%s %d %s %s %d" % (len(name), name, ordinal, search_hash.encode(), text_hash.encode(), present)
        total += int.from_bytes(hashlib.sha256(line).digest(), "big")
        count += 1
    return hashlib.sha256(b"%d %x" % (count, total % _SPAN)).hexdigest()


def digest_elements(elements: Iterable[tuple[str, str, bytes]]) -> GraphAudit:
    """Count and order-independent digest of graph elements, each (kind, id, body)."""
    total, count = 0, 0
    for kind, one, body in elements:
        line = b"%s %s %s" % (kind.encode(), one.encode("utf-8", "surrogatepass"), hashlib.sha256(body).digest())
        total += int.from_bytes(hashlib.sha256(line).digest(), "big")
        count += 1
    return GraphAudit(count, hashlib.sha256(b"%d %x" % (count, total % _SPAN)).hexdigest())
