"""A real RabbitMQ: a node of its own with its own port mapper, cookie, data folder and name, on loopback.

    python -m tests.servers.rabbitmq

runs one until interrupted.
"""

from __future__ import annotations

import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import amqp
import pytest

from tests.servers import Lacking, lacking
from workers.processes import die_with_parent

START_S = 90
"""Most seconds from start to the first connection, on a machine busy with other tests."""
PROGRAMS = ("/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin", "/usr/lib/rabbitmq/bin", "/opt/homebrew/opt/rabbitmq/sbin", "/usr/local/sbin")
HOSTS = 24
"""Virtual hosts that the node is born with: making one later takes a second of Erlang."""


def program(name: str) -> Path:
    """The server's own script (Debian's wrapper on the PATH insists on its account), or the port mapper. Raises Lacking."""
    for pattern in PROGRAMS if name == "rabbitmq-server" else ():
        for folder in sorted(Path("/").glob(pattern.lstrip("/")), reverse=True):
            if os.access(folder / name, os.X_OK):
                return folder / name
    found = shutil.which(name)
    if found is None:
        raise Lacking(f"there is no {name} in the usual folders or on the PATH; on Debian install rabbitmq-server")
    return Path(found)


class RabbitMQ:
    """One node. It can be killed and started again on the same port, with what it had on disk or without."""

    def __init__(self) -> None:
        self._server, self._mapper = program("rabbitmq-server"), program("epmd")
        self._account = _unprivileged()
        self._folder = Path(tempfile.mkdtemp(prefix="dujiang-rabbitmq-"))
        self._processes: list[subprocess.Popen[bytes]] = []
        self._names = count()
        self.port, self._distribution, self._epmd = _free_port(), _free_port(), _free_port()
        self._prepare()

    def url(self, host: str = "") -> str:
        """As DUJIANG_BROKER_URL takes it; `host` is a virtual host, the default one when empty."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/{host}"

    def fresh(self) -> str:
        """Name of a virtual host that nobody has used."""
        number = next(self._names)
        assert number < HOSTS, "raise HOSTS"
        return f"v{number}"

    def connect(self, host: str = "/") -> amqp.Connection:
        """A new connection; the caller closes it."""
        connection = amqp.Connection(f"127.0.0.1:{self.port}", userid="guest", password="guest", virtual_host=host, connect_timeout=5)
        connection.connect()
        return connection

    def start(self) -> None:
        """Start, and wait until it takes connections. Raises RuntimeError with the end of the log."""
        self._spawn([str(self._mapper), "-port", str(self._epmd), "-address", "127.0.0.1"])
        self._spawn([str(self._server)])
        deadline = time.monotonic() + START_S
        while not self._answers():
            if any(process.poll() is not None for process in self._processes) or time.monotonic() > deadline:
                log = "\n".join((self._folder / "log").read_text(errors="replace").splitlines()[-20:])
                self.close()
                raise RuntimeError(f"RabbitMQ did not start:\n{log}")
            time.sleep(0.05)

    def kill(self) -> None:
        """End it at once, as a crash would; durable queues and their messages stay on disk."""
        processes, self._processes = self._processes, []
        for process in reversed(processes):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(START_S)

    def restart(self, *, wiped: bool = False) -> None:
        """Come back on the same port; `wiped`, as a node that has never run."""
        self.kill()
        if wiped:
            shutil.rmtree(self._folder / "data")
            self._prepare()
        self.start()

    def close(self) -> None:
        """End it, and remove its folder."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _prepare(self) -> None:
        (self._folder / "data").mkdir()
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        hosts = ["/", *(f"v{number}" for number in range(HOSTS))]
        definitions = {
            "vhosts": [{"name": host} for host in hosts],
            "users": [{"name": "guest", "password": "guest", "tags": "administrator"}],
            "permissions": [{"user": "guest", "vhost": host, **everything} for host in hosts],
        }
        (self._folder / "definitions.json").write_text(json.dumps(definitions))
        options = {
            "listeners.tcp.1": f"127.0.0.1:{self.port}",
            "load_definitions": self._folder / "definitions.json",
            "disk_free_limit.absolute": "50MB",
            "log.console.level": "warning",
            "log.file": "false",
        }
        (self._folder / "rabbitmq.conf").write_text("".join(f"{name} = {value}\n" for name, value in options.items()))
        (self._folder / "plugins").write_text("[].\n")
        (self._folder / "advanced.config").write_text("[].\n")
        cookie = self._folder / ".erlang.cookie"
        if not cookie.exists():
            cookie.write_text(secrets.token_hex(16))
            cookie.chmod(0o400)
        if self._account:
            for path in (self._folder, *self._folder.rglob("*")):
                os.chown(path, self._account.pw_uid, self._account.pw_gid)

    def _environment(self) -> dict[str, str]:
        folder = self._folder
        return {
            **{name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ},
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(self._epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"dujiang{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self._distribution),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            # The script then becomes the server instead of waiting for it, so that a signal reaches the right process.
            "RABBITMQ_ALLOW_INPUT": "1",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-noinput -kernel inet_dist_use_interface {127,0,0,1} +sbwt none",
        }

    def _spawn(self, command: Sequence[str]) -> None:
        account = self._account
        with open(self._folder / "log", "ab") as log:
            process = subprocess.Popen(
                command,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                start_new_session=True,
                preexec_fn=die_with_parent,
                user=account.pw_uid if account else None,
                group=account.pw_gid if account else None,
                extra_groups=[] if account else None,
            )
        self._processes.append(process)

    def _answers(self) -> bool:
        try:
            self.connect(f"v{HOSTS - 1}").close()
        except (OSError, amqp.AMQPError):
            return False
        return True


def _unprivileged() -> pwd.struct_passwd | None:
    """Account to run as; None when we are not root."""
    if os.geteuid() != 0:
        return None
    for name in ("rabbitmq", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def _shared_rabbitmq() -> Iterator[RabbitMQ]:
    try:
        server = RabbitMQ()
    except Lacking as reason:
        lacking("RabbitMQ", str(reason))
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def rabbitmq(_shared_rabbitmq: RabbitMQ) -> RabbitMQ:
    """One node for the session; take a virtual host of your own with `fresh`, and leave the node running."""
    return _shared_rabbitmq


def main() -> None:
    """Run in the foreground."""
    try:
        server = RabbitMQ()
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
