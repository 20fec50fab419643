"""The ledger beside itself: rows that contradict each other."""

from __future__ import annotations

from workers.audit.findings import BALANCE, DELETION, HIDING, STUCK, Finding, Findings
from workers.ledger import browse, consistency
from workers.ledger.work import CollectionRow
from workers.runtime import Runtime


def compare(runtime: Runtime, row: CollectionRow, found: Findings) -> None:
    """Note documents that nobody will ever work on, deletions that broke off, and runs that do not balance."""
    db = runtime.db
    for document_id, key, status in consistency.stranded(db, row.id):
        found.add(Finding(STUCK, f"{key}: {status}, but no open batch holds it", document_id=document_id))
    for document_id, key, status in consistency.waiting_for_nobody(db, row.id):
        found.add(Finding(STUCK, f"{key}: {status}, but the run that it waits for has ended", document_id=document_id))
    for document_id, key in consistency.half_hidden(db, row.id):
        found.add(Finding(HIDING, f"{key}: was begun to be hidden and is not", document_id=document_id))
    for document_id, key in consistency.half_deleted(db, row.id):
        found.add(Finding(DELETION, f"{key}: its deletion was begun and not finished", document_id=document_id))
    for number, counted, said in consistency.unbalanced(db, row.id):
        name = browse.run_name(number)
        found.add(Finding(BALANCE, f"{name} has ended with {said} documents, of which {counted} have an outcome", name=name))
    for number in consistency.endless(db, row.id):
        name = browse.run_name(number)
        found.add(Finding(BALANCE, f"{name} waits for no document and has not ended", name=name))
