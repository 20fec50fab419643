"""A real PostgreSQL: one server for the session, a database of its own for each test.

    python -m tests.servers.postgres

runs one until interrupted.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.servers import Lacking, lacking

START_S = 60
"""Most seconds from start to the first connection, on a machine busy with other tests."""
PR_SET_PDEATHSIG = 1
PROGRAMS = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql*/bin", "/usr/local/opt/postgresql*/bin")
FAST = ("fsync=off", "full_page_writes=off", "max_connections=60", "listen_addresses=127.0.0.1")


def programs() -> Path:
    """Folder with initdb and postgres, the newest version first. Raises Lacking."""
    folders = [folder for pattern in PROGRAMS for folder in sorted(Path("/").glob(pattern.lstrip("/")), reverse=True)]
    on_path = shutil.which("initdb")
    folders += [Path(on_path).resolve().parent] if on_path else []
    for folder in folders:
        if os.access(folder / "initdb", os.X_OK) and os.access(folder / "postgres", os.X_OK):
            return folder
    raise Lacking("there is no initdb in the usual folders or on the PATH; on Debian install postgresql")


class Postgres:
    """One server with a data folder and a socket folder of its own. It can be killed and started again on the same port."""

    def __init__(self) -> None:
        self._programs = programs()
        self._account = _unprivileged()
        self._folder = Path(tempfile.mkdtemp(prefix="dujiang-postgres-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._names = count()
        self.port = _free_port()
        if self._account:
            os.chown(self._folder, self._account.pw_uid, self._account.pw_gid)
        initdb = ["initdb", "-D", str(self._folder / "data"), "-U", "dujiang", "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C"]
        self._start(initdb).wait(START_S)

    def url(self, database: str = "postgres") -> str:
        """As DUJIANG_LEDGER_URL takes it."""
        return f"postgresql+psycopg://dujiang@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start, and wait until it takes connections. Raises RuntimeError with the end of the log."""
        options = [part for option in (*FAST, f"port={self.port}", f"unix_socket_directories={self._folder}") for part in ("-c", option)]
        self._process = self._start(["postgres", "-D", str(self._folder / "data"), *options])
        deadline = time.monotonic() + START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                log = "\n".join((self._folder / "log").read_text(errors="replace").splitlines()[-20:])
                self.close()
                raise RuntimeError(f"PostgreSQL did not start:\n{log}")
            time.sleep(0.05)

    def kill(self) -> None:
        """End it at once, as a crash would; what was committed stays."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGQUIT)
            process.wait(START_S)

    def close(self) -> None:
        """End it, and remove its data."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def create_database(self, template: str = "template0") -> str:
        """Name of a new database, empty or a copy of another that nobody is connected to."""
        name = f"test_{next(self._names)}"
        self.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return name

    def execute(self, statement: str) -> None:
        """Run one statement in the maintenance database, outside a transaction."""
        import psycopg

        with psycopg.connect(self.url().replace("+psycopg", ""), autocommit=True, connect_timeout=10) as connection:
            connection.execute(statement)  # pyright: ignore[reportArgumentType, reportCallIssue]

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        account = self._account
        with open(self._folder / "log", "ab") as log:
            return subprocess.Popen(
                [str(self._programs / command[0]), *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                start_new_session=True,
                preexec_fn=_die_with_parent,
                user=account.pw_uid if account else None,
                group=account.pw_gid if account else None,
                extra_groups=[] if account else None,
            )

    def _answers(self) -> bool:
        import psycopg

        try:
            self.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True


def _unprivileged() -> pwd.struct_passwd | None:
    """Account to run as, since the server refuses root; None when we are not root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise Lacking("it refuses to run as root, and there is neither an account postgres nor nobody")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _die_with_parent() -> None:
    """SIGQUIT makes the postmaster end its children, too."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One server for the whole session."""
    try:
        import psycopg as _  # noqa: F401 - the server is no use without its client
    except ImportError:
        lacking("PostgreSQL", "the package psycopg is not installed; use the extra dujiang[postgres]")
    try:
        server = Postgres()
    except Lacking as reason:
        lacking("PostgreSQL", str(reason))
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def postgres_url(postgres: Postgres) -> str:
    """URL of a database that all tests of the session share."""
    return postgres.url(postgres.create_database())


@pytest.fixture(scope="session")
def _ledger(postgres: Postgres) -> str:
    """Name of a database with the tables of an empty ledger: a copy costs half of what migrating does."""
    from workers.ledger.engine import Database

    name = postgres.create_database()
    database = Database(postgres.url(name))
    database.migrate()
    database.close()
    return name


@pytest.fixture
def postgres_database(postgres: Postgres, _ledger: str) -> Iterator[str]:
    """URL of a database that only this test uses, an empty ledger; it is dropped afterwards, whoever is still connected."""
    name = postgres.create_database(_ledger)
    yield postgres.url(name)
    postgres.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def main() -> None:
    """Run in the foreground."""
    try:
        server = Postgres()
    except Lacking as reason:
        sys.exit(str(reason))
    try:
        server.start()
        print(server.url(), flush=True)
        signal.pause()
    except KeyboardInterrupt:
        pass
    finally:
        server.close()


if __name__ == "__main__":
    main()
