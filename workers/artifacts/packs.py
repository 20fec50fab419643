"""Packs: one file per batch and stage.

An entry is a byte of format (raw or zstd), the payload's CRC-32 and the payload. A pack is whole before the ledger names it;
equal batches under equal tokens write equal names.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol
from zlib import crc32

from pipeline import zstd
from pipeline.contracts import Span, Stage
from pipeline.errors import Malformed, NotFound, Rejected
from workers.ledger.work import Ref

RAW, ZSTD = b"\x02", b"\x03"
HEAD = 5
"""Bytes in front of the payload."""
SMALL = 256
"""Shorter payloads are not worth compressing."""
AT_ONCE = 8
"""Packs read at the same time from a distant shelf."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One document's output of one stage."""

    document_id: str
    version: int
    stage: Stage
    key: str
    data: bytes
    compress: bool = True
    """Vectors do not compress; text does."""


class Shelf(Protocol):
    """Where packs lie. Safe for threads and processes: every write is a new pack, whole or not there."""

    where: str
    """For messages: no credentials in it."""
    distant: bool
    """Whether several packs are read sooner at the same time than one after the other."""

    def put(self, pack: str, parts: Sequence[bytes]) -> None:
        """Write a pack durably, in place of one of the same name. Raises Unavailable."""
        ...

    def get(self, pack: str, spans: Sequence[Span]) -> list[bytes]:
        """Bytes ``start`` to ``end`` of each span, shorter where the pack ends before. Raises NotFound, Unavailable."""
        ...

    def packs(self) -> Iterator[tuple[str, float, int]]:
        """(name, modified at, bytes) of every pack. Raises Unavailable."""
        ...

    def sweep(self, before: float) -> int:
        """Remove what writers that died left behind before that moment; returns how many pieces."""
        ...

    def remove(self, packs: Iterable[str]) -> None:
        """Delete packs; unknown names are no error. Raises Unavailable."""
        ...

    def ping(self) -> None:
        """Try to look. Raises Unavailable."""
        ...

    def check(self) -> None:
        """Try to write. Raises what is wrong with the address or the credentials: NotFound, Unauthorised, Unavailable."""
        ...


class Artifacts:
    """Entries in packs on a shelf. Safe for threads and processes."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self._local = threading.local()

    def write(self, name: str, entries: Sequence[Entry]) -> list[Ref]:
        """Write one pack, durably. `name` is relative, e.g. ``parse/12-1``. Raises Unavailable when the shelf refuses."""
        if not entries:
            return []
        refs: list[Ref] = []
        parts: list[bytes] = []
        start = 0
        for entry in entries:
            data = self._encode(entry)
            refs.append(Ref(entry.document_id, entry.version, entry.stage, entry.key, f"{name}.pack", start, len(data)))
            parts.append(data)
            start += len(data)
        self.shelf.put(f"{name}.pack", parts)
        return refs

    def read(self, refs: Sequence[Ref]) -> list[bytes]:
        """Payloads in the order of `refs`; each pack is opened once. Raises NotFound, Malformed, Unavailable."""
        found: list[bytes] = []
        for outcome in self.each(refs):
            if isinstance(outcome, Rejected):
                raise outcome
            found.append(outcome)
        return found

    def each(self, refs: Sequence[Ref]) -> list[bytes | Rejected]:
        """Payloads in the order of `refs`, or why one is not there: NotFound, Malformed. Raises Unavailable."""
        by_pack: dict[str, list[int]] = {}
        for position, ref in enumerate(refs):
            by_pack.setdefault(ref.pack, []).append(position)

        def one(pack: str) -> list[bytes | Rejected]:
            wanted = [refs[position] for position in by_pack[pack]]
            try:
                pieces = self.shelf.get(pack, [(ref.start, ref.start + ref.length) for ref in wanted])
            except NotFound as error:
                return [error] * len(wanted)
            return [_outcome(piece, ref) for piece, ref in zip(pieces, wanted, strict=True)]

        found: dict[int, bytes | Rejected] = {}
        if self.shelf.distant and len(by_pack) > 1:
            with ThreadPoolExecutor(min(len(by_pack), AT_ONCE), "artifacts") as threads:
                outcomes = list(threads.map(one, by_pack))
        else:
            outcomes = list(map(one, by_pack))
        for positions, pieces in zip(by_pack.values(), outcomes, strict=True):
            found.update(zip(positions, pieces, strict=True))
        return [found[position] for position in range(len(refs))]

    def rewrite(self, pack: str, keep: Sequence[Ref], name: str) -> dict[int, Ref]:
        """Copy those entries of a pack into a new one, as they are; `pack` itself stays. Raises NotFound, Unavailable.

        Returns: where an entry was → where its copy is. What the pack is too short for is left out.
        """
        pieces = self.shelf.get(pack, [(ref.start, ref.start + ref.length) for ref in keep])
        moved: dict[int, Ref] = {}
        parts: list[bytes] = []
        start = 0
        for ref, piece in zip(keep, pieces, strict=True):
            if len(piece) == ref.length:
                moved[ref.start] = Ref(ref.document_id, ref.version, ref.stage, ref.key, f"{name}.pack", start, ref.length)
                parts.append(piece)
                start += ref.length
        self.shelf.put(f"{name}.pack", parts)
        return moved

    def packs(self) -> Iterator[tuple[str, float]]:
        """(name, modified at) of every pack."""
        return ((name, written_at) for name, written_at, _ in self.shelf.packs())

    def remove(self, packs: Iterable[str]) -> None:
        """Delete packs; unknown names are no error."""
        self.shelf.remove(packs)

    def _encode(self, entry: Entry) -> bytes:
        if not entry.compress or len(entry.data) < SMALL:
            return _sealed(RAW, entry.data)
        # One compressor a thread: the object must not be shared.
        compressor = getattr(self._local, "compressor", None)
        if compressor is None:
            compressor = self._local.compressor = zstd.Packer()
        return _sealed(ZSTD, compressor.compress(entry.data))


def _sealed(kind: bytes, payload: bytes) -> bytes:
    # A flipped bit in a vector, or in zstd's literals, would otherwise travel on as if nothing had happened.
    return b"".join((kind, crc32(payload).to_bytes(4, "little"), payload))


def _whole(data: bytes, ref: Ref) -> None:
    if len(data) != ref.length or not data:
        raise Malformed(f"artifact pack {ref.pack} is shorter than the ledger says", hint="Ingest the document again.", code="artifact_truncated")


def _outcome(data: bytes, ref: Ref) -> bytes | Rejected:
    try:
        return _decode(data, ref)
    except Malformed as error:
        return error


def _decode(data: bytes, ref: Ref) -> bytes:
    _whole(data, ref)
    kind, payload = data[:1], data[HEAD:]
    if kind not in (RAW, ZSTD) or crc32(payload) != int.from_bytes(data[1:HEAD], "little"):
        raise Malformed(f"artifact pack {ref.pack} is damaged", hint="Ingest the document again.", code="artifact_damaged")
    if kind == RAW:
        return payload
    try:
        return zstd.decompress(payload)
    except zstd.ZstdError as error:
        raise Malformed(f"artifact pack {ref.pack} is damaged", hint="Ingest the document again.", code="artifact_damaged") from error
