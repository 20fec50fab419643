"""The run file of a data folder: who owns it, which processes belong to it, and how to reach them."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from pipeline.errors import Conflict


@dataclass(frozen=True, slots=True)
class Entry:
    """One process of the system."""

    name: str
    role: str
    pid: int
    queues: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class State:
    """What the supervisor wrote when it had started everything."""

    pid: int
    started_at: float
    redis_url: str
    api_url: str
    flower_url: str
    ready: bool
    processes: tuple[Entry, ...]
    born: int = 0
    """When the supervisor's process began, as `born` has it: process numbers are used again, in containers at every start."""


def folder(home: str) -> Path:
    """Where sockets, logs and the run file are."""
    return Path(home) / "run"


def read(home: str) -> State | None:
    """The last state written, whether or not its processes still live."""
    try:
        raw = json.loads((folder(home) / "state.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return None
    entries = tuple(Entry(item["name"], item["role"], item["pid"], tuple(item["queues"])) for item in raw["processes"])
    return State(raw["pid"], raw["started_at"], raw["redis_url"], raw["api_url"], raw["flower_url"], raw["ready"], entries, raw.get("born", 0))


def write(home: str, state: State) -> None:
    """Replace the run file in one step."""
    path = folder(home) / "state.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(asdict(state), indent=1), encoding="utf-8")
    temporary.chmod(0o600)
    temporary.replace(path)


def clear(home: str) -> None:
    (folder(home) / "state.json").unlink(missing_ok=True)


def alive(state: State | None) -> bool:
    """True when the supervisor that wrote the state still runs."""
    return state is not None and exists(state.pid) and state.born in (0, born(state.pid))


def exists(pid: int) -> bool:
    """True when a process of that number runs and is no zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return True


def born(pid: int) -> int:
    """When a process began, in clock ticks since the machine did; 0 where that cannot be told."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


class Owner:
    """The lock that makes a data folder have one owner; the kernel frees it when the owner dies."""

    def __init__(self, home: str) -> None:
        self._path = folder(home) / "owner.lock"
        self._file: int | None = None

    def __enter__(self) -> Owner:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = os.pread(handle, 32, 0).decode().strip()
            os.close(handle)
            raise Conflict(
                f"the data folder {self._path.parent.parent} is in use by process {other or 'unknown'}",
                hint="`dujiang status` shows it, `dujiang down` stops it; or set DUJIANG_HOME to another folder.",
                code="home_in_use",
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        self._file = handle
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def describe(processes: Sequence[Entry]) -> str:
    """One line for people."""
    return ", ".join(f"{entry.name} ({entry.pid})" for entry in processes)


def is_ours(pid: int) -> bool:
    """True when the process of that number was started by this software: numbers are used again."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return any(mark in command for mark in (b"workers.", b"api.serve", b"redis.sock"))
