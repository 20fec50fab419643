"""The structure of a graph without its words: what a ranking walks over. Made from the live contributions, kept in packed parts.

It is a pure function of these: the same contributions give the same arrays, in whatever order they came.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from graphrag import editions, leases
from graphrag.contracts import ChunkRef
from graphrag.records import FORMAT, RawChunk, microseconds, moment
from pipeline import wire, zstd
from pipeline.contracts.graph import GraphKind, GraphRecord
from pipeline.errors import BrokenContract
from pipeline.protocols import GraphRecords

PART_BYTES = 4_000_000
"""Of one record, packed."""
SHARE = 20
"""A snapshot is renewed at most once in so many times what making it takes."""
_MANIFEST = "manifest"

Pairs: TypeAlias = NDArray[np.int32]
Weights: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """One state of a graph. Arrays are C-contiguous and not to be changed."""

    generation: int
    """Number of the fold that it is no older than; see `leases.Lease`."""
    keys: tuple[str, ...]
    """Of the entities, sorted: their places are their numbers."""
    documents: tuple[str, ...]
    """Ids, sorted."""
    chunks: tuple[ChunkRef, ...]
    """In the order of (document, ordinal): their places are their numbers."""
    owners: NDArray[np.int32]
    """Number of each chunk's document, shape (chunks,)."""
    mentions: Pairs
    """(entity, chunk), shape (n, 2), in that order."""
    counts: Weights
    """Places of each mention, shape (n,)."""
    relations: Pairs
    """(entity, entity), the lower number first, shape (m, 2), in that order."""
    weights: Weights
    """Of each relation, shape (m,)."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Which snapshot is stored."""

    generation: int
    parts: int
    at_s: float
    """When it was made, since 1970."""
    seconds: float
    """What making it took."""


def build(records: GraphRecords, collection: str) -> Snapshot:
    """Read all live contributions."""
    generation = leases.read(records, collection).number
    chunks: dict[tuple[str, int], RawChunk] = {}
    mentions: dict[tuple[str, tuple[str, int]], int] = {}
    ties: dict[tuple[str, str], list[float]] = {}
    for part in editions.live(records, collection):
        places = [(part.document_id, chunk[1]) for chunk in part.chunks]
        chunks.update(zip(places, part.chunks, strict=True))
        for mention in part.mentions:
            mentions[mention[0], places[mention[3]]] = mention[6]
        for link in part.links:
            ties.setdefault((link[0], link[1]), []).append(link[5])
    keys = tuple(sorted({key for key, _ in mentions}))
    numbers = {key: number for number, key in enumerate(keys)}
    order = sorted(chunks)
    place = {one: number for number, one in enumerate(order)}
    names = tuple(sorted({document for document, _ in order}))
    owner = {name: number for number, name in enumerate(names)}
    pairs = sorted((numbers[key], place[chunk], count) for (key, chunk), count in mentions.items())
    edges = sorted((numbers[one], numbers[other], sum(sorted(weights))) for (one, other), weights in ties.items())
    return Snapshot(
        generation,
        keys,
        names,
        tuple(_ref(chunks[one]) for one in order),
        np.fromiter((owner[document] for document, _ in order), np.int32, len(order)),
        _pairs(pairs),
        np.fromiter((count for *_, count in pairs), np.float32, len(pairs)),
        _pairs(edges),
        np.fromiter((weight for *_, weight in edges), np.float32, len(edges)),
    )


def save(records: GraphRecords, collection: str, snapshot: Snapshot, *, seconds: float, at_s: float) -> None:
    """Store it, parts before manifest; an older one never takes the place of a newer one."""
    data = zstd.Packer().compress(_dump(snapshot))
    pieces = [data[start : start + PART_BYTES] for start in range(0, len(data), PART_BYTES)]
    version = max(1, snapshot.generation)
    names = [_part(snapshot.generation, number) for number in range(len(pieces))]
    records.put(collection, [GraphRecord(GraphKind.SNAPSHOT, one, version, piece) for one, piece in zip(names, pieces, strict=True)])
    body = wire.pack((FORMAT, snapshot.generation, len(pieces), at_s, seconds))
    records.put(collection, [GraphRecord(GraphKind.SNAPSHOT, _MANIFEST, version, body)])
    stale = [one.id for one in records.scan(collection, GraphKind.SNAPSHOT) if one.id != _MANIFEST and one.version < version]
    records.remove(collection, GraphKind.SNAPSHOT, stale)


def manifest(records: GraphRecords, collection: str) -> Manifest | None:
    """Of the stored snapshot; None where there is none."""
    record = records.get(collection, GraphKind.SNAPSHOT, [_MANIFEST]).get(_MANIFEST)
    if record is None:
        return None
    written, generation, parts, at_s, seconds = cast("tuple[int, int, int, float, float]", wire.unpack(record.body))
    return Manifest(generation, parts, at_s, seconds) if written == FORMAT else None


def load(records: GraphRecords, collection: str) -> Snapshot | None:
    """The stored one; None where there is none, or it was replaced while it was read. Raises BrokenContract."""
    known = manifest(records, collection)
    if known is None:
        return None
    names = [_part(known.generation, number) for number in range(known.parts)]
    found = records.get(collection, GraphKind.SNAPSHOT, names)
    if len(found) < len(names):
        return None
    return _load(zstd.decompress(b"".join(found[one].body for one in names)))


def refresh(records: GraphRecords, collection: str, *, force: bool = False) -> bool:
    """Store a new one where the graph has been folded since the last, not more often than `SHARE` allows, or at once with `force`."""
    folded = leases.read(records, collection).number
    known = manifest(records, collection)
    if not folded or (known is not None and (known.generation >= folded or (not force and time.time() - known.at_s < SHARE * known.seconds))):
        return False
    started = time.monotonic()
    snapshot = build(records, collection)
    save(records, collection, snapshot, seconds=time.monotonic() - started, at_s=time.time())
    return True


def _dump(snapshot: Snapshot) -> bytes:
    chunks = [(one.chunk_id, one.ordinal, one.start, one.end, microseconds(one.valid_from)) for one in snapshot.chunks]
    arrays = [one.tobytes() for one in (snapshot.owners, snapshot.mentions, snapshot.counts, snapshot.relations, snapshot.weights)]
    return wire.pack((FORMAT, snapshot.generation, snapshot.keys, snapshot.documents, chunks, *arrays))


def _load(data: bytes) -> Snapshot:
    written, generation, keys, documents, chunks, *arrays = cast("tuple[object, ...]", wire.unpack(data))
    if written != FORMAT:
        raise BrokenContract(f"the snapshot has layout {written}, not {FORMAT}", hint="Build the graph anew.", code="bad_graph")
    owners, mentions, counts, relations, weights = cast("list[bytes]", arrays)
    return Snapshot(
        cast("int", generation),
        cast("tuple[str, ...]", keys),
        cast("tuple[str, ...]", documents),
        tuple(map(_ref, cast("tuple[RawChunk, ...]", chunks))),
        np.frombuffer(owners, np.int32),
        np.frombuffer(mentions, np.int32).reshape(-1, 2),
        np.frombuffer(counts, np.float32),
        np.frombuffer(relations, np.int32).reshape(-1, 2),
        np.frombuffer(weights, np.float32),
    )


def _ref(raw: RawChunk) -> ChunkRef:
    return ChunkRef(*raw[:4], moment(raw[4]))


def _pairs(rows: Sequence[tuple[int, int, float]]) -> Pairs:
    flat = np.fromiter((number for row in rows for number in row[:2]), np.int32, 2 * len(rows))
    return flat.reshape(-1, 2)


def _part(generation: int, number: int) -> str:
    return f"{generation:015d}:{number:05d}"
