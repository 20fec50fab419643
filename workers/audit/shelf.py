"""The shelf beside the ledger: every output of what answers lies in a pack, whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.contracts import Stage
from pipeline.errors import Rejected
from workers.audit.findings import OUTPUT, Finding, Findings
from workers.ledger import consistency, refs
from workers.ledger.work import CollectionRow, Ref
from workers.runtime import Runtime

SLICE = 256


def compare(runtime: Runtime, row: CollectionRow, found: Findings, *, deep: bool) -> None:
    """Note outputs of versions that answer which are missing or cut short, and with `deep` those that are damaged."""
    wanted = refs.answering(runtime.db, row.id)
    if not wanted:
        return
    sizes = {name: size for name, _, size in runtime.artifacts.shelf.packs()}
    states = consistency.states(runtime.db, row.id)
    bad = [(ref, "missing" if ref.pack not in sizes else "cut short") for ref in wanted if ref.start + ref.length > sizes.get(ref.pack, -1)]
    if deep:
        fine = [ref for ref in wanted if ref.start + ref.length <= sizes.get(ref.pack, -1)]
        bad += [(ref, "damaged") for ref in _damaged(runtime, fine)]
    for ref, how in bad:
        state = states.get(ref.document_id)
        found.lost.append(ref)
        mends = ref.stage is not Stage.LOAD or (state is not None and state.fetchable)
        key = state.key if state is not None else ref.document_id
        rest = "" if mends else "; it came with the request, so only whoever has it can give it again"
        found.add(Finding(OUTPUT, f"{key}: its kept output of {ref.stage.value} is {how}{rest}", mends, ref.document_id, ref.pack))


def _damaged(runtime: Runtime, wanted: Sequence[Ref]) -> Iterator[Ref]:
    for start in range(0, len(wanted), SLICE):
        part = wanted[start : start + SLICE]
        yield from (ref for ref, outcome in zip(part, runtime.artifacts.each(part), strict=True) if isinstance(outcome, Rejected))
