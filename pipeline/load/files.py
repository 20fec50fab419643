"""Files, folders, globs, ZIP archives and manifests on this machine. One bad file is one failure and never ends a walk."""

from __future__ import annotations

import errno
import glob
import os
import stat as modes
import zipfile
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

from pipeline.contracts import RawDocument, SourceItem
from pipeline.errors import Forbidden, Gone, Malformed, NotFound, PipelineError, TooLarge, Unsupported
from pipeline.identity import content_hash
from pipeline.load import archives, manifests
from pipeline.load.entries import FileEntry, found, readable_name, refusal, trouble, unwanted

__all__ = ["FileEntry", "Files", "Reader", "entry_of", "load", "read", "walk"]


def walk(paths: Sequence[str], *, max_bytes: int) -> Iterator[FileEntry]:
    """Every document below `paths`, each key once, in a fixed order: by name, files before folders, manifests first.

    Folders are read one at a time. Left out without a word: hidden files, version control, build products. Listed as
    problems: what a person may miss (images, presentations), what cannot be read, what is too large, and links that lead
    out of their folder. A path named directly is followed wherever it leads.
    """
    seen: set[str] = set()
    for path in paths:
        for entry in _named(os.path.expanduser(path), max_bytes):
            if entry.item.key not in seen:
                seen.add(entry.item.key)
                yield entry


def _named(path: str, max_bytes: int) -> Iterator[FileEntry]:
    """What one argument stands for."""
    if not os.path.lexists(path) and glob.has_magic(path):
        matches = sorted(glob.iglob(path, recursive=True))
        if not matches:
            yield trouble(os.path.abspath(path), NotFound(f"nothing matches {path}", hint="Check the pattern and the working folder."))
        for match in matches:
            if not (os.path.isdir(match) and "**" in path):
                yield from _named(match, max_bytes)
        return
    disk = os.path.realpath(path)
    try:
        stat = os.stat(disk)
    except FileNotFoundError:
        yield trouble(os.path.abspath(path), NotFound(f"{path} does not exist", hint="Check the path."))
    except OSError as error:
        yield trouble(os.path.abspath(path), _refused(path, error))
    else:
        if modes.S_ISDIR(stat.st_mode):
            yield from _folder(disk, max_bytes)
        else:
            yield from _file(disk, disk, stat, max_bytes, named=True, allowed=lambda target: None)


def _folder(root: str, max_bytes: int) -> Iterator[FileEntry]:
    """Everything below a resolved folder. `shown` differs from `disk` only below a link into a hidden folder."""
    stack = [(root, root)]
    linked: set[str] = set()
    listed: set[str] = set()

    def allowed(target: str) -> PipelineError | None:
        if not _inside(target, root):
            return Forbidden(f"{target} lies outside the folder of its manifest", code="path_outside", hint="Name the manifest directly to allow it.")
        listed.add(target)
        return None

    while stack:
        disk, shown = stack.pop()
        try:
            with os.scandir(disk) as listing:
                held = sorted((entry for entry in listing if not unwanted(entry.name)), key=lambda entry: entry.name)
        except FileNotFoundError:
            continue
        except OSError as error:
            yield trouble(shown, _refused(shown, error))
            continue
        folders: list[tuple[str, str]] = []
        held.sort(key=lambda entry: not entry.name.lower().endswith(manifests.SUFFIXES))
        for entry in held:
            place = os.path.join(shown, entry.name)
            if entry.is_symlink():
                yield from _link(entry.path, place, root, linked, folders, max_bytes, allowed)
            elif entry.is_dir(follow_symlinks=False):
                folders.append((entry.path, place))
            elif entry.path not in listed:
                try:
                    stat = entry.stat(follow_symlinks=False)
                except OSError as error:
                    yield trouble(place, _refused(place, error))
                    continue
                yield from _file(entry.path, place, stat, max_bytes, named=False, allowed=allowed)
        folders.sort(reverse=True)
        stack.extend(folders)


def _link(
    path: str,
    place: str,
    root: str,
    linked: set[str],
    folders: list[tuple[str, str]],
    max_bytes: int,
    allowed: manifests.Checked,
) -> Iterator[FileEntry]:
    """A symbolic link: followed when it leads to a hidden place of the same folder; what it shares with the walk is met there."""
    target = os.path.realpath(path)
    if not _inside(target, root):
        problem = Forbidden(f"{place} is a link that leads out of the folder", code="symlink_outside", hint="Ingest its target by its own path.")
        yield trouble(place, problem)
        return
    try:
        stat = os.stat(target)
    except OSError:
        yield trouble(place, Gone(f"{place} is a link to something that does not exist"))
        return
    if not any(unwanted(part) for part in os.path.relpath(target, root).split(os.sep) if part != "."):
        return
    if not modes.S_ISDIR(stat.st_mode):
        yield from _file(target, place, stat, max_bytes, named=False, allowed=allowed)
    elif target not in linked and not _inside(place, target):
        linked.add(target)
        folders.append((target, place))


def _inside(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)


def _file(
    disk: str, shown: str, stat: os.stat_result, max_bytes: int, *, named: bool, allowed: Callable[[str], PipelineError | None]
) -> Iterator[FileEntry]:
    """One file: a document, an archive of them, or a manifest."""
    problem = readable_name(shown)
    if problem is None and not modes.S_ISREG(stat.st_mode):
        problem = Unsupported(f"{shown} is a device, pipe or socket, no file", hint="Leave it out.")
    container = shown.lower().endswith((".zip", *manifests.SUFFIXES))
    if problem is None and not os.access(disk, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
        problem = _unreadable(shown)
    if problem is None and shown.lower().endswith(".zip"):
        yield from archives.members(disk, stat, max_bytes)
    elif problem is None and container and manifests.is_manifest(disk):
        yield from manifests.entries(disk, stat, max_bytes, allowed)
    else:
        problem = problem or refusal(shown, stat.st_size, max_bytes, named=named)
        yield trouble(shown, problem, stat=stat) if problem else found(disk, stat, key=f"file://{shown}")


def _unreadable(path: str) -> Forbidden:
    return Forbidden(f"{path} may not be read", code="unreadable", hint="Give the user that runs the worker read permission.")


def _refused(path: str, error: OSError) -> PipelineError:
    """What the system's refusal means."""
    if error.errno in {errno.ENOENT, errno.ENOTDIR}:
        return Gone(f"{path} no longer exists")
    if error.errno in {errno.EACCES, errno.EPERM}:
        return _unreadable(path)
    if error.errno == errno.ELOOP:
        return Forbidden(f"{path} is a link that leads in a circle or was put there after the listing", code="symlink_outside")
    return Malformed(f"{path} cannot be opened: {error.strerror}", code="unreadable", hint="Check the disk, then ingest it again.")


def entry_of(item: SourceItem) -> FileEntry:
    """The entry of an item that was listed before, from its `path` alone. Size and time are unknown (0)."""
    return FileEntry(item)


class Reader:
    """Reads entries, keeping the last archive open: members of one archive cost one look at its directory."""

    def __init__(self, *, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._path = ""
        self._archive: zipfile.ZipFile | None = None
        self._table: dict[str, zipfile.ZipInfo] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the open archive."""
        if self._archive is not None:
            self._archive.close()
        self._archive, self._path, self._table = None, "", {}

    def read(self, entry: FileEntry) -> bytes:
        """The document's bytes. Raises the entry's own problem, Gone, Forbidden, TooLarge, Malformed."""
        if entry.problem is not None:
            raise entry.problem
        path, member = entry.path, entry.member
        try:
            if not member:
                return _contents(path, self.max_bytes)
            if path.lower().endswith(".zip"):
                return archives.read(self._opened(path), self._table, member, self.max_bytes)
            return manifests.read(path, member, self.max_bytes)
        except OSError as error:
            raise _refused(path, error) from error
        except PipelineError as error:
            error.document = error.document or entry.item.key
            raise

    def _opened(self, path: str) -> zipfile.ZipFile:
        if self._archive is None or self._path != path:
            self.close()
            try:
                self._archive = zipfile.ZipFile(path)
            except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError) as error:
                raise Malformed("the ZIP archive is damaged or cut off", hint="Copy or download it again.") from error
            self._path, self._table = path, archives.names(self._archive.infolist())
        return self._archive


def _contents(path: str, max_bytes: int) -> bytes:
    """A regular file's bytes, counted while reading; pipes never block, and a link put in its place is not followed."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(handle, "rb", buffering=0) as file:
        stat = os.fstat(handle)
        if not modes.S_ISREG(stat.st_mode):
            raise Unsupported(f"{path} is no longer a file")
        if stat.st_size <= max_bytes:
            data = file.read(max_bytes + 1) if stat.st_size == 0 else file.readall()
            if len(data) <= max_bytes:
                return data
        raise TooLarge(f"{path} is over the limit of {max_bytes / 1e6:,.0f} MB", hint="Split it, or raise DUJIANG_MAX_FILE_MB.")


def read(entry: FileEntry, *, max_bytes: int) -> bytes:
    """One entry's bytes; use a `Reader` for many. Raises Gone, Forbidden, TooLarge, Malformed, or the entry's own problem."""
    with Reader(max_bytes=max_bytes) as reader:
        return reader.read(entry)


def load(item: SourceItem, data: bytes) -> RawDocument:
    """Bytes with their hash and the hints of the listing."""
    return RawDocument(item, data, content_hash(data), item.media_type)


class Files:
    """The connector: `scan` lists, `fetch` reads. Problems of the listing come up when they are fetched."""

    def __init__(self, paths: Sequence[str], *, max_bytes: int) -> None:
        self.paths = tuple(paths)
        self.max_bytes = max_bytes
        self._problems: dict[str, PipelineError] = {}

    def scan(self) -> Iterator[SourceItem]:
        """Every item, readable or not."""
        self._problems.clear()
        for entry in walk(self.paths, max_bytes=self.max_bytes):
            if entry.problem is not None:
                self._problems[entry.item.key] = entry.problem
            yield entry.item

    def fetch(self, item: SourceItem) -> RawDocument:
        """Read one item. Raises Gone, Forbidden, TooLarge, Malformed, Unsupported."""
        problem = self._problems.get(item.key)
        if problem is not None:
            raise problem
        return load(item, read(entry_of(item), max_bytes=self.max_bytes))
