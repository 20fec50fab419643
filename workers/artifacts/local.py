"""Packs in a local folder: written under a temporary name, synced, renamed."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.contracts import Span
from pipeline.errors import NotFound, Unavailable


class Folder:
    """A `Shelf` on this machine, or on a disk that hosts share."""

    distant = False

    def __init__(self, path: str) -> None:
        self.folder = Path(path)
        self.where = str(self.folder)

    def put(self, pack: str, parts: Sequence[bytes]) -> None:
        path = self.folder / pack
        temporary = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
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
                f"cannot write artifacts to {self.where}: {error.strerror}",
                dependency=True,
                hint="Free disk space, or correct DUJIANG_ARTIFACTS_URL.",
                code="artifacts_unavailable",
            ) from error

    def get(self, pack: str, spans: Sequence[Span]) -> list[bytes]:
        try:
            with (self.folder / pack).open("rb", buffering=0) as file:
                return [os.pread(file.fileno(), end - start, start) for start, end in spans]
        except FileNotFoundError as error:
            raise missing(pack) from error
        except OSError as error:
            raise Unavailable(
                f"cannot read artifact pack {pack}: {error.strerror}",
                dependency=True,
                hint="Check DUJIANG_ARTIFACTS_URL.",
                code="artifacts_unavailable",
            ) from error

    def packs(self) -> Iterator[tuple[str, float, int]]:
        if not self.folder.is_dir():
            return
        for path in self.folder.glob("*/*.pack"):
            # one that goes while we look was not ours to tell of
            with suppress(FileNotFoundError):
                found = path.stat()
                yield path.relative_to(self.folder).as_posix(), found.st_mtime, found.st_size

    def sweep(self, before: float) -> int:
        gone = 0
        for path in self.folder.glob("*/*.tmp") if self.folder.is_dir() else ():
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < before:
                    path.unlink()
                    gone += 1
        return gone

    def remove(self, packs: Iterable[str]) -> None:
        for pack in packs:
            (self.folder / pack).unlink(missing_ok=True)

    def ping(self) -> None:
        """A folder is made when it is written to."""

    def check(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not os.access(self.folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise Unavailable(
                f"artifacts cannot be kept in {self.where}: {error.strerror}",
                dependency=True,
                hint="Correct DUJIANG_ARTIFACTS_URL.",
                code="artifacts_unavailable",
            ) from error


def missing(pack: str) -> NotFound:
    """What is said of a pack that somebody removed from outside."""
    return NotFound(f"artifact pack {pack} is missing", hint="Ingest the document again; its pack was removed from outside.", code="artifact_missing")
