"""Statements of all documents about one element → the element. Pure; any order of the statements gives the same one."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from graphrag.contracts import Entity, Relation, Source
from graphrag.records import Part, entity_id, moment, relation_id

Name: TypeAlias = str | tuple[str, str]
"""An entity's key, or both ends of a relation."""

MOST_SOURCES = 64
"""Evidence kept of one element: the first in the order of (document, chunk, place). `documents` counts all."""
MOST_ALIASES = 32
"""The most frequent ones are kept."""
MOST_KEYWORDS = 32
DESCRIPTION = 4000
"""Characters of distinct descriptions, whole ones only, but for a first one that is longer by itself."""


class Said(NamedTuple):
    """What one chunk says of an entity. In the order in which statements are folded."""

    document_id: str
    ordinal: int
    start: int
    end: int
    chunk_id: str
    name: str
    type: str
    places: int
    description: str
    valid_from: int | None
    """Microseconds since 1970."""


class Tied(NamedTuple):
    """What one chunk says of a relation. In the order in which statements are folded."""

    document_id: str
    ordinal: int
    start: int
    end: int
    chunk_id: str
    weight: float
    description: str
    keywords: tuple[str, ...]
    valid_from: int | None


def entity(key: str, said: Iterable[Said]) -> Entity:
    """Of at least one statement."""
    ordered = sorted(said)
    first = ordered[0]
    names, types = [first.name], first.type
    if any(one.name != first.name or one.type != types for one in ordered):
        names = _ranked((one.name, one.places) for one in ordered)
        types = _ranked((one.type, one.places) for one in ordered)[0]
    return Entity(
        entity_id(key),
        key,
        names[0],
        types,
        tuple(sorted(names[1 : MOST_ALIASES + 1])),
        _described(ordered),
        sum(one.places for one in ordered),
        _documents(ordered),
        _sources(ordered),
    )


def relation(source: str, target: str, tied: Iterable[Tied]) -> Relation:
    """Of at least one statement."""
    ordered = sorted(tied)
    keywords = _ranked((word, 1) for one in ordered for word in one.keywords)
    return Relation(
        relation_id(source, target),
        source,
        target,
        math.fsum(one.weight for one in ordered),
        len(ordered),
        _documents(ordered),
        _described(ordered),
        tuple(sorted(keywords[:MOST_KEYWORDS])),
        _sources(ordered),
    )


class Statements:
    """What has been gathered of some elements, in any order: of entities by their keys, of relations by both ends."""

    def __init__(self) -> None:
        self._said: dict[str, list[Said]] = {}
        self._tied: dict[tuple[str, str], list[Tied]] = {}

    def take(self, part: Part, wanted: Container[Name] | None = None) -> None:
        """Add what a part says of the wanted elements; None: of all."""
        chunks, document_id = part.chunks, part.document_id
        for key, name, kind, place, start, end, count, description in part.mentions:
            if wanted is None or key in wanted:
                chunk = chunks[place]
                said = Said(document_id, chunk[1], start, end, chunk[0], name, kind, count, description, chunk[4])
                self._said.setdefault(key, []).append(said)
        for source, target, place, start, end, weight, description, keywords in part.links:
            pair = (source, target)
            if wanted is None or pair in wanted:
                chunk = chunks[place]
                tied = Tied(document_id, chunk[1], start, end, chunk[0], weight, description, keywords, chunk[4])
                self._tied.setdefault(pair, []).append(tied)

    def entities(self) -> Iterator[Entity]:
        """In the order of ids."""
        for key in sorted(self._said, key=entity_id):
            yield entity(key, self._said[key])

    def relations(self) -> Iterator[Relation]:
        """In the order of ids."""
        for pair in sorted(self._tied, key=lambda pair: relation_id(*pair)):
            yield relation(*pair, self._tied[pair])


def _ranked(votes: Iterable[tuple[str, int]]) -> list[str]:
    """The most frequent first; ties by code points."""
    counts: dict[str, int] = {}
    for one, places in votes:
        counts[one] = counts.get(one, 0) + places
    return sorted(counts, key=lambda one: (-counts[one], one))


def _documents(ordered: Sequence[Said] | Sequence[Tied]) -> int:
    return 1 if len(ordered) == 1 else len({one.document_id for one in ordered})


def _described(ordered: Sequence[Said] | Sequence[Tied]) -> str:
    kept: list[str] = []
    size = 0
    for one in dict.fromkeys(one.description for one in ordered):
        if not one:
            continue
        if kept and size + len(one) > DESCRIPTION:
            break
        kept.append(one[:DESCRIPTION])
        size += len(one) + 1
    return "\n".join(kept)


def _sources(ordered: Sequence[Said] | Sequence[Tied]) -> tuple[Source, ...]:
    return tuple(
        [
            Source(one.document_id, one.chunk_id, one.start, one.end, one.description, None if one.valid_from is None else moment(one.valid_from))
            for one in ordered[:MOST_SOURCES]
        ]
    )
