"""The SQLite files of the embedded store: where they are, what is in them, and how they are opened.

One store is a folder, one collection a file of it: collections have writers of their own, and a drop is an unlink.
Only apsw's SQLite may open these files: a second SQLite library in the same process drops the first one's locks.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import cast
from urllib.parse import unquote, urlsplit
from weakref import WeakSet

import apsw

from pipeline.errors import BadRequest, Conflict, Malformed, NotFound, Unavailable
from pipeline.stores.embedded_sql import Sql

FENCES = "CREATE TABLE IF NOT EXISTS fences (document_id TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID"
"""Of removed documents: a version up to this one is not taken any more."""
LAYOUT = 1
"""PRAGMA user_version of a complete file; 0 while `ensure` has not finished."""
BUSY_MS = 30_000
"""How long a writer waits for another one."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")

SCHEMA = """
CREATE TABLE state (
    dimension INTEGER NOT NULL, next INTEGER NOT NULL, changes INTEGER NOT NULL, removals INTEGER NOT NULL, chunks INTEGER NOT NULL,
    made INTEGER NOT NULL, dropped INTEGER NOT NULL
);
CREATE TABLE documents (
    id INTEGER PRIMARY KEY, document_id TEXT NOT NULL UNIQUE, version INTEGER NOT NULL, key TEXT NOT NULL, title TEXT NOT NULL, url TEXT NOT NULL,
    access TEXT NOT NULL, chunks INTEGER NOT NULL, length INTEGER NOT NULL, metadata BLOB NOT NULL
);
CREATE TABLE facts (name TEXT NOT NULL, kind TEXT NOT NULL, value ANY, document INTEGER NOT NULL, PRIMARY KEY (name, kind, value, document))
    STRICT, WITHOUT ROWID;
CREATE TABLE layouts (id INTEGER PRIMARY KEY, layout BLOB NOT NULL);
CREATE TABLE texts (id INTEGER PRIMARY KEY, text BLOB NOT NULL);
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY, start INTEGER NOT NULL, stop INTEGER NOT NULL, chunk_id TEXT NOT NULL, search_hash TEXT NOT NULL,
    valid_from INTEGER, valid_to INTEGER, rest BLOB NOT NULL
);
CREATE INDEX dated ON chunks (valid_from) WHERE valid_from IS NOT NULL;
CREATE TABLE vectors (id INTEGER PRIMARY KEY, vectors BLOB NOT NULL);
CREATE VIRTUAL TABLE terms USING fts5(words, grams, content='', contentless_delete=1, tokenize='ascii');
INSERT INTO terms (terms, rank) VALUES ('hashsize', 16777216);
INSERT INTO terms (terms, rank) VALUES ('automerge', 16);
"""
"""Ids are never used again. A document's id is that of its first chunk, whose others follow: chunk id = document id + ordinal.

state: one row; `next` free id; `changes` and `removals` rise with every write and every removal, for caches; `made` tells a
collection from an earlier one of the same name.
facts: the metadata in rows, kind as in `filters.kind`, for conditions.
texts: the parsed text in blocks, id = document id * BLOCKS + block. layouts: sections, tables and the rest of it.
chunks: offsets in the text; times in microseconds since 1970. vectors: blocks of raw float32, id = first chunk's.
hashsize, automerge: a batch is one segment and segments are merged sixteen at a time, which halves the cost of a write.
"""


class Files:
    """Paths and connections of one store. A connection belongs to one thread of one process, and closes when the thread ends."""

    def __init__(self, path_or_url: str, *, writer: bool) -> None:
        self.folder = _folder(path_or_url)
        self.writer = writer
        self._local = threading.local()
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._opened: WeakSet[Sql] = WeakSet()
        self._inherited: list[Sql] = []

    def path(self, collection: str) -> Path:
        """File of a collection. Raises BadRequest for a name that is none."""
        if not _NAME.fullmatch(collection):
            raise BadRequest(f"{collection!r} is no name of a collection in a store", code="bad_name")
        return self.folder / f"{collection}.db"

    def connect(self, collection: str) -> Sql:
        """This thread's connection. Raises NotFound when the collection does not exist, Malformed when its file is damaged."""
        path = self.path(collection)
        opened = self._mine()
        try:
            status = os.stat(path)
        except FileNotFoundError:
            opened.pop(collection, None)
            raise NotFound(f"collection {collection} is not in this store") from None
        except NotADirectoryError:
            raise _no_folder(self.folder) from None
        except OSError as error:
            raise _away(path, error) from error
        known = opened.get(collection)
        if known is not None and known[0] == (status.st_dev, status.st_ino):
            return known[1]
        opened.pop(collection, None)
        with told(path):
            connection = self._open(path)
            if connection.pragma("user_version") != LAYOUT:
                if connection.pragma("user_version"):
                    raise Conflict(f"{path} was written by another version of this program", hint="Build the collection anew.")
                raise NotFound(f"collection {collection} is not in this store")
            if self.writer:
                connection.execute(FENCES)
        opened[collection] = ((status.st_dev, status.st_ino), connection)
        return connection

    def create(self, collection: str, dimension: int) -> None:
        """Make the file when it is missing; a half-made one of a killed process is completed."""
        path = self.path(collection)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise _no_folder(self.folder) from None
        except OSError as error:
            raise _away(self.folder, error) from error
        with self._structure(), told(path):
            connection = self._open(path, apsw.SQLITE_OPEN_CREATE)
            if connection.pragma("user_version") == 0:
                # both must be set before the first table, outside a transaction
                connection.pragma("auto_vacuum", 2)
                connection.pragma("journal_mode", "wal")
                with transaction(connection):
                    connection.execute(SCHEMA)
                    connection.execute(FENCES)
                    connection.execute("INSERT INTO state VALUES (?, 1, 0, 0, 0, ?, 0)", (dimension, time.time_ns()))
                    connection.pragma("user_version", LAYOUT)
            connection.close()

    def remove(self, collection: str) -> None:
        """Unlink the file, after writers that wait for it have been told."""
        path = self.path(collection)
        if not self.folder.is_dir():
            return
        with self._structure():
            try:
                connection = self.connect(collection)
                with told(path), transaction(connection):
                    connection.execute("UPDATE state SET dropped = 1")
            except (NotFound, Malformed):
                pass
            self._mine().pop(collection, None)
            # renamed first: nobody may open the file without its log
            gone = path.with_name(f"{path.name}.dropped-{os.getpid()}-{time.monotonic_ns()}")
            try:
                if path.exists():
                    path.rename(gone)
                # also those of a process that was killed right here
                for leftover in (f"{path}-wal", f"{path}-shm", *self.folder.glob(f"{path.name}.dropped-*")):
                    Path(leftover).unlink(missing_ok=True)
            except OSError as error:
                raise _away(path, error) from error

    def names(self) -> list[str]:
        """Collections whose file is there, in order."""
        return sorted(path.name.removesuffix(".db") for path in self.folder.glob("*.db") if _NAME.fullmatch(path.name.removesuffix(".db")))

    def close(self) -> None:
        """Close every connection that no other thread is using just now; a later call opens new ones."""
        self._mine().clear()
        with self._lock:
            opened, self._opened = list(self._opened), WeakSet()
        for connection in opened:
            try:
                connection.close()
            except (apsw.ThreadingViolationError, apsw.ConnectionClosedError, apsw.BusyError):
                continue
        self._local = threading.local()

    def _mine(self) -> dict[str, tuple[tuple[int, int], Sql]]:
        if self._process != os.getpid():
            # a forked child must neither use nor close its parent's connections
            self._inherited += list(self._opened)
            self._opened, self._local, self._lock, self._process = WeakSet(), threading.local(), threading.Lock(), os.getpid()
        opened: dict[str, tuple[tuple[int, int], Sql]] | None = getattr(self._local, "opened", None)
        if opened is None:
            opened = self._local.opened = {}
        return opened

    def _open(self, path: Path, flags: int = 0) -> Sql:
        connection = cast("Sql", apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE | flags))
        connection.set_busy_timeout(BUSY_MS)
        connection.pragma("secure_delete", True)
        connection.pragma("cache_size", -16_384)
        connection.pragma("temp_store", 2)
        if self.writer:
            connection.pragma("synchronous", 2)
            connection.pragma("wal_autocheckpoint", 8_192)
        else:
            connection.pragma("query_only", True)
        with self._lock:
            self._opened.add(connection)
        return connection

    @contextmanager
    def _structure(self) -> Generator[None]:
        """Collections of one store are made and dropped one at a time."""
        try:
            lock = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise _away(self.folder, error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


@contextmanager
def transaction(connection: Sql, *, write: bool = True) -> Generator[None]:
    """One transaction. Writes take the lock at once: a reader that becomes a writer would fail, not wait."""
    connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            try:
                connection.execute("ROLLBACK")
            except apsw.Error:
                pass  # the first error, which is under way, says more


@contextmanager
def told(path: Path) -> Generator[None]:
    """SQLite's failures in our own terms, naming the file."""
    try:
        yield
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise Malformed(
            f"{path} is damaged or no SQLite file", hint="Delete the file and build the collection anew.", code="store_damaged"
        ) from error
    except apsw.FullError as error:
        raise Unavailable(
            f"the disk is full: {path} cannot grow", dependency=True, hint="Free some space; it goes on by itself.", code="disk_full"
        ) from error
    except (apsw.ReadOnlyError, apsw.PermissionsError, apsw.CantOpenError, apsw.IOError) as error:
        raise _away(path, error) from error
    except (apsw.BusyError, apsw.LockedError) as error:
        raise Unavailable(f"{path} has been locked by another process for {BUSY_MS // 1000} s", dependency=True, code="store_busy") from error


def _away(path: Path, error: Exception) -> Unavailable:
    return Unavailable(
        f"{path} cannot be read or written ({type(error).__name__})",
        dependency=True,
        hint="Check that the disk is there, has room, and that this user may write to the folder.",
        code="store_away",
    )


def _no_folder(path: Path) -> Malformed:
    return Malformed(f"{path} is a file, not the folder of a store", hint="Name a folder in DUJIANG_STORE_URL.")


def _folder(path_or_url: str) -> Path:
    if "://" not in path_or_url:
        return Path(path_or_url).absolute()
    parts = urlsplit(path_or_url)
    path = unquote(parts.path)
    if parts.netloc or not path.strip("/"):
        raise BadRequest(f"{path_or_url} names no folder", hint="Write sqlite:///absolute/folder.", code="bad_setting")
    return Path("/" + path.lstrip("/"))
