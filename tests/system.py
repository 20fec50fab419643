"""A whole Dujiang for a test, on a data folder of its own: real server, real workers, each in its own process.

Also the documents that are put into it, and looks into its ledger that need none of its own code.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import redis

from api.incoming import listed
from pipeline.settings import Settings, child_environment, load
from workers import runfile
from workers.broker import CACHE_DB, QUEUE_DB, client_url, with_db
from workers.dispatch import Platform, open_platform
from workers.inline import run_inline
from workers.processes import die_with_parent
from workers.views import AuditCollection, RunView

ROOT = Path(__file__).resolve().parents[1]
LOOK_S = 0.002
"""Pause between two looks at a moment that passes: short enough to catch a batch while somebody works on it."""
WAIT_S = 0.01
"""Pause between two looks at what stays once it is so: whoever looks more often takes the processor from those who are waited for."""
BUSY = 3
"""Deadlines are what a quiet machine needs with room to spare; a busy one gets so many times as long."""
START_S = 60.0
STOP_S = 40.0

Found = TypeVar("Found")


def until(look: Callable[[], Found | None], seconds: float, what: str, *, pause_s: float = WAIT_S) -> Found:
    """The first true value that `look` gives. Fails the test, saying what was waited for, after `seconds` on a quiet machine."""
    deadline = time.monotonic() + BUSY * seconds
    while True:
        if found := look():
            return found
        assert time.monotonic() < deadline, f"not within {BUSY * seconds:g} s: {what}"
        time.sleep(pause_s)


# ---------------------------------------------------------------- documents

TOPICS = {
    "Gauges": "The radar gauge at station {n} is cleaned every {m} weeks, and its battery is replaced in month {k}.",
    "Alarms": "When the level rises above {m}.{k} metres, station {n} sends an alarm to the duty officer within {k} minutes.",
    "值班": "第{n}號測站由林岑負責，每{k}小時記錄一次水位，汛期每{m}分鐘一次。",
    "Reports": "Station {n} reports {m} readings a day; readings older than {k} days are kept in the archive of the province.",
}


def markdown(number: int, *, paragraphs: int = 3, edition: int = 1) -> str:
    """A document of one section a topic; its first says its number, and `edition` changes the last section alone."""
    chance = random.Random(number)
    lines = [f"# Station {number}", "", f"This page is about station number{number}.", ""]
    for topic, sentence in TOPICS.items():
        lines += [f"## {topic}", ""]
        for _ in range(paragraphs):
            lines += [sentence.format(n=number, m=chance.randint(2, 90), k=chance.randint(1, 12)), ""]
    lines += ["## Edition", "", f"Edition {edition} of the page of station {number}.", ""]
    return "\n".join(lines)


def docx(text: str) -> bytes:
    """The least of a DOCX: one paragraph a line."""
    from io import BytesIO

    body = "".join(f"<w:p><w:r><w:t>{line}</w:t></w:r></w:p>" for line in text.splitlines() if line)
    parts = {
        "[Content_Types].xml": '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        '<Override PartName="/word/document.xml"'
        ' ContentType="application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"/></Types>',
        "_rels/.rels": '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="r1"'
        ' Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument" Target="word/document.xml"/></Relationships>',
        "word/document.xml": f'<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body>{body}</w:body></w:document>',
    }
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, part in parts.items():
            bundle.writestr(name, '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n' + part)
    return packed.getvalue()


def fill(folder: Path, texts: int, *, documents: int = 0, paragraphs: int = 3) -> Path:
    """`texts` Markdown files, which pass load, parse and chunk in one task, and `documents` DOCX files, which go from queue to queue."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(texts):
        (folder / f"station-{number:04}.md").write_text(markdown(number, paragraphs=paragraphs), encoding="utf-8")
    for number in range(texts, texts + documents):
        (folder / f"station-{number:04}.docx").write_bytes(docx(markdown(number, paragraphs=4 * paragraphs)))
    return folder


# ---------------------------------------------------------------- processes


def children(pid: int) -> set[int]:
    """Every living process below `pid`."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                below.setdefault(int(fields[1]), []).append(int(entry.name))
    found: set[int] = set()
    stack = [pid]
    while stack:
        for child in below.get(stack.pop(), []):
            found.add(child)
            stack.append(child)
    return found


def living(pids: Iterable[int]) -> set[int]:
    return {pid for pid in pids if runfile.exists(pid)}


@dataclass(frozen=True)
class Held:
    """A batch that somebody works on."""

    batch: int
    token: int
    owner: str

    @property
    def pid(self) -> int:
        """The process that holds it: a pool's child, or the node itself where the pool is of threads."""
        return int(self.owner.split(":")[1])

    @property
    def node_pid(self) -> int:
        return int(self.owner.split(":")[0].rpartition("-")[2])


@dataclass(frozen=True)
class Counts:
    """What two runs that should have built the same must share."""

    indexed: int
    failed: int
    documents: int
    chunks: int
    vectors: int
    digest: str


def _end_with_tests() -> None:
    die_with_parent(signal.SIGTERM)


# ---------------------------------------------------------------- the system


def settings_for(home: Path, **given: object) -> Settings:
    """Settings of a data folder alone: this machine's environment and configuration files do not count."""
    home.mkdir(parents=True, exist_ok=True)
    return load({"home": str(home), "embedder": "hashed", "worker_processes": 2, **given}, environ={}, cwd=home).settings


class System:
    """One data folder with its processes, started and ended by the test. Use it in a `with` block."""

    def __init__(self, home: Path, *, environment: Mapping[str, str] | None = None, **given: object) -> None:
        self.settings = settings_for(home, **given)
        self.home = home
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._platform: Platform | None = None

    def __enter__(self) -> System:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(check=kind is None)

    def start(self) -> System:
        """Start server and workers, and wait until they are ready."""
        log = self.home / "run" / "logs" / "supervisor.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "workers.supervisor", "--bare"],
                cwd=ROOT,
                env=child_environment(self.settings) | self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_end_with_tests,
            )
        process = self._process
        until(lambda: self._ready() or process.poll() is not None, START_S, "the system is ready")
        assert process.poll() is None, self.log("supervisor")
        return self

    def _ready(self) -> bool:
        state = runfile.read(str(self.home))
        return state is not None and state.ready and state.pid == self.pid

    @property
    def pid(self) -> int:
        """Of the supervisor."""
        assert self._process is not None
        return self._process.pid

    def close(self, *, check: bool = True) -> None:
        """End it as `down` does. With `check`, a Redis key of ours without an expiry, or a process that stays, fails the test."""
        endless = self.endless_keys() if check and self.running() else set()
        left: set[int] = set()
        if self._platform is not None:
            self._platform.close()
            self._platform = None
        process, self._process = self._process, None
        if process is not None:
            family = children(process.pid)
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            left = living(family)
            for pid in left:
                os.kill(pid, signal.SIGKILL)
        if check:
            assert not endless, f"Redis keys without an expiry: {endless}"
            assert not left, f"processes that were left: {left}"

    def kill(self) -> set[int]:
        """Kill the supervisor with SIGKILL; gives the processes that it had below it."""
        process, self._process = self._process, None
        assert process is not None
        family = children(process.pid)
        process.kill()
        process.wait()
        return family

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def state(self) -> runfile.State:
        found = runfile.read(str(self.home))
        assert found is not None
        return found

    def child(self, name: str) -> int:
        """Process id of redis, compute, network or index, as the run file has it now."""
        return next(entry.pid for entry in self.state().processes if entry.name == name)

    def log(self, name: str) -> str:
        path = self.home / "run" / "logs" / f"{name}.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    # ------------------------------------------------------------ using it

    @property
    def platform(self) -> Platform:
        if self._platform is None:
            self._platform = open_platform(self.settings, node="test")
        return self._platform

    def ingest(self, *paths: Path, collection: str = "docs", tenant: str = "default", metadata: Mapping[str, Any] | None = None) -> RunView:
        """Begin a run over files and folders."""
        items = listed([str(path) for path in paths], max_bytes=self.settings.max_file_mb * 1_000_000)
        return self.platform.ingest(collection, items, tenant=tenant, metadata=metadata or {})

    def finish(self, run: RunView, seconds: float = 60.0) -> RunView:
        """The run, once it has ended."""

        def ended() -> RunView | None:
            now = self.platform.run(run.run_id)
            return now if now.finished else None

        return until(ended, seconds, f"run {run.run_id} ends; it is at {self.platform.run(run.run_id).stages}", pause_s=3 * WAIT_S)

    def inline(self, *paths: Path, collection: str = "docs", tenant: str = "default") -> RunView:
        """The same stages, driven in this process."""
        return run_inline(self.platform.runtime, self.ingest(*paths, collection=collection, tenant=tenant).run_id)

    def audit(self, collection: str = "docs", tenant: str = "default") -> AuditCollection:
        """What the store holds. Fails the test when ledger and store disagree."""
        view = self.platform.audit(collection, tenant=tenant)
        assert view.ok, view.collections[0].differences
        return view.collections[0]

    def counts(self, run: RunView, tenant: str = "default") -> Counts:
        held = self.audit(run.collection, tenant)
        return Counts(run.indexed, run.failed, held.documents, held.chunks, held.vectors, held.digest)

    # ------------------------------------------------------------ its ledger

    @cached_property
    def _file(self) -> Path:
        return Path(self.settings.ledger_url.removeprefix("sqlite:///"))

    @contextmanager
    def ledger(self) -> Iterator[sqlite3.Connection]:
        """The ledger's rows, read only; every statement sees what is committed by then."""
        with closing(sqlite3.connect(f"file:{self._file}?mode=ro", uri=True, isolation_level=None)) as connection:
            yield connection

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self.ledger() as connection:
            return connection.execute(query, values).fetchall()

    def messages(self) -> int:
        """Published so far: a batch is one message for each token it has had."""
        return int(self.rows("SELECT coalesce(sum(token), 0) FROM batches")[0][0])

    def caught(self, stages: str, act: Callable[[Held], None], seconds: float = 20.0) -> Held:
        """Do `act` to whoever works on a batch of `stages` (``embed``, ``load,parse,chunk``), and wait until the batch is lost by it.

        The ledger is locked from the look to the act, so that nobody can commit in between.
        """

        def hit() -> Held | None:
            with closing(sqlite3.connect(self._file, timeout=30, isolation_level=None)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                row = connection.execute("SELECT id, token, owner FROM batches WHERE status = 'leased' AND stages = ?", (stages,)).fetchone()
                if row is None:
                    return None
                with suppress(ProcessLookupError):
                    act(held := Held(*row))
                    return held
            return None

        held = until(hit, seconds, f"somebody is caught at work on {stages}", pause_s=LOOK_S)
        ended = "SELECT 1 FROM batches WHERE id = ? AND status <> 'leased'"
        until(lambda: self.rows(ended, held.batch), 15.0, f"the lease of batch {held.batch} ends")
        return held

    def lull(self, stages: str, act: Callable[[], None], seconds: float = 20.0) -> None:
        """Do `act` while nobody works on a batch of `stages`, and nobody can begin one: the ledger is locked."""

        def hit() -> bool:
            with closing(sqlite3.connect(self._file, timeout=30, isolation_level=None)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                if connection.execute("SELECT 1 FROM batches WHERE status = 'leased' AND stages = ?", (stages,)).fetchone():
                    return False
                act()
                return True

        until(hit, seconds, f"nobody works on {stages}", pause_s=LOOK_S)

    # ------------------------------------------------------------ its Redis

    @contextmanager
    def redis(self, database: int = QUEUE_DB) -> Iterator[redis.Redis]:
        with closing(redis.Redis.from_url(client_url(with_db(self.state().redis_url, database)), socket_timeout=5)) as client:
            yield client

    def endless_keys(self) -> set[str]:
        """Keys of ours that would stay for ever. What the broker's library keeps under our prefix is its own affair."""
        found: set[str] = set()
        if not self.state().redis_url:
            return found
        for database in (QUEUE_DB, CACHE_DB):
            with self.redis(database) as client:
                names = [key.decode() for key in client.scan_iter("*")]
                found |= {name for name in names if not name.startswith(BROKERS) and client.ttl(name) == -1}
        return found


BROKERS = ("dujiang._kombu", "dujiang.dujiang.", "dujiang.unacked")
"""Key prefixes of kombu: bindings, the queues themselves, and messages that are not yet acknowledged."""
