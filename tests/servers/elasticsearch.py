"""A real Elasticsearch without containers: the minimal distribution from Maven, one node on loopback.

    python -m tests.servers.elasticsearch [--version 9.5.4] [--heap 512m] [--fetch]

runs one until interrupted; with ``--fetch`` it only fills the cache. The distribution holds no JDK.
Tests use a running one when DUJIANG_TEST_ELASTICSEARCH_URL or DUJIANG_TEST_ELASTICSEARCH_8_URL names it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.servers import Lacking, lacking

CURRENT = "9.5.4"
PREVIOUS = "8.19.4"
ARTIFACT = "org.elasticsearch.distribution.integ-test-zip:elasticsearch"
START_S = 120
"""Most seconds from start to the first healthy answer, on a machine busy with other tests."""
QUICK = "-XX:TieredStopAtLevel=1 -XX:-UseG1GC -XX:+UseSerialGC"
"""The JVM's fast compiler and its plain collector: starting costs 9 instead of 16 CPU seconds, and no test runs long enough to want them back."""
PR_SET_PDEATHSIG = 1


def java_home(version: str) -> Path:
    """A JDK that runs this server: JAVA_HOME first, then the usual folders. Raises Lacking."""
    need = 17 if version.startswith("8.") else 21
    places = [Path(os.environ["JAVA_HOME"])] if os.environ.get("JAVA_HOME") else []
    for folder in (Path("/usr/lib/jvm"), Path("/Library/Java/JavaVirtualMachines"), Path("/opt/java")):
        places += sorted(folder.glob("*")) + sorted(folder.glob("*/Contents/Home"))
    for place in places:
        if _java_major(place / "bin" / "java") >= need:
            return place
    raise Lacking(f"Elasticsearch {version} needs a JDK of {need} or newer; set JAVA_HOME")


def _java_major(java: Path) -> int:
    if not os.access(java, os.X_OK):
        return 0
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(\d+)', done.stderr)
    return int(found[1]) if found else 0


def cache_folder() -> Path:
    """Readable by the account that runs the server, which is another one when we are root."""
    if os.geteuid() == 0:
        return Path("/var/cache/dujiang-tests")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dujiang-tests"


def install(version: str) -> Path:
    """Folder of the unpacked distribution, fetched with Maven the first time. Raises Lacking."""
    home = cache_folder() / f"elasticsearch-{version}"
    if (home / "bin" / "elasticsearch").exists():
        return home
    maven = shutil.which("mvn")
    if maven is None:
        raise Lacking(f"Maven fetches Elasticsearch {version}, and there is no mvn on the PATH")
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
        os.chmod(scratch, 0o755)
        fetch = [maven, "-q", "-B", "dependency:copy", f"-Dartifact={ARTIFACT}:{version}:zip", f"-DoutputDirectory={scratch}"]
        done = subprocess.run([*fetch, "-Dmdep.useBaseVersion=true"], capture_output=True, text=True, check=False)
        archive = Path(scratch) / f"elasticsearch-{version}.zip"
        if done.returncode or not archive.exists():
            reason = next((line for line in done.stdout.splitlines() if "ERROR" in line), "no reason given")
            raise Lacking(f"Maven could not fetch {ARTIFACT}:{version}: {reason.removeprefix('[ERROR] ')[:200]}")
        _unpack(archive, Path(scratch))
        try:
            os.rename(Path(scratch) / f"elasticsearch-{version}", home)
        except OSError:
            if not (home / "bin" / "elasticsearch").exists():  # not a second fetch that was quicker
                raise
    return home


def _unpack(archive: Path, target: Path) -> None:
    """zipfile drops permission bits; the start scripts need theirs, and another account must read it all."""
    with zipfile.ZipFile(archive) as bundle:
        for info in bundle.infolist():
            path = bundle.extract(info, target)
            executable = info.is_dir() or (info.external_attr >> 16) & 0o100
            os.chmod(path, 0o755 if executable else 0o644)


class Elasticsearch:
    """One node with a data folder of its own. It can be stopped and started again on the same port.

    Args:
        jvm: further options of the JVM; empty where its speed is measured.
        bootstrap_password: of the account `elastic`, where the settings turn security on.
    Raises: Lacking.
    """

    def __init__(
        self, version: str, *, heap: str = "512m", jvm: str = QUICK, settings: Mapping[str, str] | None = None, bootstrap_password: str = ""
    ) -> None:
        self.version = version
        self._java, self._home = java_home(version), install(version)
        self._jvm, self._settings, self._password = f"-Xms{heap} -Xmx{heap} {jvm}", dict(settings or {}), bootstrap_password
        self._folder = Path(tempfile.mkdtemp(prefix="dujiang-elasticsearch-"))
        self._account = _unprivileged()
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self._configure()

    @property
    def url(self) -> str:
        """As DUJIANG_STORE_URL takes it, without credentials."""
        return f"elasticsearch+http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start and wait until the cluster answers. Raises RuntimeError with the end of the log."""
        ports = self._folder / "logs" / "http.ports"
        ports.unlink(missing_ok=True)
        environment = {k: v for k, v in os.environ.items() if k not in {"JAVA_HOME", "ES_JAVA_HOME"}}
        environment |= {
            "ES_JAVA_HOME": str(self._java),
            "ES_JAVA_OPTS": self._jvm,
            "ES_PATH_CONF": str(self._folder / "config"),
            "ES_TMPDIR": str(self._folder / "tmp"),
            "CLI_JAVA_OPTS": f"-Djava.io.tmpdir={self._folder / 'tmp'}",
            "HOME": str(self._folder),
        }
        with open(self._folder / "start.log", "ab") as log:
            self._process = subprocess.Popen(
                [str(self._home / "bin" / "elasticsearch"), "-E", f"http.port={self.port}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=environment,
                start_new_session=True,
                preexec_fn=_die_with_parent,
                user=self._account,
                group=None if self._account is None else self._account_group(),
                extra_groups=None if self._account is None else [],
            )
        process, deadline = self._process, time.monotonic() + START_S
        while not self._answers(ports):
            if process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"Elasticsearch {self.version} did not start:\n{self._log_tail()}")
            time.sleep(0.2)

    def stop(self) -> None:
        """End the node and wait until it is gone; its data stay."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)
        except subprocess.TimeoutExpired:
            pass
        except ProcessLookupError:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        """Stop, and remove the data."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _account_group(self) -> int:
        return pwd.getpwuid(self._account or 0).pw_gid

    def _configure(self) -> None:
        """A config folder of its own: the keystore is written there."""
        config = self._folder / "config"
        shutil.copytree(self._home / "config", config)
        for name in ("data", "logs", "tmp"):
            (self._folder / name).mkdir()
        settings = {
            "discovery.type": "single-node",
            "network.host": "127.0.0.1",
            "transport.port": "0",
            "node.portsfile": "true",
            "path.data": str(self._folder / "data"),
            "path.logs": str(self._folder / "logs"),
            "xpack.security.enabled": "false",
            "xpack.ml.enabled": "false",
            "cluster.routing.allocation.disk.threshold_enabled": "false",
        } | self._settings
        lines = [f"{name}: {json.dumps(value) if value.startswith('/') else value}" for name, value in settings.items()]
        (config / "elasticsearch.yml").write_text("\n".join(lines) + "\n")
        if self._password:
            self._keystore()
        if self._account is not None:
            for path in (self._folder, *self._folder.rglob("*")):
                os.chown(path, self._account, self._account_group())

    def _keystore(self) -> None:
        environment = os.environ | {"ES_JAVA_HOME": str(self._java), "ES_PATH_CONF": str(self._folder / "config"), "CLI_JAVA_OPTS": QUICK}
        tool = str(self._home / "bin" / "elasticsearch-keystore")
        add = [tool, "add", "--force", "--stdin", "bootstrap.password"]  # makes the keystore, too
        subprocess.run(add, env=environment, check=True, capture_output=True, input=self._password.encode())

    def _answers(self, ports: Path) -> bool:
        if not ports.exists():
            return False
        found = re.search(r"127\.0\.0\.1:(\d+)", ports.read_text())
        if found is None:
            return False
        self.port = int(found[1])
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/_cluster/health?wait_for_status=yellow&timeout=1s", timeout=5) as answer:
                return answer.status == 200
        except urllib.error.HTTPError as error:
            return error.code == 401  # it answers, with security on
        except OSError:
            return False

    def _log_tail(self) -> str:
        return "\n".join((self._folder / "start.log").read_text(errors="replace").splitlines()[-20:])


def _unprivileged() -> int | None:
    """User id to run as, since the server refuses root; None when we are not root."""
    if os.geteuid() != 0:
        return None
    for name in ("elasticsearch", "nobody"):
        try:
            return pwd.getpwnam(name).pw_uid
        except KeyError:
            continue
    raise Lacking("Elasticsearch refuses to run as root, and there is neither an account elasticsearch nor nobody")


def _die_with_parent() -> None:
    """The launcher dies with us, however we die; the server ends itself when its launcher is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def running(version: str = CURRENT, *, heap: str = "512m", jvm: str = QUICK) -> Iterator[Elasticsearch]:
    """A started node, removed afterwards. Raises Lacking."""
    server = Elasticsearch(version, heap=heap, jvm=jvm)
    try:
        server.start()
        yield server
    finally:
        server.close()


def _session(version: str, variable: str) -> Iterator[str]:
    """A server of our own, unless the environment names one that is running already."""
    if given := os.environ.get(variable):
        yield given
        return
    try:
        with running(version) as server:
            yield server.url
    except Lacking as reason:
        lacking("Elasticsearch", str(reason))


@pytest.fixture(scope="session")
def elasticsearch_url() -> Iterator[str]:
    """URL of a server of the current major version, for the whole session; every test uses collections of its own."""
    yield from _session(CURRENT, "DUJIANG_TEST_ELASTICSEARCH_URL")


@pytest.fixture(scope="session")
def elasticsearch_8_url() -> Iterator[str]:
    """URL of a server of the last 8.x series, for the whole session."""
    yield from _session(PREVIOUS, "DUJIANG_TEST_ELASTICSEARCH_8_URL")


def main() -> None:
    """Fetch, or run in the foreground."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", default=CURRENT)
    parser.add_argument("--heap", default="512m")
    parser.add_argument("--fetch", action="store_true")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if arguments.fetch:
            print(install(arguments.version))
            return
        with running(arguments.version, heap=arguments.heap, jvm="") as server:
            print(server.url, flush=True)
            signal.pause()
    except Lacking as reason:
        sys.exit(str(reason))
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
