"""Workers and beats as a deployment runs them: each by itself, over a Redis that somebody else keeps."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.settings import Settings, child_environment
from tests.system import ROOT, children, living, until
from workers.ledger import nodes
from workers.ledger.engine import Database
from workers.processes import die_with_parent

READY_S = 60.0
STOP_S = 40.0
BEAT = "from pipeline.settings import load; from workers.beat import run; run(load().settings)"


class Part:
    """One process. It is ended with all that it started when the block ends."""

    def __init__(self, settings: Settings, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.name, self._settings = name, settings
        self.log = Path(settings.home) / "run" / "logs" / f"{name}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                cwd=ROOT,
                env=child_environment(settings) | dict(environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def __enter__(self) -> Part:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def pid(self) -> int:
        return self.process.pid

    def said(self) -> str:
        """Its log so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def ready(self, seconds: float = READY_S) -> Part:
        """Wait until it has announced itself in the ledger."""
        db = Database(self._settings.ledger_url)
        db.migrate()

        def there() -> bool:
            assert self.process.poll() is None, self.said()
            return any(node.pid == self.pid for node in nodes.living(db))

        try:
            until(there, seconds, f"{self.name} is at work")
        finally:
            db.close()
        return self

    def end(self) -> None:
        """As a deployment ends it: a signal, time to finish, then no more time."""
        family = children(self.pid)
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pid in living(family):
            os.kill(pid, signal.SIGKILL)


def worker(
    settings: Settings, name: str, queues: str, *, pool: str = "threads", concurrency: int = 1, environment: Mapping[str, str] | None = None
) -> Part:
    """A worker of some queues; call `ready` on it before relying on it."""
    options = ("--name", name, "--queues", queues, "--pool", pool, "--concurrency", str(concurrency), "--no-events")
    return Part(settings, name, ("-m", "workers.worker", *options), environment)


def beat(settings: Settings, name: str = "beat", environment: Mapping[str, str] | None = None) -> Part:
    """Who feeds and sweeps."""
    return Part(settings, name, ("-c", BEAT), environment)
