"""``make demo SOURCE=yuque``: a simulated vendor beside a whole Dujiang, followed through a change, all by the command line's own verbs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
import orjson

from api.demo import verb
from api.terminal import note
from pipeline.settings import Settings, load
from tests.simulators.demonstrations import Told, demonstration
from workers import runfile
from workers.dispatch import open_platform
from workers.session import ensure_running
from workers.views import RunView

NAME, COLLECTION = "wiki", "wiki"
ROOT = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if arguments is None else arguments)
    kind = given[0] if given else "yuque"
    shown = demonstration(kind)
    settings = own(load().settings, kind)
    click.echo(f"{shown.about}\nIts data are in {settings.home}, begun anew each time; nothing leaves this machine.")
    with served(kind) as server:
        click.echo(f"\nThe simulator answers at {server.told.url}")
        for variable, value in server.told.secrets.values():
            os.environ[variable] = value
            click.echo(f"\n{click.style(f'$ export {variable}={value}', bold=True)}")
        note("starting server and workers …")
        with ensure_running(settings):
            options = [word for name, value in server.told.options.items() for word in (f"--{name.replace('_', '-')}", value)]
            options += [word for name, (variable, _) in server.told.secrets.items() for word in (f"--{name.replace('_', '-')}", f"env:{variable}")]
            verb("sources", "create", NAME, "--kind", kind, "-c", COLLECTION, *options)
            verb("sources", "validate", NAME)
            verb("sources", "sync", NAME)
            for question in shown.questions:
                verb("ask", question, "-c", COLLECTION)
            click.echo(f"\n{click.style('Meanwhile', bold=True)}: {server.change()}")
            verb("sources", "sync", NAME)
            run = last(settings)
            click.echo(f"→ {run.indexed} changed, {run.deleted} deleted, {rest(settings, run)} unchanged")
            verb("ask", shown.again, "-c", COLLECTION)
        note("server and workers are stopped")
    click.echo(f"\nLook at it again:  DUJIANG_HOME={settings.home} .venv/bin/dujiang sources status {NAME}")
    click.echo("Your own:          .venv/bin/dujiang sources kinds, and docs/connectors.md")


def own(settings: Settings, kind: str) -> Settings:
    """A data folder of the demonstration's own, empty, and everything in it: the machine's own ledger and stores are left alone."""
    home = Path(settings.home) / f"demo-{kind}"
    if runfile.alive(runfile.read(str(home))):
        raise SystemExit(f"Something runs in {home}: DUJIANG_HOME={home} .venv/bin/dujiang down")
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    apart = load({"home": str(home)}, environ={}, cwd=home).settings
    # The verbs read it from here, and so do the workers.
    os.environ |= {f"DUJIANG_{name.upper()}": getattr(apart, name) for name in ("home", "ledger_url", "artifacts_url", "store_url")}
    os.environ["DUJIANG_PRIVATE_HOSTS"] = "127.0.0.1"
    return load().settings


class Served:
    """A simulator in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.told = Told(**orjson.loads(self._line()))

    def change(self) -> str:
        """Change what it holds; gives what was changed, in words."""
        assert self._process.stdin is not None
        self._process.stdin.write("change\n")
        self._process.stdin.flush()
        return orjson.loads(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("The simulator ended by itself; what it said is above.")
        return line


@contextmanager
def served(kind: str) -> Iterator[Served]:
    """Ends with the block, and when this process is killed: its input ends then."""
    command = [sys.executable, "-m", "tests.simulators.demonstrations", kind]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Served(process)


def last(settings: Settings) -> RunView:
    with open_platform(settings) as platform:
        run = platform.sources.status(NAME).run
        assert run is not None
        return run


def rest(settings: Settings, run: RunView) -> int:
    """Documents that the second sync left alone, whether it listed them or not."""
    with open_platform(settings) as platform:
        return platform.sources.show(NAME).documents - run.indexed


if __name__ == "__main__":
    main()
