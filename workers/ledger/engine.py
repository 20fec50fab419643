"""Opening the ledger: SQLite (WAL) on one host, PostgreSQL for several."""

from __future__ import annotations

import functools
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Executable, Table, bindparam, create_engine, event, extract, func, inspect, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError

from pipeline.errors import BadRequest, Unavailable
from workers.ledger import schema

HEAD = "0003"
"""Newest migration; a ledger that already has it is opened without importing Alembic."""


class Database:
    """Transactions on the ledger's database. Safe for threads; open one per process, after a fork."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = open_engine(url)
        self.sqlite = self.engine.dialect.name == "sqlite"

    @contextmanager
    def write(self) -> Generator[Connection]:
        """A writing transaction; on SQLite it takes the write lock at once. Raises Unavailable."""
        with self._typed(), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def read(self) -> Generator[Connection]:
        """A consistent snapshot that never waits for writers. Raises Unavailable."""
        with self._typed(), self.engine.connect().execution_options(dujiang_read=True) as connection, connection.begin():
            yield connection

    @contextmanager
    def _typed(self) -> Generator[None]:
        try:
            yield
        except OperationalError as error:
            raise _away(self.engine, error) from error
        except DBAPIError as error:
            if error.connection_invalidated:
                raise _away(self.engine, error) from error
            raise

    def now(self, connection: Connection) -> float:
        """Seconds since the epoch by the database's clock, so that hosts need not agree."""
        if self.sqlite:
            return time.time()
        return float(connection.scalar(select(extract("epoch", func.clock_timestamp()))) or 0.0)

    def migrate(self) -> None:
        """Bring the schema to `HEAD`. Raises Unavailable when the database is away, BadRequest when it is newer than this code."""
        with self._typed():
            with self.engine.connect() as connection:
                current = _revision(connection)
        if current == HEAD:
            return
        if current is not None and current > HEAD:
            raise BadRequest(
                f"the ledger has schema {current}, this version of the software knows {HEAD}",
                hint="Use the newer version that wrote it.",
                code="ledger_too_new",
            )
        with self._typed():
            _upgrade(self.engine)

    def expunge(self) -> bool:
        """Empty SQLite's log, where removed text may stand until it is written over; False when somebody reads it just now."""
        if not self.sqlite:
            return True
        raw = self.engine.raw_connection()
        try:
            cursor = raw.cursor()
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            busy = cursor.fetchone()
            cursor.close()
        finally:
            raw.close()
        return busy is not None and not busy[0]

    def close(self) -> None:
        self.engine.dispose()


def upsert(connection: Connection, table: Table, rows: Sequence[Mapping[str, object]]) -> None:
    """Insert rows, or replace those with the same primary key, in one statement for all."""
    if rows:
        connection.execute(_upsert(connection.dialect.name, table, tuple(rows[0])), list(rows))


@functools.cache
def _upsert(dialect: str, table: Table, columns: tuple[str, ...]) -> Executable:
    statement = (postgresql.insert if dialect == "postgresql" else sqlite.insert)(table)
    keys = [column.name for column in table.primary_key]
    rest = {name: statement.excluded[name] for name in columns if name not in keys}
    # The columns are named, since rows come only with the execution.
    return statement.values({name: bindparam(name) for name in columns}).on_conflict_do_update(index_elements=keys, set_=rest)


def open_engine(url: str) -> Engine:
    """An engine with this project's pragmas. Raises BadRequest for a URL that is none of ours."""
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise BadRequest(
            "DUJIANG_LEDGER_URL is not a database URL", hint="Use sqlite:///PATH or postgresql+psycopg://…", code="bad_setting"
        ) from error
    if parsed.get_backend_name() == "sqlite":
        if parsed.database and parsed.database != ":memory:":
            Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
        engine = create_engine(parsed, connect_args={"timeout": 30, "check_same_thread": False}, pool_size=8, max_overflow=16)
        event.listen(engine, "connect", _sqlite_connect)
        event.listen(engine, "begin", _sqlite_begin)
        return engine
    if parsed.get_backend_name() == "postgresql":
        return create_engine(parsed, pool_pre_ping=True, pool_size=4, max_overflow=16, connect_args={"connect_timeout": 5})
    raise BadRequest(
        f"the ledger cannot live in {parsed.get_backend_name()!r}", hint="Use sqlite:///PATH or postgresql+psycopg://…", code="bad_setting"
    )


def _sqlite_connect(connection: Any, _record: object) -> None:
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "busy_timeout=30000", "secure_delete=ON", "cache_size=-8000"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _sqlite_begin(connection: Connection) -> None:
    # A deferred transaction that turns into a writer fails at once when another wrote meanwhile.
    reading = connection.get_execution_options().get("dujiang_read", False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()


def _upgrade(engine: Engine) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(schema.__file__).parent.parent / "migrations"))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        if engine.dialect.name == "postgresql":
            connection.execute(select(func.pg_advisory_xact_lock(0x64756A)))
        if _revision(connection) != HEAD:
            command.upgrade(config, "head")


def _away(engine: Engine, error: DBAPIError) -> Unavailable:
    where = engine.url.render_as_string(hide_password=True)
    reason = str(error.orig).splitlines()[0] if error.orig else "no answer"
    return Unavailable(
        f"the ledger at {where} does not answer: {reason}",
        dependency=True,
        hint="Free some space; what waits goes on by itself." if "is full" in reason else "Start the database, or correct DUJIANG_LEDGER_URL.",
        code="ledger_unavailable",
    )
