"""Starting and stopping the system of a data folder, or handing over to the one that runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from pipeline.errors import Conflict, Unavailable
from pipeline.settings import Settings, child_environment
from workers import runfile
from workers.processes import die_with_parent
from workers.runfile import State

START_S = 90.0
STOP_S = 60.0


def connected(settings: Settings) -> Settings:
    """The settings with the address of the Redis that runs for this data folder, where none was given."""
    state = runfile.read(settings.home)
    if settings.redis_url or state is None or not runfile.alive(state):
        return settings
    return replace(settings, redis_url=state.redis_url)


@contextmanager
def ensure_running(settings: Settings) -> Generator[Settings]:
    """Hand over to a running system, else start server and workers for the time of the block and stop them afterwards.

    Yields the settings to talk to it with. Raises Unavailable when it does not start.
    """
    state = runfile.read(settings.home)
    if runfile.alive(state):
        _await_ready(settings, None)
        yield connected(settings)
        return
    process = _launch(settings, ["--bare", "--quiet"], tied=True)
    try:
        _await_ready(settings, process)
        yield connected(settings)
    finally:
        _end(process)


def up_detached(settings: Settings) -> State:
    """Start everything in the background; returns when it is ready. Raises Conflict when it runs already, Unavailable."""
    state = runfile.read(settings.home)
    if state is not None and runfile.alive(state):
        raise Conflict(
            f"the data folder {settings.home} is in use by process {state.pid}",
            hint="`dujiang status` shows it, `dujiang down` stops it; or set DUJIANG_HOME to another folder.",
            code="home_in_use",
        )
    process = _launch(settings, [], tied=False)
    try:
        return _await_ready(settings, process, with_api=True)
    except Unavailable:
        _end(process)
        raise


def down(settings: Settings) -> bool:
    """Stop what runs for this data folder; False when nothing does. Raises Unavailable when it does not end."""
    state = runfile.read(settings.home)
    if state is None or not runfile.alive(state):
        return False
    os.kill(state.pid, signal.SIGTERM)
    until = time.monotonic() + STOP_S
    while runfile.exists(state.pid):
        if time.monotonic() > until:
            raise Unavailable(f"process {state.pid} does not end", hint=f"kill -9 {state.pid} ends it with all its children.", code="not_stopped")
        time.sleep(0.05)
    return True


def log_folder(settings: Settings) -> Path:
    """Where each process's output is kept."""
    return runfile.folder(settings.home) / "logs"


def _launch(settings: Settings, options: list[str], *, tied: bool) -> subprocess.Popen[bytes]:
    folder = log_folder(settings)
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "workers.supervisor", *options]
    with (folder / "supervisor.log").open("ab") as log:
        # A system that was started for one command ends with it, even when the command is killed.
        return subprocess.Popen(
            command,
            env=child_environment(settings),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=_term_with_parent if tied else None,
        )


def _term_with_parent() -> None:
    die_with_parent(signal.SIGTERM)


def _await_ready(settings: Settings, process: subprocess.Popen[bytes] | None, *, with_api: bool = False) -> State:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        state = runfile.read(settings.home)
        if state is not None and runfile.alive(state) and state.ready and (process is None or state.pid == process.pid):
            if not with_api or _answers(state.api_url):
                return state
        if process is not None and process.poll() is not None:
            raise _refusal(settings)
        time.sleep(0.03)
    raise Unavailable("the system was not ready in time", hint=f"Look at the logs in {log_folder(settings)}.", code="not_ready")


def _answers(url: str) -> bool:
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(f"{url}/livez", timeout=2) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def _refusal(settings: Settings) -> Unavailable | Conflict:
    """What the supervisor said before it gave up: its last words are ``code: detail`` and the cure."""
    path = log_folder(settings) / "supervisor.log"
    lines = [line for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()][-2:]
    code, _, detail = (lines[0] if lines else "").partition(": ")
    hint = lines[1] if len(lines) > 1 else f"Look at {path}."
    kind = Conflict if code == "home_in_use" else Unavailable
    return kind(detail or "the system did not start", hint=hint, code=code if code.isidentifier() else "not_started")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
