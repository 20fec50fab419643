"""A connection as we use it, fully typed; apsw's own types leave blobs open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol


class Rows(Protocol):
    """Results of a statement."""

    def __iter__(self) -> Iterator[tuple[object, ...]]: ...

    def fetchone(self) -> tuple[object, ...] | None: ...

    def fetchall(self) -> list[tuple[object, ...]]: ...


class Sql(Protocol):
    """An `apsw.Connection`. Statements that give no rows run at once; others with the first row that is fetched."""

    @property
    def in_transaction(self) -> bool: ...

    def execute(self, statements: str, bindings: Sequence[object] = ..., /) -> Rows: ...

    def executemany(self, statements: str, bindings: Iterable[Sequence[object]], /) -> Rows: ...

    def pragma(self, name: str, value: object = ..., /) -> object: ...

    def set_busy_timeout(self, milliseconds: int, /) -> None: ...

    def close(self) -> None: ...
