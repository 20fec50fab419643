"""Writing and deleting documents: new before old, and the head decides.

A crash leaves, by the place where it happens: rows of a version without a head (never shown, overwritten by the
repeat), or a new head beside older rows (never shown, deleted by the next write of the document or by `purge`).
Rows of a higher version than the visible one are left alone: their writer may be about to make them visible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from pipeline.contracts import IndexedDocument
from pipeline.errors import BrokenContract, PipelineError, TooLarge, Unavailable
from pipeline.protocols import WriteOutcome
from pipeline.stores import elasticsearch_bulk as bulk
from pipeline.stores import elasticsearch_rows as rows
from pipeline.stores.elasticsearch_bulk import Operation, Refusal
from pipeline.stores.elasticsearch_client import Client, Json
from pipeline.stores.elasticsearch_rows import Head

WINDOW = 10_000
"""Ids found by one search: Elasticsearch's own default limit."""
CONTESTS = 20
"""Times that a head may be overtaken before the batch is given back."""


@dataclass(slots=True)
class _Batch:
    """The state of one call of `write`."""

    collection: str
    pending: dict[str, IndexedDocument]
    """Neither visible, nor superseded, nor refused yet."""
    heads: dict[str, Head]
    """As last read."""
    written: dict[str, IndexedDocument] = field(default_factory=dict[str, IndexedDocument])
    retired: list[Head] = field(default_factory=list[Head])
    surplus: list[str] = field(default_factory=list[str])
    """Rows behind the end of a version that was written again with fewer chunks."""
    visible: dict[str, int] = field(default_factory=dict[str, int])
    """Document id → visible version, where rows of lower ones may have been left behind."""
    parts: dict[str, int] = field(default_factory=dict[str, int])
    """Body records of each document."""
    problems: dict[str, PipelineError] = field(default_factory=dict[str, PipelineError])

    def flip(self, document: IndexedDocument) -> Operation:
        """The write that makes the version visible, if the head is still as it was read."""
        name = document.document_id
        seen = self.heads[name].seen if name in self.heads else None
        return bulk.put_if(name, name, rows.head_source(document, self.parts[name]), seen=seen)

    def settle(self, document: IndexedDocument) -> None:
        """Note a document whose version is visible now."""
        name = document.document_id
        self.written[name] = document
        self.visible[name] = document.version
        before = self.heads.get(name)
        if before is not None and before.version < document.version:
            self.retired.append(before)
        elif before is not None:
            self.surplus += [rows.row_id(name, document.version, ordinal) for ordinal in range(len(document.chunks), before.chunks)]

    def fail(self, document_id: str, problem: PipelineError) -> None:
        self.problems.setdefault(document_id, problem)
        self.pending.pop(document_id, None)

    def refuse(self, refusals: Iterable[Refusal]) -> None:
        for refusal in refusals:
            name = refusal.operation.owner
            if name not in self.pending:
                continue
            key = self.pending[name].key
            if refusal.status == 413:
                detail = f"document {key} has a record that Elasticsearch finds too large"
                self.fail(name, TooLarge(detail, hint="Split the document, or raise http.max_content_length of Elasticsearch.", document=key))
            else:
                self.fail(name, BrokenContract(f"Elasticsearch refused a record of document {key} ({refusal.kind})", document=key))

    def drop_superseded(self) -> None:
        for name in [n for n, d in self.pending.items() if n in self.heads and self.heads[n].refuses(d.version)]:
            del self.pending[name]


class Writer:
    """The writing half of the store.

    Args:
        pauses_s, sleep: see `elasticsearch_bulk.send`.
    """

    def __init__(self, client: Client, *, pauses_s: Sequence[float], sleep: Callable[[float], None]) -> None:
        self._client = client
        self._pauses_s = pauses_s
        self._sleep = sleep

    def write(self, collection: str, dimension: int, documents: Sequence[IndexedDocument]) -> list[WriteOutcome]:
        """See `Store.write`. Raises the first refused document's error once all others are visible."""
        highest: dict[str, IndexedDocument] = {}
        for document in documents:
            if document.document_id not in highest or highest[document.document_id].version <= document.version:
                highest[document.document_id] = document
        batch = _Batch(collection, highest, rows.heads(self._client, collection, list(highest), fences=True))
        batch.drop_superseded()
        batch.refuse(self._send(collection, self._rows(batch, dimension)))
        batch.refuse(self._send(f"{collection}-documents", self._bodies(batch)))
        if batch.pending:
            self.refresh(collection)
            self._flip(batch)
            self.remove(collection, batch.surplus)
            if self.clean(collection, batch.visible, batch.retired) or batch.surplus:
                self.refresh(collection)
        if batch.problems:
            raise next(iter(batch.problems.values()))
        return [_outcome(document, written=batch.written.get(document.document_id) is document) for document in documents]

    def delete(self, collection: str, document_ids: Sequence[str], fence: Mapping[str, int]) -> int:
        """See `Store.delete`. Heads first: from there on nothing of a document is shown."""
        gone: list[Head] = []
        kept: set[str] = set()
        waiting = list(document_ids)
        for _ in range(CONTESTS):
            found = rows.heads(self._client, collection, waiting, fences=True)
            kept |= {name for name, head in found.items() if name in fence and not head.fence and head.version > fence[name]}
            operations = [_withdrawal(name, found.get(name), fence.get(name)) for name in waiting if name not in kept]
            lost = {refusal.operation.owner for refusal in self._send(f"{collection}-documents", [one for one in operations if one is not None])}
            gone += [head for name, head in found.items() if name not in lost and name not in kept and not head.fence]
            waiting = list(lost)
            if not waiting:
                break
        # A fence is cleaned below it also where there was no head: a writer may have died over its rows.
        below = {head.document_id: head.version + 1 for head in gone} | {n: fence[n] + 1 for n in document_ids if n in fence and n not in kept}
        if below:
            self.clean(collection, below, gone)
            self.refresh(f"{collection},{collection}-documents")
        if waiting:
            raise Unavailable(f"documents of collection {collection} change faster than they can be deleted", dependency=True)
        return len(gone)

    def clean(self, collection: str, visible: Mapping[str, int], retired: Sequence[Head]) -> int:
        """Delete what lies below the visible versions; returns how many chunk rows went.

        Args:
            visible: document id → visible version.
            retired: heads that were replaced or deleted: they tell which bodies to delete without a refresh.
        """
        names, removed = list(visible), 0
        for start in range(0, len(names), rows.PAGE):
            body = _others({name: visible[name] for name in names[start : start + rows.PAGE]})
            while True:
                found = self._client.search(f"/{collection},{collection}-documents/_search", body)["hits"]["hits"]
                below = [one for one in found if cast("int", one["fields"]["version"][0]) < visible[str(one["fields"]["document_id"][0])]]
                chunks = [one["_id"] for one in below if one["fields"]["record"] == ["chunk"]]
                self.remove(collection, chunks)
                self.remove(f"{collection}-documents", [one["_id"] for one in below if one["fields"]["record"] == ["body"]])
                removed += len(chunks)
                if len(found) < WINDOW or not below:
                    break
                self.refresh(f"{collection},{collection}-documents")
        self.remove(f"{collection}-documents", [rows.row_id(head.document_id, head.version, part) for head in retired for part in range(head.parts)])
        return removed

    def remove(self, index: str, ids: Sequence[str]) -> None:
        """Delete records by id; missing ones are no error."""
        self._send(index, (bulk.remove("", name) for name in ids))

    def refresh(self, index: str) -> None:
        """Make all that was written so far searchable."""
        self._client.call("POST", f"/{index}/_refresh")

    def _rows(self, batch: _Batch, dimension: int) -> Iterator[Operation]:
        """Chunk rows of all documents that can be written; the others fail here, before anything of them is sent."""
        as_base64 = self._client.takes_base64
        for document in list(batch.pending.values()):
            try:
                rows.check(document, dimension)
                encoded = list(rows.rows(document, as_base64=as_base64))
            except BrokenContract as problem:
                batch.fail(document.document_id, problem)
            else:
                yield from encoded

    def _bodies(self, batch: _Batch) -> Iterator[Operation]:
        for document in list(batch.pending.values()):
            encoded = rows.bodies(document)
            batch.parts[document.document_id] = len(encoded)
            yield from encoded

    def _flip(self, batch: _Batch) -> None:
        """Write the heads over exactly the state that was read; whoever was overtaken looks again."""
        for _ in range(CONTESTS):
            refusals = self._send(f"{batch.collection}-documents", [batch.flip(document) for document in batch.pending.values()])
            batch.refuse(refusal for refusal in refusals if refusal.status != 409)
            overtaken = {refusal.operation.owner for refusal in refusals if refusal.status == 409}
            for name in [name for name in batch.pending if name not in overtaken]:
                batch.settle(batch.pending.pop(name))
            if not batch.pending:
                return
            heads = rows.heads(self._client, batch.collection, list(batch.pending), fences=True)
            for name in batch.pending:
                batch.heads.pop(name, None)
            batch.heads |= heads
            batch.visible |= {name: _above(head) for name, head in heads.items() if head.refuses(batch.pending[name].version)}
            batch.drop_superseded()
        raise Unavailable(f"documents of collection {batch.collection} change faster than they can be written", dependency=True)

    def _send(self, index: str, operations: Iterable[Operation]) -> list[Refusal]:
        return bulk.send(self._client, index, operations, pauses_s=self._pauses_s, sleep=self._sleep)


def _above(head: Head) -> int:
    """The version below which nothing of a document is kept: a head's own, or all that a fence refuses."""
    return head.version + 1 if head.fence else head.version


def _withdrawal(name: str, head: Head | None, fence: int | None) -> Operation | None:
    """What takes a document out of sight over exactly the state that was read; None where nothing is to do."""
    if fence is None:
        return bulk.remove(name, name, seen=head.seen) if head is not None and not head.fence else None
    if head is not None and head.fence and head.version >= fence:
        return None
    return bulk.put_if(name, name, rows.fence_source(name, fence), seen=head.seen if head is not None else None)


def _others(visible: Mapping[str, int]) -> Json:
    """A search for rows and bodies of the documents that are not of the visible version, the lowest versions first."""
    return {
        "size": WINDOW,
        "_source": False,
        "docvalue_fields": ["record", "document_id", "version"],
        "sort": [{"version": "asc"}],
        "query": {
            "bool": {
                "filter": [{"terms": {"document_id": list(visible)}}],
                "must_not": [{"term": {"record": "head"}}, {"terms": {"edition": [rows.edition(*one) for one in visible.items()]}}],
            }
        },
    }


def _outcome(document: IndexedDocument, *, written: bool) -> WriteOutcome:
    return WriteOutcome(document.document_id, document.version, written, len(document.chunks) if written else 0)
