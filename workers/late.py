"""What was written into the index while its run was cancelled: nobody is to find it."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import select

from pipeline.contracts import Stage
from pipeline.errors import NotFound
from workers.desk import Tools
from workers.ledger import catalog, mending
from workers.ledger.mending import Anew
from workers.ledger.schema import documents
from workers.ledger.work import Batch


def undo(tools: Tools, batch: Batch, written: Collection[str]) -> int:
    """After the commit of a batch that writes the index: take back what the ledger says was cancelled meanwhile; returns how many.

    A document that answered before is written again in that version, by a run of its own. What a newer run is at is left alone.
    Raises Unavailable: then an audit finds it.
    """
    mine = {work.document_id: work for work in batch.documents if work.document_id in written}
    query = select(documents.c.id, documents.c.live_version).where(documents.c.id.in_(list(mine)), documents.c.status == "cancelled")
    with tools.db.read() as connection:
        late = {str(row[0]): row[1] for row in connection.execute(query)} if mine else {}
    new = {document_id: mine[document_id].version for document_id, live in late.items() if live is None}
    again = [Anew(document_id, Stage.INDEX, mine[document_id].version) for document_id, live in late.items() if live is not None]
    if new:
        store, name = tools.store(batch.collection, 0)
        try:
            store.delete(name, list(new), fence=new)
        except NotFound:
            pass  # the whole collection went
    if late:
        mending.begin_again(tools.db, batch.collection, again, ())
        catalog.bump(tools.db, batch.collection.id)
    return len(late)
