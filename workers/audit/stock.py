"""The store beside the ledger: documents, versions, chunks and vectors, in the generation that answers and in those that are kept."""

from __future__ import annotations

import numpy as np

from pipeline.contracts import Stage, StoreAudit
from pipeline.errors import NotFound, PipelineError
from pipeline.identity import index_name
from workers import vectors
from workers.audit.findings import CHUNKS, FOREIGN, KEPT, MISSING, REVIVED, VECTORS, VERSION, Finding, Findings
from workers.ledger import catalog, consistency, generations, refs
from workers.ledger.consistency import State
from workers.ledger.work import CollectionRow
from workers.runtime import Runtime

GONE = frozenset({"deleting", "deleted", "hiding", "hidden"})


def compare(runtime: Runtime, row: CollectionRow, found: Findings) -> StoreAudit:
    """Note where the store differs. A document that somebody works on just now is passed over: it is about to change on one side."""
    name = index_name(row.tenant, row.name, row.generation)
    before = consistency.states(runtime.db, row.id)
    try:
        held = runtime.reader_store.audit(name)
    except NotFound:
        held = StoreAudit(0, 0, 0, "", {})
    now = consistency.states(runtime.db, row.id)
    moving = {document_id for document_id, state in now.items() if state != before.get(document_id) or state.indexing}
    empty: dict[str, State] = {}
    for document_id, state in now.items():
        if state.live_version is not None and document_id not in moving:
            _document(document_id, state, held, found, empty)
    _vectors(runtime, empty, held, found)
    for document_id, version in held.versions.items():
        state = now.get(document_id)
        if document_id not in moving and (state is None or state.live_version is None):
            found.versions[document_id] = version
            found.add(_foreign(document_id, state, name))
    _kept(runtime, row, now, found)
    return held


def _document(document_id: str, state: State, held: StoreAudit, found: Findings, empty: dict[str, State]) -> None:
    if document_id not in held.versions:
        found.add(Finding(MISSING, f"{state.key}: answers according to the ledger, is not in the store", document_id=document_id))
        return
    version = held.versions[document_id]
    chunks, present = held.held.get(document_id, (state.live_chunks, state.live_chunks))
    if version != state.live_version:
        detail = f"{state.key}: version {state.live_version} according to the ledger, {version} in the store"
        found.add(Finding(VERSION, detail, document_id=document_id))
    elif chunks != state.live_chunks:
        detail = f"{state.key}: {state.live_chunks} chunks according to the ledger, {chunks} in the store"
        found.add(Finding(CHUNKS, detail, document_id=document_id))
    elif present != chunks:
        empty[document_id] = state
        return
    else:
        return
    found.versions[document_id] = version


def _vectors(runtime: Runtime, empty: dict[str, State], held: StoreAudit, found: Findings) -> None:
    """A chunk may rightly have a vector of zeros; the kept output of embed tells."""
    live = {document_id: state.live_version for document_id, state in empty.items() if state.live_version is not None}
    kept = refs.of(runtime.db, Stage.EMBED, live) if live else {}
    for document_id, state in empty.items():
        chunks, present = held.held[document_id]
        try:
            made = vectors.load(runtime.artifacts.read([kept[document_id]])[0]).vectors
        except (KeyError, PipelineError):
            made = None
        if made is None or int(np.any(made, axis=1).sum()) != present:
            found.versions[document_id] = held.versions[document_id]
            found.add(Finding(VECTORS, f"{state.key}: {chunks} chunks, but {present} vectors in the store", document_id=document_id))


def _foreign(document_id: str, state: State | None, index: str) -> Finding:
    if state is not None and state.status in GONE:
        what = "hidden" if state.status in ("hidden", "hiding") else "deleted"
        since = catalog.moment(state.updated_at)
        return Finding(REVIVED, f"{document_id}: {what} at {since:%Y-%m-%d %H:%M} UTC, and in the store again", document_id=document_id, name=index)
    return Finding(FOREIGN, f"{document_id}: in the store, unknown to the ledger", document_id=document_id, name=index)


def _kept(runtime: Runtime, row: CollectionRow, now: dict[str, State], found: Findings) -> None:
    """Generations that may answer again hold nothing that was deleted or hidden since."""
    for one in generations.listed(runtime.db, row.id):
        if one.status != "retained":
            continue
        name = index_name(row.tenant, row.name, one.generation)
        try:
            versions = runtime.reader_store.versions(name)
        except NotFound:
            found.notes.append(f"generation {one.generation} is kept according to the ledger, and is not in the store")
            continue
        found.notes.append(f"generation {one.generation} is kept, with {len(versions)} documents")
        for document_id in versions:
            state = now.get(document_id)
            if state is None or state.status in GONE:
                detail = f"{document_id}: is not to be seen any more, but generation {one.generation} still holds it"
                found.add(Finding(KEPT, detail, document_id=document_id, name=name))
