"""The graph as one thing: contributions in and out, elements brought up to date, what got lost found again.

A fold takes what is marked, gathers what all live contributions say of the elements that the marked editions touch, and writes each of them
whole, or withdraws it. It holds a lease whose number every write carries, so that a folder that was overtaken can neither overwrite what
a later one wrote nor clear a mark: what it did not see stays marked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import cast

from graphrag import editions, fold, leases, snapshot
from graphrag.contracts import Contribution
from graphrag.editions import Head, Mark
from graphrag.leases import Lease
from graphrag.records import dump_entity, dump_relation, entity_id, load_part, relation_id
from pipeline.contracts.graph import GraphAudit, GraphKind, GraphRecord
from pipeline.errors import Unavailable
from pipeline.protocols import GraphRecords
from pipeline.text import terms

MOST_DIRTY = 400_000
"""Mentions and links of the marks that one round takes on, more where a single document has more."""
MOST_STATEMENTS = 400_000
"""Held in memory at once, roughly: what is dirty is folded in as many slices as that needs."""
PAGE = 500
"""Parts read together."""
YOUNG = 1024
"""Marks up to which a fold that may wait does wait, or twice as many as there are other documents: a load folds when its graph has trebled."""
PATIENT_S = 30.0
"""A fold that may wait has waited so long, or `SHARE` times what the last one took."""
SHARE = 20
FENCED_MS = 86_400_000
"""Fences of withdrawn elements are forgotten after a day: no folder is that late."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep found: all zero in a graph that is whole."""

    wrong: int = 0
    """Elements that were not what the live contributions make them, or were missing; they have been mended."""
    extra: int = 0
    """Elements that no live contribution speaks of; they have been withdrawn."""
    parts: int = 0
    """Parts of editions that never became live, or were left behind; they have been deleted."""


class Graph:
    """One collection's graph, for writing. Every method can be repeated, run anywhere at once, and be killed at any line.

    Args:
        owner: names this worker in the lease; no two that are alive may share it.
    """

    def __init__(
        self,
        records: GraphRecords,
        collection: str,
        *,
        owner: str,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._records, self._collection = records, collection
        self._owner, self._now, self._sleep = owner, now, sleep

    def add(self, contributions: Iterable[Contribution]) -> set[str]:
        """See `editions.add`."""
        return editions.add(self._records, self._collection, contributions, at_ms=self._ms())

    def remove(self, fence: Mapping[str, int]) -> set[str]:
        """See `editions.remove`."""
        return editions.remove(self._records, self._collection, fence, at_ms=self._ms())

    def heads(self, document_ids: Sequence[str]) -> dict[str, Head]:
        """What is known of the documents: an extraction that would give what is there need not be made."""
        return editions.heads(self._records, self._collection, document_ids)

    def marked(self) -> int:
        """Editions that wait for a fold."""
        return len(self._settled())

    def fold(self, *, everything: bool = True) -> int:
        """Bring up to date what is marked; returns how many elements were written or withdrawn.

        Args:
            everything: False leaves what is marked while it is young, and little beside the whole, so that a big load folds its hubs
                a few times only.
        Raises: Unavailable when another worker holds the lease and does not come to an end.
        """
        folded, waited = 0, 0.0
        while marks := self._settled():
            last = leases.read(self._records, self._collection)
            if not everything and self._young(marks, last):
                break
            lease = leases.take(self._records, self._collection, self._owner, self._ms())
            if lease is None:
                if waited > leases.LEASE_S:
                    raise Unavailable(f"another worker folds the graph of {self._collection}", code="graph_busy")
                self._sleep(0.2)
                waited += 0.2
                continue
            waited = 0.0
            folded += self._round(lease)
        return folded

    def refresh(self, *, force: bool = False) -> bool:
        """See `snapshot.refresh`."""
        return snapshot.refresh(self._records, self._collection, force=force)

    def digest(self) -> GraphAudit:
        """Of the elements that are there, folded or not."""
        return self._records.audit(self._collection)

    def sweep(self) -> Swept:
        """Compare every element with what the live contributions make of it, and mend what differs. Reads the whole graph several times.

        Whatever is being added meanwhile is marked, and left to the next fold.
        Raises: Unavailable while another worker folds.
        """
        self.fold()
        lease = leases.take(self._records, self._collection, self._owner, self._ms())
        if lease is None:
            raise Unavailable(f"another worker folds the graph of {self._collection}", code="graph_busy")
        wrong = extra = 0
        slices = self._slices(self._records.count(self._collection, GraphKind.PART) * 256)
        for number in range(slices):
            made = {one.id: one for one in self._made(self._statements(None, _Slice(number, slices)), lease.number)}
            right: set[str] = set()
            lost: dict[GraphKind, dict[str, int]] = {GraphKind.ENTITY: {}, GraphKind.RELATION: {}}
            for kind, gone in lost.items():
                for there in self._records.scan(self._collection, kind):
                    if _slice(there.id, slices) != number:
                        continue
                    ours = made.get(there.id)
                    if ours is None:
                        gone[there.id] = lease.number
                    elif ours.body == there.body:
                        right.add(there.id)
            mend = [record for one, record in made.items() if one not in right]
            self._records.put(self._collection, mend)
            for kind, gone in lost.items():
                self._records.withdraw(self._collection, kind, gone)
                self._records.purge(self._collection, kind, lease.number - FENCED_MS)
            wrong, extra = wrong + len(mend), extra + sum(map(len, lost.values()))
            lease = leases.renew(self._records, self._collection, lease, self._ms())
        parts = self._orphans()
        leases.release(self._records, self._collection, lease, 0.0)
        return Swept(wrong, extra, parts)

    def _ms(self) -> int:
        return int(self._now() * 1000)

    def _settled(self) -> list[Mark]:
        """Marks whose swap has happened, the oldest first. The others' writers are still at work, or will come again."""
        marks = [editions.load_mark(record) for record in self._records.scan(self._collection, GraphKind.MARK)]
        known = editions.heads(self._records, self._collection, list({mark.document_id for mark in marks}))
        return sorted((mark for mark in marks if mark.settled(known.get(mark.document_id))), key=lambda mark: (mark.at_ms, mark.id))

    def _young(self, marks: Sequence[Mark], last: Lease) -> bool:
        old = self._ms() - marks[0].at_ms > 1000 * max(PATIENT_S, SHARE * last.seconds)
        return not old and len(marks) < max(YOUNG, 2 * (self._records.count(self._collection, GraphKind.HEAD) - len(marks)))

    def _round(self, lease: Lease) -> int:
        """Fold as much as one round takes on, under a lease; returns how many elements. 0 when the lease was lost."""
        started = time.process_time()
        marks = _first(self._settled())
        dirty, read = self._dirty(marks)
        count = self._records.count(self._collection, GraphKind.PART)
        reach = None if 2 * len(read) >= count else read
        slices = self._slices(count * -(-sum(mark.new.elements for mark in marks) // max(1, sum(mark.new.parts for mark in marks))))
        for number in range(slices):
            ours = {name: one for name, one in dirty.items() if slices == 1 or _slice(one, slices) == number}
            made: set[str] = set()
            self._records.put(self._collection, self._noted(self._made(self._statements(reach, ours.keys()), lease.number), made))
            gone: dict[GraphKind, dict[str, int]] = {GraphKind.ENTITY: {}, GraphKind.RELATION: {}}
            for name, one in ours.items():
                if one not in made:
                    gone[GraphKind.ENTITY if isinstance(name, str) else GraphKind.RELATION][one] = lease.number
            for kind, fence in gone.items():
                self._records.withdraw(self._collection, kind, fence)
            renewed = leases.renewed(self._records, self._collection, lease, self._ms())
            if renewed is None:
                return 0
            lease = renewed
        self._clear(marks)
        leases.release(self._records, self._collection, lease, time.process_time() - started)
        return len(dirty)

    def _dirty(self, marks: Sequence[Mark]) -> tuple[dict[fold.Name, str], list[str]]:
        """Elements that the marked editions speak of, by name, with their ids; and the entities by which all that is said of them can be found."""
        keys: set[str] = set()
        pairs: set[tuple[str, str]] = set()
        ids = [one for mark in marks for edition in mark.editions() for one in edition.part_ids(mark.document_id)]
        for start in range(0, len(ids), PAGE):
            for record in self._records.get(self._collection, GraphKind.PART, ids[start : start + PAGE]).values():
                part = load_part(record.body)
                keys |= part.keys()
                pairs.update((link[0], link[1]) for link in part.links)
        entities = {key: entity_id(key) for key in keys}
        dirty: dict[fold.Name, str] = {pair: relation_id(*pair) for pair in pairs}
        dirty.update(entities)
        return dirty, list(entities.values())

    def _statements(self, reach: Sequence[str] | None, wanted: Container[fold.Name]) -> fold.Statements:
        """All that live contributions say of the wanted elements."""
        gathered = fold.Statements()
        for part in editions.live(self._records, self._collection, reach):
            gathered.take(part, wanted)
        return gathered

    def _made(self, gathered: fold.Statements, version: int) -> Iterator[GraphRecord]:
        for entity in gathered.entities():
            yield GraphRecord(GraphKind.ENTITY, entity.id, version, dump_entity(entity), words=searched(entity.name, *entity.aliases))
        for relation in gathered.relations():
            yield GraphRecord(GraphKind.RELATION, relation.id, version, dump_relation(relation))

    @staticmethod
    def _noted(made: Iterable[GraphRecord], ids: set[str]) -> Iterator[GraphRecord]:
        for record in made:
            ids.add(record.id)
            yield record

    def _clear(self, marks: Sequence[Mark]) -> None:
        """Delete what the heads have passed, then the marks: dying in between leaves the marks. What another mark names is left to it."""
        known = editions.heads(self._records, self._collection, list({mark.document_id for mark in marks}))
        ours = {mark.id for mark in marks}
        # read after the heads: whoever has passed an edition meanwhile has marked that before
        others = [mark for mark in map(editions.load_mark, self._records.scan(self._collection, GraphKind.MARK)) if mark.id not in ours]
        passed: set[str] = set()
        for mark in marks:
            live = known[mark.document_id].edition
            for edition in mark.editions():
                if (edition.number, edition.digest) != (live.number, live.digest):
                    passed.update(edition.part_ids(mark.document_id))
        for mark in others:
            for edition in mark.editions():
                passed.difference_update(edition.part_ids(mark.document_id))
        self._records.remove(self._collection, GraphKind.PART, sorted(passed))
        self._records.remove(self._collection, GraphKind.MARK, sorted(ours))

    def _orphans(self) -> int:
        """Delete the parts that a head has passed and no mark names, as writers that were killed leave them."""
        named = {mark.document_id for mark in map(editions.load_mark, self._records.scan(self._collection, GraphKind.MARK))}
        found = self._records.scan(self._collection, GraphKind.PART)
        removed = 0
        while page := list(islice(found, PAGE)):
            known = editions.heads(self._records, self._collection, list({editions.part_of(one.id)[0] for one in page}))
            lost: list[str] = []
            for record in page:
                document_id, number, digest = editions.part_of(record.id)
                head = known.get(document_id)
                if head is None or document_id in named or head.edition.number < number:
                    continue
                if (head.edition.number, head.edition.digest) != (number, digest):
                    lost.append(record.id)
            self._records.remove(self._collection, GraphKind.PART, lost)
            removed += len(lost)
        return removed

    @staticmethod
    def _slices(statements: int) -> int:
        return max(1, -(-statements // MOST_STATEMENTS))


def searched(*names: str) -> str:
    """The terms that an entity is found by."""
    return " ".join(piece for pair in map(terms, names) for piece in pair if piece)


class _Slice:
    """Names of the elements of one slice."""

    def __init__(self, number: int, slices: int) -> None:
        self._number, self._slices = number, slices

    def __contains__(self, name: object) -> bool:
        if isinstance(name, str):
            return _slice(entity_id(name), self._slices) == self._number
        source, target = cast("tuple[str, str]", name)
        return _slice(relation_id(source, target), self._slices) == self._number


def _slice(one: str, slices: int) -> int:
    return int(one[:8], 16) % slices


def _first(marks: Sequence[Mark]) -> list[Mark]:
    """As many as one round takes on; at least one."""
    taken: list[Mark] = []
    size = 0
    for mark in marks:
        size += mark.new.elements + (mark.old.elements if mark.old else 0)
        if taken and size > MOST_DIRTY:
            break
        taken.append(mark)
    return taken
