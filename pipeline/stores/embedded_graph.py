"""The graph of a collection in the embedded store: two tables and two text indices in the collection's own file.

It shares the file's writer, its log and its end: a drop of the collection is the drop of its graph.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import cast
from weakref import WeakSet

from pipeline.contracts.graph import ELEMENTS, GraphAudit, GraphKind, GraphRecord
from pipeline.errors import BadRequest, Conflict, NotFound
from pipeline.stores.digest import digest_elements
from pipeline.stores.embedded_files import Files, told, transaction
from pipeline.stores.embedded_sql import Sql

PAGE = 500
"""Records of one read; no transaction outlives a page."""
SLICE = 20_000
"""Records of one transaction: whoever else writes to the collection waits for no more."""
TOKEN = 16
"""Hexadecimal digits of a held id that are indexed; what shares them and no more is read in vain."""
_LONGEST_ID = 400

TABLES = """
CREATE TABLE IF NOT EXISTS graph (
    n INTEGER PRIMARY KEY, kind INTEGER NOT NULL, id ANY NOT NULL, version INTEGER NOT NULL, terms INTEGER NOT NULL, part TEXT NOT NULL, body BLOB
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS graph_ids ON graph (kind, id);
CREATE INDEX IF NOT EXISTS graph_parts ON graph (kind, part, id) WHERE part <> '';
CREATE VIRTUAL TABLE IF NOT EXISTS graph_words USING fts5(words, content='', contentless_delete=1, tokenize='ascii');
CREATE VIRTUAL TABLE IF NOT EXISTS graph_holds USING fts5(ids, content='', contentless_delete=1, tokenize='ascii', detail=none);
"""
_SETTINGS = """
INSERT INTO graph_words (graph_words, rank) VALUES ('automerge', 16), ('hashsize', 16777216);
INSERT INTO graph_holds (graph_holds, rank) VALUES ('automerge', 16), ('hashsize', 16777216);
"""
"""graph: one row for each record, appended. `id` is 16 bytes where it is 32 hexadecimal digits, else text; `part` is the record's group.
`terms` is a checksum of words and holds, so that the text indices are touched only when these change; 0: none. A body of NULL is a fence:
the record was withdrawn, and no version up to this one is taken any more.
"""
_KINDS: tuple[GraphKind, ...] = (
    GraphKind.PART,
    GraphKind.HEAD,
    GraphKind.MARK,
    GraphKind.LEASE,
    GraphKind.ENTITY,
    GraphKind.RELATION,
    GraphKind.ALIAS,
    GraphKind.COMMUNITY,
    GraphKind.REPORT,
    GraphKind.SNAPSHOT,
    GraphKind.CACHED,
)
"""Their places are stored: only ever append."""
_NUMBERS: Mapping[GraphKind, int] = {kind: number for number, kind in enumerate(_KINDS)}

_PUT = """
INSERT INTO graph (kind, id, version, terms, part, body) VALUES (?, ?, ?, 0, ?, ?)
ON CONFLICT (kind, id) DO UPDATE SET version = excluded.version, part = excluded.part, body = excluded.body
WHERE excluded.version > graph.version OR (excluded.version = graph.version AND graph.body IS NOT NULL)
"""
_PLAIN = frozenset({GraphKind.HEAD, GraphKind.MARK, GraphKind.LEASE, GraphKind.RELATION, GraphKind.SNAPSHOT, GraphKind.CACHED})
"""Kinds that stand in no text index; they take the short way."""


class EmbeddedGraph:
    """`GraphRecords` on the files of an `EmbeddedStore`. Safe to use from several threads and processes."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._ready: WeakSet[Sql] = WeakSet()

    def put(self, collection: str, records: Iterable[GraphRecord]) -> None:
        """See `GraphRecords.put`; `SLICE` records are one transaction."""
        rest = iter(records)
        while page := list(islice(rest, SLICE)):
            for record in page:
                _check(record)
            with self._writing(collection) as connection:
                plain = [record for record in page if record.kind in _PLAIN]
                connection.executemany(_PUT, ((_NUMBERS[one.kind], _stored(one.id), one.version, one.group, one.body) for one in plain))
                for record in page:
                    if record.kind not in _PLAIN:
                        _put_indexed(connection, record)

    def swap(self, collection: str, swaps: Sequence[tuple[GraphRecord, int]]) -> list[bool]:
        """See `GraphRecords.swap`; all in one transaction, each by itself."""
        for record, seen in swaps:
            _check(record, above=seen)
        with self._writing(collection) as connection:
            return [_swap(connection, record, seen) for record, seen in swaps]

    def get(self, collection: str, kind: GraphKind, ids: Sequence[str]) -> dict[str, GraphRecord]:
        """See `GraphRecords.get`."""
        found: dict[str, GraphRecord] = {}
        for start in range(0, len(ids), PAGE):
            with self._reading(collection) as connection:
                for one in ids[start : start + PAGE]:
                    if connection is None:
                        break
                    row = connection.execute(
                        "SELECT version, part, body FROM graph WHERE kind = ? AND id = ? AND body IS NOT NULL", (_NUMBERS[kind], _stored(one))
                    ).fetchone()
                    if row is not None:
                        found[one] = GraphRecord(kind, one, *_rest(row))
        return found

    def scan(self, collection: str, kind: GraphKind, *, group: str = "", after: str = "") -> Iterator[GraphRecord]:
        """See `GraphRecords.scan`; each page is a moment of its own."""
        condition = "part = ? AND id > ?" if group else "id > ?"
        sql = f"SELECT id, version, part, body FROM graph WHERE kind = ? AND {condition} AND body IS NOT NULL ORDER BY id LIMIT {PAGE}"
        last: object = _stored(after)
        while True:
            with self._reading(collection) as connection:
                bindings = (_NUMBERS[kind], group, last) if group else (_NUMBERS[kind], last)
                page = connection.execute(sql, bindings).fetchall() if connection else []
            yield from (GraphRecord(kind, _shown(row[0]), *_rest(row[1:])) for row in page)
            if len(page) < PAGE:
                return
            last = page[-1][0]

    def holding(self, collection: str, kind: GraphKind, ids: Sequence[str]) -> Iterator[GraphRecord]:
        """See `GraphRecords.holding`."""
        numbers: set[int] = set()
        for start in range(0, len(ids), PAGE):
            with self._reading(collection) as connection:
                for one in ids[start : start + PAGE]:
                    if connection is None:
                        break
                    token = one[:TOKEN]
                    numbers.update(cast("int", n) for (n,) in connection.execute("SELECT rowid FROM graph_holds WHERE graph_holds MATCH ?", (token,)))
        rows = sorted(numbers)
        for start in range(0, len(rows), PAGE):
            page: list[GraphRecord] = []
            with self._reading(collection) as connection:
                for n in rows[start : start + PAGE]:
                    if connection is None:
                        break
                    sql = "SELECT id, version, part, body FROM graph WHERE n = ? AND kind = ? AND body IS NOT NULL"
                    row = connection.execute(sql, (n, _NUMBERS[kind])).fetchone()
                    if row is not None:
                        page.append(GraphRecord(kind, _shown(row[0]), *_rest(row[1:])))
            yield from page

    def find(self, collection: str, kind: GraphKind, terms: Sequence[str], k: int) -> list[tuple[str, float]]:
        """See `GraphRecords.find`."""
        words = [term for term in dict.fromkeys(terms) if term and '"' not in term]
        if not words or k <= 0:
            return []
        match = " OR ".join(f'"{word}"' for word in words)
        with self._reading(collection) as connection:
            if connection is None:
                return []
            rows = connection.execute(
                "SELECT graph.id, -bm25(graph_words) AS score FROM graph_words JOIN graph ON graph.n = graph_words.rowid"
                " WHERE graph_words MATCH ? AND graph.kind = ? ORDER BY score DESC, graph.id LIMIT ?",
                (match, _NUMBERS[kind], k),
            ).fetchall()
        return [(_shown(one), cast("float", score)) for one, score in rows]

    def remove(self, collection: str, kind: GraphKind, ids: Sequence[str]) -> None:
        """See `GraphRecords.remove`."""
        for start in range(0, len(ids), SLICE):
            with self._writing(collection) as connection:
                _remove(connection, kind, ids[start : start + SLICE])

    def withdraw(self, collection: str, kind: GraphKind, fence: Mapping[str, int]) -> None:
        """See `GraphRecords.withdraw`."""
        names = list(fence)
        for start in range(0, len(names), SLICE):
            with self._writing(collection) as connection:
                for one in names[start : start + SLICE]:
                    _withdraw(connection, kind, one, fence[one])

    def purge(self, collection: str, kind: GraphKind, before: int) -> int:
        """See `GraphRecords.purge`."""
        with self._writing(collection) as connection:
            where = "kind = ? AND body IS NULL AND version < ?"
            ((count,),) = connection.execute(f"SELECT count(*) FROM graph WHERE {where}", (_NUMBERS[kind], before)).fetchall()
            connection.execute(f"DELETE FROM graph WHERE {where}", (_NUMBERS[kind], before))
        return cast("int", count)

    def count(self, collection: str, kind: GraphKind) -> int:
        """See `GraphRecords.count`."""
        with self._reading(collection) as connection:
            if connection is None:
                return 0
            ((count,),) = connection.execute("SELECT count(*) FROM graph WHERE kind = ? AND body IS NOT NULL", (_NUMBERS[kind],)).fetchall()
        return cast("int", count)

    def audit(self, collection: str) -> GraphAudit:
        """See `GraphRecords.audit`; in one point of time."""
        with self._reading(collection) as connection:
            if connection is None:
                return digest_elements(())
            rows = (
                (kind.value, _shown(one), cast("bytes", body))
                for kind in ELEMENTS
                for one, body in connection.execute("SELECT id, body FROM graph WHERE kind = ? AND body IS NOT NULL", (_NUMBERS[kind],))
            )
            return digest_elements(rows)

    @contextmanager
    def _reading(self, collection: str) -> Generator[Sql | None]:
        """One point of time; None where there is no graph, or no collection, yet."""
        try:
            connection = self._files.connect(collection)
        except NotFound:
            yield None
            return
        with told(self._files.path(collection)), transaction(connection, write=False):
            if connection not in self._ready and not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'graph_holds'").fetchone():
                yield None
                return
            yield connection

    @contextmanager
    def _writing(self, collection: str) -> Generator[Sql]:
        """The collection's only writer. Raises NotFound when it was dropped, Conflict in a store opened for reading."""
        if not self._files.writer:
            raise Conflict("this store was opened for reading only", hint="Open it with writer=True.")
        connection = self._files.connect(collection)
        with told(self._files.path(collection)), transaction(connection):
            if connection.execute("SELECT dropped FROM state").fetchone() != (0,):
                raise NotFound(f"collection {collection} was dropped")
            if connection not in self._ready:
                known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'graph_holds'").fetchone()
                connection.execute(TABLES if known else TABLES + _SETTINGS)
            yield connection
        self._ready.add(connection)


def forget_removed(connection: Sql) -> None:
    """Merge the graph's text indices, where there are any: only that drops the terms of removed records. In the caller's transaction."""
    for index in ("graph_words", "graph_holds"):
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (index,)).fetchone():
            connection.execute(f"INSERT INTO {index} ({index}) VALUES ('optimize')")


def _check(record: GraphRecord, *, above: int = 0) -> None:
    if record.version <= above:
        raise BadRequest(f"version {record.version} of a graph record does not exceed {above}", code="bad_version")
    if record.kind in _PLAIN and (record.words or record.holds):
        raise BadRequest(f"a {record.kind.value} of the graph is found by its id only", code="bad_record")
    if not 0 < len(record.id.encode("utf-8", "surrogatepass")) <= _LONGEST_ID:
        raise BadRequest(f"a graph record's id must have 1 to {_LONGEST_ID} bytes", code="bad_name")


def _put_indexed(connection: Sql, record: GraphRecord) -> None:
    kind, place = _NUMBERS[record.kind], _stored(record.id)
    terms = _terms(record)
    row = connection.execute("SELECT n, version, terms, body IS NULL FROM graph WHERE kind = ? AND id = ?", (kind, place)).fetchone()
    if row is None:
        sql = "INSERT INTO graph (kind, id, version, terms, part, body) VALUES (?, ?, ?, ?, ?, ?) RETURNING n"
        inserted = connection.execute(sql, (kind, place, record.version, terms, record.group, record.body)).fetchone()
        (n,) = cast("tuple[int]", inserted)
    else:
        n, version, known, gone = cast("tuple[int, int, int, int]", row)
        if version > record.version or (version == record.version and gone):
            return
        bindings = (record.version, terms, record.group, record.body, n)
        connection.execute("UPDATE graph SET version = ?, terms = ?, part = ?, body = ? WHERE n = ?", bindings)
        if known == terms:
            return
        _forget(connection, n, known)
    if record.words:
        connection.execute("INSERT INTO graph_words (rowid, words) VALUES (?, ?)", (n, record.words))
    if record.holds:
        connection.execute("INSERT INTO graph_holds (rowid, ids) VALUES (?, ?)", (n, " ".join(one[:TOKEN] for one in record.holds)))


def _swap(connection: Sql, record: GraphRecord, seen: int) -> bool:
    kind, place = _NUMBERS[record.kind], _stored(record.id)
    row = connection.execute("SELECT version FROM graph WHERE kind = ? AND id = ?", (kind, place)).fetchone()
    if (0 if row is None else row[0]) != seen:
        return False
    connection.execute(_PUT, (kind, place, record.version, record.group, record.body))
    return True


def _remove(connection: Sql, kind: GraphKind, ids: Iterable[str]) -> None:
    for one in ids:
        row = connection.execute("SELECT n, terms FROM graph WHERE kind = ? AND id = ?", (_NUMBERS[kind], _stored(one))).fetchone()
        if row is not None:
            n, terms = cast("tuple[int, int]", row)
            connection.execute("DELETE FROM graph WHERE n = ?", (n,))
            _forget(connection, n, terms)


def _withdraw(connection: Sql, kind: GraphKind, one: str, version: int) -> None:
    row = connection.execute("SELECT n, version, terms FROM graph WHERE kind = ? AND id = ?", (_NUMBERS[kind], _stored(one))).fetchone()
    if row is None:
        sql = "INSERT INTO graph (kind, id, version, terms, part, body) VALUES (?, ?, ?, 0, '', NULL)"
        connection.execute(sql, (_NUMBERS[kind], _stored(one), version))
        return
    n, known, terms = cast("tuple[int, int, int]", row)
    if known <= version:
        connection.execute("UPDATE graph SET version = ?, terms = 0, part = '', body = NULL WHERE n = ?", (version, n))
        _forget(connection, n, terms)


def _forget(connection: Sql, n: int, terms: int) -> None:
    if terms:
        connection.execute("DELETE FROM graph_words WHERE rowid = ?", (n,))
        connection.execute("DELETE FROM graph_holds WHERE rowid = ?", (n,))


def _terms(record: GraphRecord) -> int:
    """Checksum of what the text indices hold of it; 0 for nothing."""
    if not record.words and not record.holds:
        return 0
    return zlib.crc32(f"{record.words}\n{' '.join(record.holds)}".encode("utf-8", "surrogatepass")) + 1


def _stored(one: str) -> str | bytes:
    if len(one) == 32:
        try:
            data = bytes.fromhex(one)
        except ValueError:
            return one
        if data.hex() == one:
            return data
    return one


def _shown(one: object) -> str:
    return one.hex() if isinstance(one, bytes) else str(one)


def _rest(row: Sequence[object]) -> tuple[int, bytes, str]:
    """(version, body, group) of (version, group, body)."""
    version, group, body = cast("tuple[int, str, bytes]", tuple(row))
    return version, body, group
