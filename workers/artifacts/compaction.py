"""Bytes that nobody names any more leave packs that others still need: the pack is written anew without them.

The copy is whole before the ledger names it, and the old pack goes last; killed in between, a pack that nobody names is left to the sweep.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

from pipeline.errors import NotFound, Unavailable
from workers.artifacts.packs import Artifacts
from workers.ledger import refs
from workers.ledger.engine import Database

LATE_S = 7200.0
"""How long after a deletion a batch that was under way may have named outputs of the document."""
TURN_S = 5.0
"""What one turn may take; the next one goes on."""
TRIES = 3


def scrub(db: Database, artifacts: Artifacts, packs: Sequence[str]) -> None:
    """Leave in these packs only what the ledger names: one that it does not name at all goes. Safe to repeat, and to run twice at once.

    Raises Unavailable when the shelf is away, or when somebody goes on naming new outputs in a pack: then ask again.
    """
    for pack in packs:
        for _ in range(TRIES):
            if _gone(db, artifacts, pack):
                break
        else:
            hint = "Nothing to do: the housekeeping asks again."
            raise Unavailable(f"artifact pack {pack} is still being read by workers", dependency=True, hint=hint, code="pack_busy")


def _gone(db: Database, artifacts: Artifacts, pack: str) -> bool:
    """Move what is named; False when somebody has named more meanwhile."""
    named = {ref.start: ref for ref in refs.of_pack(db, pack)}
    if named:
        copy = f"{pack.removesuffix('.pack').partition('~')[0]}~{secrets.token_hex(4)}"
        try:
            moved = artifacts.rewrite(pack, list(named.values()), copy)
        except NotFound:
            return True  # removed from outside, or by somebody who does the same: whoever needs it looks again, or starts from load
        refs.moved(db, pack, moved, [start for start in named if start not in moved])
        artifacts.remove(refs.unreferenced(db, [f"{copy}.pack"]))
    if refs.unreferenced(db, [pack]):
        artifacts.remove([pack])
        return True
    return False


def tidy(db: Database, artifacts: Artifacts, *, young_s: float, compact: bool = True) -> int:
    """Remove what writers left half done, packs that nobody names, and bytes that nobody names in packs; returns how many packs.

    Args:
        young_s: age below which a pack is left alone: it lies on the shelf before its batch is committed.
        compact: also look into packs that are named.
    Raises: Unavailable.
    """
    began = time.time()
    artifacts.shelf.sweep(began - young_s)
    refs.forget_deleted(db, began - LATE_S)
    old = {name: size for name, written_at, size in artifacts.shelf.packs() if began - written_at > young_s}
    orphans = refs.unreferenced(db, list(old))
    artifacts.remove(orphans)
    if not compact:
        return len(orphans)
    number = len(orphans)
    for pack, named in refs.weights(db).items():
        if time.time() - began > TURN_S:
            break
        if named < old.get(pack, 0):
            scrub(db, artifacts, [pack])
            number += 1
    return number
