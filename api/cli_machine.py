"""`dujiang up`, `down`, `logs`: the system on this machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from api.terminal import clean, json_option, print_json

if TYPE_CHECKING:
    from pipeline.settings import Settings
    from workers.runfile import State

LOOK_S = 0.2


@click.command(epilog="Example: dujiang up --detach --port 8400")
@click.option("--detach", is_flag=True, help="Go on in the background; returns when everything is ready.")
@click.option("--host", help="Address the HTTP server listens on.")
@click.option("--port", type=click.IntRange(1, 65534), help="Its port; Flower takes the next one.")
@json_option
def up(detach: bool, host: str | None, port: int | None, as_json: bool) -> None:
    """Start everything on this machine: Redis unless one is given, workers, HTTP, Flower. Ends with Ctrl-C or `dujiang down`."""
    from pipeline.settings import load

    settings = load({"host": host, "port": port}).settings
    if detach:
        from workers.session import up_detached

        _ready(up_detached(settings), settings, as_json)
        return
    from workers.supervisor import Supervisor

    threading.Thread(target=_announce, args=(settings, as_json), daemon=True).start()
    Supervisor(settings, ways_in=True, echo=lambda line: click.echo(line, err=as_json)).run()


def _announce(settings: Settings, as_json: bool) -> None:
    """Say where everything is as soon as it is ready."""
    import os

    from workers import runfile

    while True:
        state = runfile.read(settings.home)
        if state is not None and state.pid == os.getpid() and state.ready:
            _ready(state, settings, as_json)
            return
        time.sleep(LOOK_S)


def _ready(state: State, settings: Settings, as_json: bool) -> None:
    key = _first_key(settings)
    if as_json:
        value = {"up": True, "pid": state.pid, "api_url": state.api_url, "flower_url": state.flower_url, "home": settings.home}
        print_json(value | ({"key": key} if key else {}))
        return
    click.echo(f"ready: API and its page at {state.api_url}/docs, Flower at {state.flower_url}; data in {settings.home}")
    if key:
        click.echo(f"the first API key, shown this once: {key}")


def _first_key(settings: Settings) -> str:
    """Off loopback nobody gets in without a key, so the first one is made here; empty where none is needed."""
    from api.auth import loopback

    if loopback(settings.host):
        return ""
    from api.local import open_platform

    with open_platform(settings) as platform:
        if platform.has_keys():
            return ""
        return platform.create_key("first", permissions=("read", "write", "admin")).key or ""


@click.command(epilog="Example: dujiang down")
@click.option("--dry-run", is_flag=True, help="Say what would happen, and do nothing.")
@json_option
def down(dry_run: bool, as_json: bool) -> None:
    """Stop everything on this machine; what is under way is finished or given back."""
    from pipeline.settings import load
    from workers import runfile, session

    settings = load().settings
    state = runfile.read(settings.home)
    running = state is not None and runfile.alive(state)
    stopped = running if dry_run else session.down(settings)
    if as_json:
        print_json({"stopped": stopped and not dry_run, "dry_run": dry_run, "home": settings.home})
    elif not stopped:
        click.echo(f"nothing is running for {settings.home}")
    else:
        click.echo(f"{'would stop' if dry_run else 'stopped'} the system of {settings.home}")


@click.command(epilog="Example: dujiang logs -f --process compute")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written from now.")
@click.option("--process", "names", multiple=True, metavar="NAME", help="Only of this process. Repeatable.")
@click.option("-n", "--lines", type=click.IntRange(0, 1_000_000), default=200, show_default=True, help="Last lines of each.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines.")
def logs(follow: bool, names: tuple[str, ...], lines: int, as_json: bool) -> None:
    """What the processes on this machine say, prefixed with their names."""
    from pipeline.errors import NotFound
    from pipeline.settings import load
    from workers.session import log_folder

    folder = log_folder(load().settings)
    files = {path.stem: path for path in sorted(folder.glob("*.log")) if not names or path.stem in names}
    missing = sorted(set(names) - set(files)) if not follow else []
    if missing or (not files and not follow):
        what = f"a log of {missing[0]!r}" if missing else "a log yet"
        known = ", ".join(sorted(path.stem for path in folder.glob("*.log")))
        raise NotFound(f"there is no {what} in {folder}", hint=f"There are: {known}." if known else "Start the system first: dujiang up.")
    size = max((len(name) for name in files), default=8)
    opened = {name: path.open("r", encoding="utf-8", errors="replace") for name, path in files.items()}
    for name, file in opened.items():
        for line in _tail((line for line in file if not _is_copy(name, line, files)), lines):
            _print(name, size, line, as_json)
    try:
        while follow:
            for path in folder.glob("*.log"):
                if path.stem not in files and (not names or path.stem in names):
                    # A process that began after us: all it has said is news.
                    files[path.stem], opened[path.stem] = path, path.open("r", encoding="utf-8", errors="replace")
            news = [_forward(name, size, file, files, as_json) for name, file in opened.items()]
            if not any(news):
                time.sleep(LOOK_S)
    finally:
        for file in opened.values():
            file.close()


def _tail(file: Iterable[str], count: int) -> Iterator[str]:
    from collections import deque

    yield from deque(file, maxlen=count)


def _forward(name: str, size: int, file: IO[str], files: Mapping[str, Path], as_json: bool) -> bool:
    """Print what is new; True when there was something."""
    found = False
    while line := file.readline():
        found = True
        if not _is_copy(name, line, files):
            _print(name, size, line, as_json)
    path = files[name]
    if not found and path.exists() and path.stat().st_size < file.tell():
        # it was rotated away: begin with the new one
        file.seek(0)
    return found


def _is_copy(name: str, line: str, names: Collection[str]) -> bool:
    """True for a line of the supervisor's own log that stands in its process's log too."""
    return name == "supervisor" and line.partition("|")[0].strip() in names


def _print(name: str, size: int, line: str, as_json: bool) -> None:
    text = clean(line.rstrip("\n"))
    if as_json:
        print_json({"process": name, "line": text})
    else:
        click.echo(f"{click.style(f'{name:<{size}}', dim=True)} | {text}")
