"""Stage outputs in packs, one file per batch and stage, found through the ledger's `artifact_refs`.

An entry is a byte of format (raw or zstd) and the payload. A pack is written under a temporary name,
synced and renamed before the ledger names it; equal batches under equal tokens write equal names.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pipeline import zstd
from pipeline.contracts import Stage
from pipeline.errors import BadRequest, Malformed, NotFound, Unavailable
from workers.ledger.work import Ref

RAW, ZSTD = b"\x00", b"\x01"
SMALL = 256
"""Shorter payloads are not worth compressing."""


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


class Artifacts:
    """Packs in a local folder. Safe for threads and processes: every write is a new file."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "file":
            raise BadRequest(
                f"artifacts cannot be kept at {parts.scheme or url!r} yet", hint="Set DUJIANG_ARTIFACTS_URL to file:///FOLDER.", code="bad_setting"
            )
        self.folder = Path(unquote(parts.path))
        self._local = threading.local()

    def write(self, name: str, entries: Sequence[Entry]) -> list[Ref]:
        """Write one pack, durably. `name` is relative, e.g. ``parse/12-1``. Raises Unavailable when the disk refuses."""
        if not entries:
            return []
        path = self.folder / f"{name}.pack"
        temporary = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
        refs: list[Ref] = []
        parts: list[bytes] = []
        start = 0
        for entry in entries:
            data = self._encode(entry)
            refs.append(Ref(entry.document_id, entry.version, entry.stage, entry.key, f"{name}.pack", start, len(data)))
            parts.append(data)
            start += len(data)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.writelines(parts)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            raise Unavailable(
                f"cannot write artifacts to {self.folder}: {error.strerror}",
                dependency=True,
                hint="Free disk space, or correct DUJIANG_ARTIFACTS_URL.",
                code="artifacts_unavailable",
            ) from error
        return refs

    def read(self, refs: Sequence[Ref]) -> list[bytes]:
        """Payloads in the order of `refs`; each pack is opened once. Raises NotFound, Malformed."""
        found: dict[int, bytes] = {}
        by_pack: dict[str, list[int]] = {}
        for position, ref in enumerate(refs):
            by_pack.setdefault(ref.pack, []).append(position)
        for pack, positions in by_pack.items():
            try:
                with (self.folder / pack).open("rb", buffering=0) as file:
                    for position in positions:
                        ref = refs[position]
                        found[position] = self._decode(os.pread(file.fileno(), ref.length, ref.start), ref)
            except FileNotFoundError as error:
                raise NotFound(
                    f"artifact pack {pack} is missing", hint="Ingest the document again; its pack was removed from outside.", code="artifact_missing"
                ) from error
            except OSError as error:
                raise Unavailable(
                    f"cannot read artifact pack {pack}: {error.strerror}",
                    dependency=True,
                    hint="Check DUJIANG_ARTIFACTS_URL.",
                    code="artifacts_unavailable",
                ) from error
        return [found[position] for position in range(len(refs))]

    def packs(self) -> Iterable[tuple[str, float]]:
        """(name, modified at) of every pack on disk."""
        if not self.folder.is_dir():
            return
        for path in self.folder.glob("*/*.pack"):
            yield path.relative_to(self.folder).as_posix(), path.stat().st_mtime

    def remove(self, packs: Iterable[str]) -> None:
        """Delete packs; unknown names are no error."""
        for pack in packs:
            (self.folder / pack).unlink(missing_ok=True)

    def _encode(self, entry: Entry) -> bytes:
        if not entry.compress or len(entry.data) < SMALL:
            return RAW + entry.data
        # One compressor a thread: the object must not be shared.
        compressor = getattr(self._local, "compressor", None)
        if compressor is None:
            compressor = self._local.compressor = zstd.Packer()
        return ZSTD + compressor.compress(entry.data)

    def _decode(self, data: bytes, ref: Ref) -> bytes:
        if len(data) != ref.length or not data:
            raise Malformed(f"artifact pack {ref.pack} is shorter than the ledger says", hint="Ingest the document again.", code="artifact_truncated")
        if data[:1] == RAW:
            return data[1:]
        try:
            return zstd.decompress(data[1:])
        except zstd.ZstdError as error:
            raise Malformed(f"artifact pack {ref.pack} is damaged", hint="Ingest the document again.", code="artifact_damaged") from error
