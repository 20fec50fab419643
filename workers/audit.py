"""What store and shelf really hold, beside what the ledger says they hold, and whether it can be mended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from pipeline.contracts import StoreAudit
from pipeline.errors import NotFound, Rejected
from pipeline.identity import index_name
from workers.collecting import check_store
from workers.ledger import browse, catalog, consistency, refs
from workers.ledger.work import CollectionRow, Ref
from workers.runtime import Runtime
from workers.views import AuditCollection, AuditView

SHOWN = 100
SLICE = 100
"""Outputs read at once."""
EMPTY_DIGEST = ""


@dataclass(slots=True)
class Findings:
    """Where one collection differs, by what mends it."""

    sentences: list[str] = field(default_factory=list[str])
    rebuild: set[str] = field(default_factory=set[str])
    """Documents that the store lacks or holds wrongly: written again from kept outputs."""
    reload: set[str] = field(default_factory=set[str])
    """Documents whose kept outputs are gone or damaged: begun again from load."""
    foreign: set[str] = field(default_factory=set[str])
    """Documents in the store that answer according to nobody."""
    stuck: set[str] = field(default_factory=set[str])
    """Documents that say they are in a batch which is closed or gone."""

    def say(self, sentence: str) -> None:
        self.sentences.append(sentence)


def audit(runtime: Runtime, collection: str, *, tenant: str, deep: bool = False) -> AuditView:
    """Count, hash and compare every collection, or one; `deep` opens every kept output. Raises NotFound, Unavailable."""
    rows = [catalog.find(runtime.db, tenant, collection)] if collection else catalog.every(runtime.db, tenant)
    views = tuple(examine(runtime, row, deep=deep)[0] for row in rows)
    return AuditView(all(not view.differences for view in views), views)


def examine(runtime: Runtime, row: CollectionRow, *, deep: bool = False) -> tuple[AuditCollection, Findings]:
    """One collection: what it holds, and everything that is not as it should be."""
    check_store(runtime, row)
    found = Findings()
    held = _store(runtime, row, found)
    _shelf(runtime, row, found, deep=deep)
    _ledger(runtime, row, found)
    view = AuditCollection(
        row.name, held.documents, held.chunks, held.vectors, 0, held.digest, EMPTY_DIGEST, tuple(found.sentences[:SHOWN]), len(found.sentences)
    )
    return view, found


def _store(runtime: Runtime, row: CollectionRow, found: Findings) -> StoreAudit:
    ledger = browse.live(runtime.db, row.id)
    try:
        held = runtime.reader_store.audit(index_name(row.tenant, row.name, row.generation))
    except NotFound:
        held = StoreAudit(0, 0, 0, EMPTY_DIGEST, {})
    for document_id, (version, key) in ledger.items():
        if document_id not in held.versions:
            found.say(f"{key}: answers according to the ledger, is not in the store")
            found.rebuild.add(document_id)
        elif held.versions[document_id] != version:
            found.say(f"{key}: version {version} according to the ledger, {held.versions[document_id]} in the store")
            found.rebuild.add(document_id)
    for document_id in held.versions:
        if document_id not in ledger:
            found.say(f"{document_id}: in the store, unknown to the ledger")
            found.foreign.add(document_id)
    if not found.sentences:
        _, chunks = browse.totals(runtime.db, row.id)
        if chunks != held.chunks:
            found.say(f"{chunks} chunks according to the ledger, {held.chunks} in the store")
            found.rebuild |= set(ledger)
        elif held.chunks != held.vectors:
            found.say(f"{held.chunks} chunks, but {held.vectors} vectors")
            found.rebuild |= set(ledger)
    return held


def _shelf(runtime: Runtime, row: CollectionRow, found: Findings, *, deep: bool) -> None:
    """Every output of what answers lies in a pack that is there; a deep look opens it."""
    wanted = refs.answering(runtime.db, row.id)
    there = {name for name, _ in runtime.artifacts.packs()}
    keys = {document_id: key for document_id, (_, key) in browse.live(runtime.db, row.id).items()}
    bad = [ref for ref in wanted if ref.pack not in there]
    if deep:
        bad += list(_damaged(runtime, [ref for ref in wanted if ref.pack in there]))
    for ref in bad:
        found.say(
            f"{keys.get(ref.document_id, ref.document_id)}: its kept output of {ref.stage.value} is {'damaged' if ref.pack in there else 'missing'}"
        )
        found.reload.add(ref.document_id)


def _damaged(runtime: Runtime, wanted: list[Ref]) -> Iterator[Ref]:
    for start in range(0, len(wanted), SLICE):
        part = wanted[start : start + SLICE]
        yield from (ref for ref, outcome in zip(part, runtime.artifacts.each(part), strict=True) if isinstance(outcome, Rejected))


def _ledger(runtime: Runtime, row: CollectionRow, found: Findings) -> None:
    for document_id, key, status in consistency.stranded(runtime.db, row.id):
        found.say(f"{key}: {status}, but no open batch holds it")
        found.stuck.add(document_id)
    for key in consistency.half_deleted(runtime.db, row.id):
        found.say(f"{key}: its deletion was begun and not finished")
    for number, counted, said in consistency.unbalanced(runtime.db, row.id):
        found.say(f"{browse.run_name(number)} has ended with {said} documents, of which {counted} have an outcome")
