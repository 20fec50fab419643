"""Mending what an audit finds. Safe to repeat, and to stop at any line."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.contracts import Stage
from pipeline.errors import Unavailable
from pipeline.identity import index_name
from workers import audit, deleting, erasing, generations, queues, withdrawal
from workers.audit import findings, machine
from workers.audit.findings import Findings
from workers.broker import keys
from workers.ledger import absence, browse, catalog, mending, sweeping
from workers.ledger.mending import Anew
from workers.ledger.work import CollectionRow
from workers.runtime import Runtime
from workers.views import RepairView


def repair(runtime: Runtime, collection: str, *, tenant: str, deep: bool = False, dry_run: bool = False, whole: bool = True) -> RepairView:
    """Compare, then mend: write again what the store lacks, remove what it should not hold, begin again what is stuck or damaged.

    Where workers have something to do, the view names the runs. What nothing can mend is told in `unmended`.

    Args:
        whole: also what belongs to no collection, where none is named.
    Raises: NotFound, Unavailable.
    """
    rows = [catalog.find(runtime.db, tenant, collection)] if collection else catalog.every(runtime.db, tenant)
    if not dry_run:
        deleting.finish(runtime)
        generations.drop_surplus(runtime)
    found: list[Findings] = []
    runs: list[str] = []
    for row in rows:
        _, differing = audit.examine(runtime, row, deep=deep)
        found.append(differing)
        if not dry_run:
            runs += _mend(runtime, row, differing)
    if whole and not collection:
        common = audit.whole(runtime)
        found.append(common)
        if not dry_run:
            _mend_whole(runtime, common)
    return _view(found, runs, dry_run=dry_run)


def _view(found: Sequence[Findings], runs: Sequence[str], *, dry_run: bool) -> RepairView:
    items = [item for one in found for item in one.items]
    count = {kind: sum(item.kind == kind and item.mends for item in items) for kind in {item.kind for item in items}}
    again = {item.document_id for item in items if item.mends and item.kind in (*findings.IN_STORE, findings.OUTPUT, findings.STUCK)}
    removed = sum(count.get(kind, 0) for kind in (findings.FOREIGN, findings.REVIVED, findings.KEPT))
    unmended = tuple(item.detail for item in items if not item.mends)
    return RepairView(dry_run, len(items), len(again), removed, count.get(findings.ORPHAN, 0), tuple(runs), unmended[: audit.SHOWN])


def _mend(runtime: Runtime, row: CollectionRow, found: Findings) -> list[str]:
    gone = found.of(findings.FOREIGN, findings.REVIVED, findings.KEPT)
    # Whoever is taken in again meanwhile is at work by now, and is left alone.
    alive = set(browse.live(runtime.db, row.id))
    for name in sorted({item.name for item in gone}):
        ids = sorted({item.document_id for item in gone if item.name == name} - (alive if name == _index(row) else set()))
        withdrawal.out_of(runtime, [name], ids)
    hiding = sorted(found.ids(findings.HIDING))
    if hiding:
        withdrawal.hide(runtime, row, absence.unfinished(runtime.db, hiding), "it was hidden")
    for_good = _for_good(found)
    mending.forget_lost(runtime.db, [ref for ref in found.lost if ref.stage is not Stage.LOAD or ref.document_id not in for_good])
    number = mending.begin_again(runtime.db, row, _plan(found), found.ids(findings.STUCK))
    mending.settle_runs(runtime.db, [browse.run_number(item.name) for item in found.of(findings.BALANCE)])
    if gone or number is not None:
        catalog.bump(runtime.db, row.id)
        withdrawal.purge(runtime, row)
    return [browse.run_name(number)] if number is not None else []


def _index(row: CollectionRow) -> str:
    return index_name(row.tenant, row.name, row.generation)


def _plan(found: Findings) -> list[Anew]:
    """Each document from the first stage whose output is lost; at index where nothing is."""
    lost: dict[str, set[Stage]] = {}
    for ref in found.lost:
        lost.setdefault(ref.document_id, set()).add(ref.stage)
    in_store, for_good = found.ids(*findings.IN_STORE), _for_good(found)
    plan: list[Anew] = []
    for document_id in sorted(in_store | lost.keys()):
        stages = lost.get(document_id, set[Stage]())
        if document_id in for_good:
            stages = stages - {Stage.LOAD}
            # Without its bytes nothing can be parsed, and where nothing else is lost there is nothing to make.
            if Stage.PARSE in stages or not (stages or document_id in in_store):
                continue
        begin = min(stages, key=queues.ORDER.index, default=Stage.INDEX)
        plan.append(Anew(document_id, begin, found.versions.get(document_id, 0)))
    return plan


def _for_good(found: Findings) -> set[str]:
    """Documents whose bytes nobody here can have again."""
    return {item.document_id for item in found.items if not item.mends}


def _mend_whole(runtime: Runtime, found: Findings) -> None:
    erasing.erase(runtime)
    deleting.drop_late(runtime)
    if found.of(findings.LEASE):
        # The sweep of whoever runs sends what is issued anew here.
        sweeping.expired(runtime.db)
    runtime.artifacts.remove(machine.orphans(runtime))
    for item in found.of(findings.ENDLESS):
        database, _, name = item.name.partition(" ")
        try:
            keys.let_expire(runtime.settings, int(database), name)
        except Unavailable:
            return
