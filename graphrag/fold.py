"""Statements of all documents about one element → the element. Pure; any order of the statements gives the same one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from graphrag.contracts import Entity, Relation, Source
from graphrag.records import Part, entity_id, moment, relation_id

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
    names: Counter[str] = Counter()
    types: Counter[str] = Counter()
    for one in ordered:
        names[one.name] += one.places
        types[one.type] += one.places
    ranked = _ranked(names)
    return Entity(
        id=entity_id(key),
        key=key,
        name=ranked[0],
        type=_ranked(types)[0],
        aliases=tuple(sorted(ranked[1 : MOST_ALIASES + 1])),
        description=_described([one.description for one in ordered]),
        mentions=names.total(),
        documents=len({one.document_id for one in ordered}),
        sources=_sources(ordered),
    )


def relation(source: str, target: str, tied: Iterable[Tied]) -> Relation:
    """Of at least one statement."""
    ordered = sorted(tied)
    keywords: Counter[str] = Counter()
    for one in ordered:
        keywords.update(one.keywords)
    return Relation(
        id=relation_id(source, target),
        source=source,
        target=target,
        weight=math.fsum(one.weight for one in ordered),
        count=len(ordered),
        documents=len({one.document_id for one in ordered}),
        description=_described([one.description for one in ordered]),
        keywords=tuple(sorted(_ranked(keywords)[:MOST_KEYWORDS])),
        sources=_sources(ordered),
    )


class Statements:
    """What has been gathered of some elements, in any order."""

    def __init__(self) -> None:
        self._said: dict[str, list[Said]] = {}
        self._tied: dict[tuple[str, str], list[Tied]] = {}
        self._wanted: dict[str | tuple[str, str], bool] = {}

    def take(self, part: Part, wanted: Callable[[str], bool]) -> None:
        """Add what a part says of elements whose id is wanted; each is asked for once."""
        chunks, document_id = part.chunks, part.document_id
        for key, name, kind, place, start, end, count, description in part.mentions:
            if self._wants(key, wanted):
                chunk = chunks[place]
                said = Said(document_id, chunk[1], start, end, chunk[0], name, kind, count, description, chunk[4])
                self._said.setdefault(key, []).append(said)
        for source, target, place, start, end, weight, description, keywords in part.links:
            pair = (source, target)
            if self._wants(pair, wanted):
                chunk = chunks[place]
                tied = Tied(document_id, chunk[1], start, end, chunk[0], weight, description, keywords, chunk[4])
                self._tied.setdefault(pair, []).append(tied)

    def entities(self) -> Iterator[Entity]:
        """In the order of ids."""
        for key in sorted(self._said, key=entity_id):
            yield entity(key, self._said[key])

    def relations(self) -> Iterator[Relation]:
        """In the order of ids."""
        for pair in sorted(self._tied, key=lambda one: relation_id(*one)):
            yield relation(*pair, self._tied[pair])

    def _wants(self, name: str | tuple[str, str], wanted: Callable[[str], bool]) -> bool:
        known = self._wanted.get(name)
        if known is None:
            known = self._wanted[name] = wanted(entity_id(name) if isinstance(name, str) else relation_id(*name))
        return known


def _ranked(counts: Counter[str]) -> list[str]:
    """The most frequent first; ties by code points."""
    if len(counts) < 2:
        return list(counts)
    return sorted(counts, key=lambda one: (-counts[one], one))


def _described(descriptions: Sequence[str]) -> str:
    kept: list[str] = []
    size = 0
    for one in dict.fromkeys(descriptions):
        if not one:
            continue
        if kept and size + len(one) > DESCRIPTION:
            break
        kept.append(one[:DESCRIPTION])
        size += len(one) + 1
    return "\n".join(kept)


def _sources(ordered: Sequence[Said] | Sequence[Tied]) -> tuple[Source, ...]:
    return tuple(Source(one.document_id, one.chunk_id, one.start, one.end, one.description, moment(one.valid_from)) for one in ordered[:MOST_SOURCES])
