"""ZIP archives as folders: members are documents. Nothing is unpacked to disk, so that names cannot escape."""

from __future__ import annotations

import os
import stat as modes
import zipfile
import zlib
from collections.abc import Iterator, Mapping

from pipeline.errors import Forbidden, Gone, Malformed, PipelineError, TooLarge, Unsupported
from pipeline.load.entries import FileEntry, found, refusal, trouble, unwanted

MOST_MEMBERS = 100_000
MOST_RATIO = 100
RATIO_FROM = 20 * 1024 * 1024
_UTF8_NAMES = 0x800


def members(path: str, stat: os.stat_result, max_bytes: int) -> Iterator[FileEntry]:
    """An entry per member in order of name. A damaged archive is one failure."""
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
    except FileNotFoundError:
        yield trouble(path, Gone("the archive vanished while it was listed"), stat=stat)
        return
    except PermissionError:
        yield trouble(path, Forbidden("the archive may not be read", code="unreadable", hint="Give the worker read permission."), stat=stat)
        return
    except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError, OSError):
        yield trouble(path, Malformed("the ZIP archive is damaged or cut off", hint="Copy or download it again."), stat=stat)
        return
    if len(infos) > MOST_MEMBERS or sum(info.compress_size for info in infos) > stat.st_size:
        yield trouble(path, TooLarge(f"the archive claims {len(infos):,} members, or members that overlap", code="zip_bomb"), stat=stat)
        return
    for name, info in sorted(names(infos).items()):
        if info.is_dir() or any(unwanted(part) for part in name.split("/")):
            continue
        problem = _problem(name, info, max_bytes)
        if problem is not None:
            yield trouble(f"{path}!/{name}", problem, stat=stat)
        else:
            yield found(path, stat, member=name, size=info.file_size, mark=f"{info.CRC:08x}-{info.file_size}")


def names(infos: list[zipfile.ZipInfo]) -> dict[str, zipfile.ZipInfo]:
    """Readable name → member. Names without the UTF-8 flag are decoded together: a single short name says too little.

    A later member of the same name wins, as it does when an archive is unpacked.
    """
    from pipeline.parse import charset

    old = [info.orig_filename.encode("cp437", "replace") for info in infos if not info.flag_bits & _UTF8_NAMES and not info.filename.isascii()]
    try:
        encoding = charset.decode(b"\n".join(old))[1] if old else "utf-8"
    except Malformed:
        encoding = "cp437"
    table: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        name = info.filename
        if not info.flag_bits & _UTF8_NAMES and not name.isascii():
            name = info.orig_filename.encode("cp437", "replace").decode(encoding, "replace")
        table[name.replace("\\", "/").lstrip("/")] = info
    return table


def _problem(name: str, info: zipfile.ZipInfo, max_bytes: int) -> PipelineError | None:
    if info.flag_bits & 1:
        return Malformed(f"{name} is encrypted inside the archive", hint="Unpack the archive with its password first.", code="encrypted")
    if modes.S_ISLNK(info.external_attr >> 16):
        return Forbidden(f"{name} is a symbolic link inside the archive", code="symlink_outside", hint="Put the file itself into the archive.")
    if name.lower().endswith(".zip"):
        return Unsupported(f"{name} is an archive inside an archive", hint="Unpack the outer archive first.")
    if info.file_size > RATIO_FROM and info.file_size > MOST_RATIO * max(1, info.compress_size):
        return TooLarge(f"{name} would grow {info.file_size // max(1, info.compress_size)} times when unpacked", code="zip_bomb")
    return refusal(name, info.file_size, max_bytes, named=False)


def read(archive: zipfile.ZipFile, table: Mapping[str, zipfile.ZipInfo], name: str, max_bytes: int) -> bytes:
    """Inflate one member, counting. Raises Gone, Malformed, TooLarge."""
    info = table.get(name)
    if info is None:
        raise Gone(f"{name} is no longer in the archive")
    try:
        with archive.open(info) as member:
            data = member.read(max_bytes + 1)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        raise Malformed(f"{name} cannot be unpacked: its part of the archive is damaged", hint="Copy or download the archive again.") from error
    if len(data) > max_bytes:
        raise TooLarge(f"{name} unpacks to more than {max_bytes / 1e6:,.0f} MB", hint="Split it, or raise DUJIANG_MAX_FILE_MB.")
    return data
