"""Which edition of each document's contribution is live, and how another one takes its place.

An edition is a number, which rises with every change of a document's head, and a digest of all it says. Its parts are written first,
then a mark that names it and the one it replaces, then the head is swapped: that is the commit. Whatever dies in between leaves at most
parts that nobody shows and a mark that costs a fold. A number never becomes live again once the head has passed it, so that what the
head has passed can be deleted at any time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import cast

from graphrag.contracts import Contribution
from graphrag.records import FORMAT, Part, dump_parts, load_part, squeeze
from pipeline import wire
from pipeline.contracts.graph import GraphKind, GraphRecord
from pipeline.errors import BrokenContract, Unavailable
from pipeline.protocols import GraphRecords

PAGE = 500
"""Parts whose heads are read together."""
CONTESTS = 20
"""Attempts at a head that others change meanwhile."""


@dataclass(frozen=True, slots=True)
class Edition:
    """One state of one document's contribution."""

    number: int
    digest: str = ""
    """Empty: it says nothing, as the document was removed."""
    parts: int = 0
    elements: int = 0
    """Mentions and links."""

    def part_ids(self, document_id: str) -> list[str]:
        return [f"{document_id}:{self.number:08d}:{self.digest}:{part:05d}" for part in range(self.parts)]


@dataclass(frozen=True, slots=True)
class Head:
    """What the graph takes of a document."""

    document_id: str
    version: int
    """Of the document. Where it was removed, nothing up to this one is taken any more."""
    extractor: str
    edition: Edition

    @property
    def removed(self) -> bool:
        return not self.edition.digest

    def refuses(self, version: int) -> bool:
        """Whether a writer of this version comes too late."""
        return version <= self.version if self.removed else version < self.version


@dataclass(frozen=True, slots=True)
class Mark:
    """`new` is about to take, or has taken, the place of `old`: what both touch is to be folded."""

    id: str
    document_id: str
    old: Edition | None
    new: Edition
    at_ms: int

    def editions(self) -> tuple[Edition, ...]:
        return (self.new,) if self.old is None else (self.old, self.new)

    def settled(self, head: Head | None) -> bool:
        """Whether the swap it announces has happened, or never will."""
        return head is not None and head.edition.number >= self.new.number


@dataclass(frozen=True, slots=True)
class _Wanted:
    version: int
    extractor: str
    digest: str
    parts: Sequence[bytes]
    elements: int


def add(records: GraphRecords, collection: str, contributions: Iterable[Contribution], *, at_ms: int) -> set[str]:
    """Make each the live edition of its document; returns the ids of those that changed anything. An older version never wins.

    Raises BrokenContract before anything is written, Unavailable.
    """
    wanted: dict[str, _Wanted] = {}
    for one in contributions:
        known = wanted.get(one.document_id)
        if known is None or known.version <= one.version:
            wanted[one.document_id] = _wanted(one)
    return _commit(records, collection, wanted, at_ms)


def remove(records: GraphRecords, collection: str, fence: Mapping[str, int], *, at_ms: int) -> set[str]:
    """Take documents out, whether they were in or not: document id → version up to which none is taken any more. A higher one stays."""
    return _commit(records, collection, {one: _Wanted(version, "", "", (), 0) for one, version in fence.items()}, at_ms)


def heads(records: GraphRecords, collection: str, document_ids: Sequence[str]) -> dict[str, Head]:
    """Those of the documents that the graph knows, removed ones with them."""
    return {one: load_head(record) for one, record in records.get(collection, GraphKind.HEAD, document_ids).items()}


def live(records: GraphRecords, collection: str, reach: Sequence[str] | None = None) -> Iterator[Part]:
    """Parts of live editions, one at a time: all, or those that hold one of the entities. What is added meanwhile may or may not be among them."""
    found = records.scan(collection, GraphKind.PART) if reach is None else records.holding(collection, GraphKind.PART, reach)
    while page := list(islice(found, PAGE)):
        known = heads(records, collection, list({part_of(one.id)[0] for one in page}))
        for record in page:
            document_id, number, digest = part_of(record.id)
            head = known.get(document_id)
            if head is not None and (head.edition.number, head.edition.digest) == (number, digest):
                yield load_part(record.body)


def load_head(record: GraphRecord) -> Head:
    """Raises BrokenContract."""
    _, version, extractor, digest, parts, elements = _unpacked(record, 6)
    edition = Edition(record.version, cast("str", digest), cast("int", parts), cast("int", elements))
    return Head(record.id, cast("int", version), cast("str", extractor), edition)


def load_mark(record: GraphRecord) -> Mark:
    """Raises BrokenContract."""
    _, document_id, old, new = _unpacked(record, 4)
    before = None if old is None else Edition(*cast("tuple[int, str, int, int]", old))
    return Mark(record.id, cast("str", document_id), before, Edition(*cast("tuple[int, str, int, int]", new)), record.version)


def _wanted(contribution: Contribution) -> _Wanted:
    parts = dump_parts(contribution)
    digest = hashlib.blake2b(digest_size=8)
    for part in (str(contribution.version).encode(), contribution.extractor.encode(), *parts):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    elements = len(contribution.mentions) + len(contribution.links)
    return _Wanted(contribution.version, contribution.extractor, digest.hexdigest(), [squeeze(part) for part in parts], elements)


def _commit(records: GraphRecords, collection: str, wanted: dict[str, _Wanted], at_ms: int) -> set[str]:
    done: set[str] = set()
    pending = dict(wanted)
    for _ in range(CONTESTS):
        known = heads(records, collection, list(pending))
        for one, head in known.items():
            ours = pending[one]
            if head.refuses(ours.version) or (head.version == ours.version and head.edition.digest == ours.digest):
                del pending[one]
        if not pending:
            return done
        swapped = _flip(records, collection, pending, known, at_ms)
        done |= swapped
        pending = {one: ours for one, ours in pending.items() if one not in swapped}
        if not pending:
            return done
    raise Unavailable(f"documents of collection {collection} change in its graph faster than they can be written", dependency=True)


def _flip(records: GraphRecords, collection: str, pending: Mapping[str, _Wanted], known: Mapping[str, Head], at_ms: int) -> set[str]:
    """One attempt at all of them; returns those whose heads were swapped."""
    parts: list[GraphRecord] = []
    marks: list[GraphRecord] = []
    swaps: list[tuple[GraphRecord, int]] = []
    for one, ours in pending.items():
        head = known.get(one)
        old = None if head is None else head.edition
        new = Edition(1 if old is None else old.number + 1, ours.digest, len(ours.parts), ours.elements)
        for part_id, body in zip(new.part_ids(one), ours.parts, strict=True):
            parts.append(GraphRecord(GraphKind.PART, part_id, 1, body, holds=tuple(sorted(load_part(body).entity_ids()))))
        body = wire.pack((FORMAT, one, None if old is None else _plain(old), _plain(new)))
        marks.append(GraphRecord(GraphKind.MARK, f"{one}:{new.number:08d}:{new.digest or 'removed'}", at_ms, body))
        body = wire.pack((FORMAT, ours.version, ours.extractor, new.digest, new.parts, new.elements))
        swaps.append((GraphRecord(GraphKind.HEAD, one, new.number, body), 0 if old is None else old.number))
    records.put(collection, [*parts, *marks])
    return {record.id for (record, _), won in zip(swaps, records.swap(collection, swaps), strict=True) if won}


def _plain(edition: Edition) -> tuple[int, str, int, int]:
    return edition.number, edition.digest, edition.parts, edition.elements


def _unpacked(record: GraphRecord, length: int) -> tuple[object, ...]:
    fields = cast("tuple[object, ...]", wire.unpack(record.body))
    if len(fields) != length or fields[0] != FORMAT:
        raise BrokenContract(f"a {record.kind.value} of the graph has another layout", hint="Build the graph anew.", code="bad_graph")
    return fields


def part_of(part_id: str) -> tuple[str, int, str]:
    """(document id, number, digest) of a part's id."""
    document_id, number, digest, _ = part_id.rsplit(":", 3)
    return document_id, int(number), digest
