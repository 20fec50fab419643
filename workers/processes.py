"""Child processes that die with their parent, however it dies, and whose output is prefixed and kept."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

PR_SET_PDEATHSIG = 1
LOG_BYTES = 20_000_000
HOST_CHARS = 48
"""As much of a host's name as fits beside process and thread in the ledger's column of owners."""


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Ask the kernel to signal this process when the thread that made it is gone. Linux only; elsewhere nothing happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def node_name(name: str, pid: int) -> str:
    """``compute@host-1234``: hosts may share a ledger, and in containers process numbers are alike."""
    return f"{name}@{socket.gethostname()[:HOST_CHARS]}-{pid}"


@dataclass(slots=True)
class Child:
    """One running process of the system."""

    name: str
    role: str
    process: subprocess.Popen[str]
    queues: tuple[str, ...] = ()
    restarts: int = 0
    started_at: float = 0.0
    reader: threading.Thread | None = field(default=None, repr=False)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def node(self) -> str:
        """What it calls itself in ledger and Redis, where it is a worker."""
        return node_name(self.name, self.pid)

    def running(self) -> bool:
        return self.process.poll() is None


def spawn(
    name: str,
    role: str,
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None,
    log: Path,
    echo: Callable[[str], None] | None,
    queues: tuple[str, ...] = (),
) -> Child:
    """Start a process in a session of its own. Call it from the main thread: the death signal hangs on the calling thread.

    Its output goes to `log`, and line by line, prefixed with its name, to `echo`.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        list(command),
        env=None if env is None else dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=die_with_parent,
    )
    child = Child(name, role, process, queues)
    assert process.stdout is not None
    child.reader = threading.Thread(target=_copy, args=(process.stdout, log, name, echo), name=f"log-{name}", daemon=True)
    child.reader.start()
    return child


def _copy(source: IO[str], log: Path, name: str, echo: Callable[[str], None] | None) -> None:
    if log.exists() and log.stat().st_size > LOG_BYTES:
        log.replace(log.with_suffix(".log.1"))
    with log.open("a", encoding="utf-8") as file:
        for line in source:
            file.write(line)
            file.flush()
            if echo is not None:
                echo(f"{name:<9}| {line.rstrip()}")


def stop(children: Sequence[Child], *, grace_s: float) -> None:
    """Ask all to end, wait together, then kill what is left with all that it started."""
    for child in children:
        if child.running():
            child.process.terminate()
    for child in children:
        try:
            child.process.wait(timeout=grace_s)
        except subprocess.TimeoutExpired:
            kill(child)
            child.process.wait()
        if child.reader is not None:
            child.reader.join(timeout=2)


def kill(child: Child) -> None:
    """Kill a process and its whole session at once."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        child.process.kill()
