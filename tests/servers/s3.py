"""A real S3-compatible server on loopback: versitygw, whose buckets are folders.

    python -m tests.servers.s3

runs one until interrupted. `.ci/run` builds it; by hand: go install github.com/versity/versitygw/cmd/versitygw@latest
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import Lacking, lacking

START_S = 30
PR_SET_PDEATHSIG = 1
ACCESS, SECRET = "test-access", "test-secret-of-forty-characters-000000000"


def program() -> Path:
    """On the PATH, or where `go install` puts it. Raises Lacking."""
    places = (shutil.which("versitygw"), os.environ.get("GOBIN", "") + "/versitygw", str(Path.home() / "go" / "bin" / "versitygw"))
    for place in places:
        if place and Path(place).is_file():
            return Path(place)
    raise Lacking("there is no versitygw; go install github.com/versity/versitygw/cmd/versitygw@latest")


class S3Server:
    """One server, its buckets in a folder of its own."""

    def __init__(self) -> None:
        self._program = program()
        self.folder = Path(tempfile.mkdtemp(prefix="dujiang-s3-"))
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    @property
    def url(self) -> str:
        """As DUJIANG_ARTIFACTS_ENDPOINT takes it."""
        return f"http://127.0.0.1:{self.port}"

    def settings(self, bucket: str = "packs", prefix: str = "artifacts") -> dict[str, str]:
        """What a system is told to keep its artifacts here."""
        return {
            "artifacts_url": f"s3://{bucket}/{prefix}".rstrip("/"),
            "artifacts_endpoint": self.url,
            "artifacts_access_key": ACCESS,
            "artifacts_secret_key": SECRET,
        }

    def bucket(self, name: str) -> str:
        (self.folder / name).mkdir(exist_ok=True)
        return name

    def start(self) -> None:
        environment = {"PATH": os.environ.get("PATH", ""), "HOME": str(self.folder), "ROOT_ACCESS_KEY": ACCESS, "ROOT_SECRET_KEY": SECRET}
        command = [str(self._program), "--port", f"127.0.0.1:{self.port}", "--quiet", "posix", "--nometa", str(self.folder)]
        self._process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=_die_with_parent)
        until = time.monotonic() + START_S
        while True:
            if self._process.poll() is not None:
                raise Lacking(f"versitygw does not start: {(self._process.stderr.read() if self._process.stderr else b'').decode()[-300:]}")
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                if time.monotonic() > until:
                    raise Lacking(f"versitygw did not answer within {START_S} s") from None
                time.sleep(0.02)

    def stop(self) -> None:
        """Kill it; its buckets stay."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """One server for all tests of a session."""
    try:
        server = S3Server()
        server.start()
    except Lacking as reason:
        lacking("an S3 server", str(reason))
    yield server
    server.close()


def main() -> None:
    server = S3Server()
    server.bucket("packs")
    server.start()
    print(f"{server.url} {ACCESS} {SECRET}", flush=True)
    try:
        signal.pause()
    except KeyboardInterrupt:
        server.close()


if __name__ == "__main__":
    main()
