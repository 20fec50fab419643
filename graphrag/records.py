"""Contributions and elements as bytes: the same content always gives the same ones.

Ids of 32 hexadecimal digits are kept as 16 bytes, which halves the place that evidence takes. Times are microseconds since 1970.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeAlias, cast

from graphrag.contracts import ChunkRef, Contribution, Entity, Link, Mention, Relation, Source
from pipeline import wire, zstd
from pipeline.errors import BrokenContract

FORMAT = 1
"""First number of every record; another one is refused, never misread."""
PART_ELEMENTS = 1024
"""Mentions and links of one part, more where a single chunk has more."""
REMEMBERED = 65_536
"""Ids of elements; each is needed several times within one fold."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

RawChunk: TypeAlias = tuple[str, int, int, int, int | None]
"""(chunk id, ordinal, start, end, valid from)."""
RawMention: TypeAlias = tuple[str, str, str, int, int, int, int, str]
"""(key, name, type, chunk, start, end, count, description)."""
RawLink: TypeAlias = tuple[str, str, int, int, int, float, str, tuple[str, ...]]
"""(source, target, chunk, start, end, weight, description, keywords)."""
_Id: TypeAlias = str | bytes
_RawSource: TypeAlias = tuple[bytes, int, int] | tuple[_Id, _Id, int, int] | tuple[_Id, _Id, int, int, str, int | None]
"""Document and chunk (in one piece where both are 16 bytes), start, length; description and time where there are any."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some chunks of a contribution with all that they say; indices count within the part."""

    document_id: str
    chunks: tuple[RawChunk, ...]
    mentions: tuple[RawMention, ...]
    links: tuple[RawLink, ...]

    def keys(self) -> set[str]:
        """Of every entity that it mentions or ties."""
        found = {mention[0] for mention in self.mentions}
        for link in self.links:
            found.add(link[0])
            found.add(link[1])
        return found

    def entity_ids(self) -> set[str]:
        return {entity_id(key) for key in self.keys()}


def entity_id(key: str) -> str:
    """32 hexadecimal digits."""
    return _entity_id(key)


def relation_id(source: str, target: str) -> str:
    """32 hexadecimal digits; of two keys, `source` < `target`."""
    return _relation_id(source, target)


def dump_parts(contribution: Contribution) -> list[bytes]:
    """Uncompressed, in the order of chunks; none for a contribution without mentions.

    Raises BrokenContract for a link whose ends are not in order, or not mentioned: folding relies on both.
    """
    keys = contribution.keys()
    for link in contribution.links:
        if not link.source < link.target or link.source not in keys or link.target not in keys:
            raise BrokenContract(
                f"document {contribution.document_id} has a relation whose ends are out of order or not mentioned", document=contribution.document_id
            )
    said: list[tuple[list[Mention], list[Link]]] = [([], []) for _ in contribution.chunks]
    for mention in contribution.mentions:
        said[mention.chunk][0].append(mention)
    for link in contribution.links:
        said[link.chunk][1].append(link)
    parts: list[bytes] = []
    first, size = 0, 0
    for place, (mentions, links) in enumerate(said):
        if size and size + len(mentions) + len(links) > PART_ELEMENTS:
            parts.append(_dump_part(contribution, first, said[first:place]))
            first, size = place, 0
        size += len(mentions) + len(links)
    return [*parts, _dump_part(contribution, first, said[first:])] if size else parts


def squeeze(part: bytes) -> bytes:
    """A part as it is stored."""
    return zstd.Packer().compress(part)


def load_part(stored: bytes) -> Part:
    """Raises BrokenContract."""
    try:
        content = cast("tuple[int, str, object, object, object]", wire.unpack(zstd.decompress(stored)))
    except zstd.ZstdError as error:
        raise BrokenContract("a part of the graph cannot be read", code="bad_graph") from error
    _check(content[0])
    return Part(
        content[1],
        cast("tuple[RawChunk, ...]", content[2]),
        cast("tuple[RawMention, ...]", content[3]),
        cast("tuple[RawLink, ...]", content[4]),
    )


def load_contribution(parts: Sequence[Part], version: int, extractor: str) -> Contribution:
    """A contribution of all its parts in order, without chunks behind the last one that says anything. Raises BrokenContract for none."""
    if not parts:
        raise BrokenContract("a contribution without parts has no document", code="bad_graph")
    chunks: list[ChunkRef] = []
    mentions: list[Mention] = []
    links: list[Link] = []
    for part in parts:
        shift = len(chunks)
        chunks += [ChunkRef(one, ordinal, start, end, moment(valid)) for one, ordinal, start, end, valid in part.chunks]
        mentions += [Mention(*one[:3], one[3] + shift, *one[4:]) for one in part.mentions]
        links += [Link(*one[:2], one[2] + shift, *one[3:]) for one in part.links]
    return Contribution(parts[0].document_id, version, extractor, tuple(chunks), tuple(mentions), tuple(links))


def dump_entity(entity: Entity) -> bytes:
    """Without its id, which the key gives."""
    fields = (entity.key, entity.name, entity.type, entity.aliases, entity.description, entity.mentions, entity.documents)
    return wire.pack((FORMAT, *fields, _dump_sources(entity.sources)))


def load_entity(data: bytes) -> Entity:
    """Raises BrokenContract."""
    fields = cast("tuple[int, str, str, str, tuple[str, ...], str, int, int, tuple[_RawSource, ...]]", wire.unpack(data))
    _check(fields[0])
    return Entity(entity_id(fields[1]), *fields[1:8], _load_sources(fields[8]))


def dump_relation(relation: Relation) -> bytes:
    """Without its id, which its ends give."""
    weight = int(relation.weight) if relation.weight.is_integer() else relation.weight
    fields = (relation.source, relation.target, weight, relation.count, relation.documents, relation.description, relation.keywords)
    return wire.pack((FORMAT, *fields, _dump_sources(relation.sources)))


def load_relation(data: bytes) -> Relation:
    """Raises BrokenContract."""
    fields = cast("tuple[int, str, str, float, int, int, str, tuple[str, ...], tuple[_RawSource, ...]]", wire.unpack(data))
    _check(fields[0])
    return Relation(relation_id(fields[1], fields[2]), *fields[1:3], float(fields[3]), *fields[4:8], _load_sources(fields[8]))


def moment(microseconds: int | None) -> datetime | None:
    """A stored time."""
    return None if microseconds is None else _EPOCH + timedelta(microseconds=microseconds)


def microseconds(at: datetime | None) -> int | None:
    """A time as it is stored."""
    return None if at is None else (at - _EPOCH) // timedelta(microseconds=1)


@functools.lru_cache(maxsize=REMEMBERED)
def _entity_id(key: str) -> str:
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16, person=b"entity").hexdigest()


@functools.lru_cache(maxsize=REMEMBERED)
def _relation_id(source: str, target: str) -> str:
    first = source.encode("utf-8", "surrogatepass")
    joined = b"%d:%s%s" % (len(first), first, target.encode("utf-8", "surrogatepass"))
    return hashlib.blake2b(joined, digest_size=16, person=b"relation").hexdigest()


def _dump_part(contribution: Contribution, first: int, said: Sequence[tuple[list[Mention], list[Link]]]) -> bytes:
    chunks = contribution.chunks[first : first + len(said)]
    raw = [(one.chunk_id, one.ordinal, one.start, one.end, microseconds(one.valid_from)) for one in chunks]
    mentions = [(m.key, m.name, m.type, m.chunk - first, m.start, m.end, m.count, m.description) for ours, _ in said for m in ours]
    links = [(one.source, one.target, one.chunk - first, *_rest(one)) for _, ours in said for one in ours]
    try:
        return wire.pack((FORMAT, contribution.document_id, raw, mentions, links))
    except UnicodeEncodeError as error:
        name = contribution.document_id
        raise BrokenContract(f"document {name} gives the graph a name that cannot be written as UTF-8", document=name) from error


def _rest(link: Link) -> tuple[int, int, float, str, tuple[str, ...]]:
    return link.start, link.end, float(link.weight), link.description, link.keywords


def _dump_sources(sources: Sequence[Source]) -> list[_RawSource]:
    return [_dump_source(_short(one.document_id), _short(one.chunk_id), one) for one in sources]


def _dump_source(document: _Id, chunk: _Id, one: Source) -> _RawSource:
    length = one.end - one.start
    if one.description or one.valid_from is not None:
        return document, chunk, one.start, length, one.description, microseconds(one.valid_from)
    if isinstance(document, bytes) and isinstance(chunk, bytes):
        return document + chunk, one.start, length
    return document, chunk, one.start, length


def _load_sources(raw: Sequence[_RawSource]) -> tuple[Source, ...]:
    return tuple(map(_load_source, raw))


def _load_source(one: _RawSource) -> Source:
    if len(one) == 3:
        return Source(one[0][:16].hex(), one[0][16:].hex(), one[1], one[1] + one[2])
    if len(one) == 4:
        return Source(_long(one[0]), _long(one[1]), one[2], one[2] + one[3])
    return Source(_long(one[0]), _long(one[1]), one[2], one[2] + one[3], one[4], moment(one[5]))


def _short(one: str) -> _Id:
    if len(one) == 32:
        try:
            data = bytes.fromhex(one)
        except ValueError:
            return one
        if data.hex() == one:
            return data
    return one


def _long(one: _Id) -> str:
    return one.hex() if isinstance(one, bytes) else one


def _check(written: int) -> None:
    if written != FORMAT:
        raise BrokenContract(f"a graph record has layout {written}, not {FORMAT}", hint="Build the graph anew.", code="bad_graph")
