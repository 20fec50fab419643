"""``make demo``: the sample documents through real workers, then three questions, all by the command line's own verbs."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from api.cli import cli
from api.terminal import note
from pipeline.settings import Settings, load

SAMPLES = Path(__file__).resolve().parent.parent / "samples" / "handbook"
COLLECTION = "handbook"
QUESTIONS = (
    "1998年洪水时石桥站的最高水位是多少？",
    "How often is the battery of a radar gauge replaced?",
    "Which composer wrote the opera Turandot?",
)
REFUSED = 5


def main() -> None:
    """Run the demo; at a terminal the system stays up to be looked at, otherwise nothing is left running."""
    settings = load().settings
    stays = sys.stdout.isatty()
    if stays:
        settings = _up(settings)
    verb("ingest", str(SAMPLES), "-c", COLLECTION)
    for question in QUESTIONS:
        verb("ask", question, "-c", COLLECTION)
    if stays:
        _addresses(settings)


def verb(*arguments: str) -> None:
    """Print a command line and run it. Ends the program when it fails."""
    shown = " ".join(_quoted(argument) for argument in arguments)
    click.echo(f"\n{click.style(f'$ dujiang {shown}', bold=True)}")
    code = _run(arguments)
    if code not in (0, REFUSED):
        raise SystemExit(code)


def _run(arguments: Sequence[str]) -> int:
    from api.cli import run

    return run(list(arguments), cli)


def _quoted(argument: str) -> str:
    path = Path(argument)
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return f"'{argument}'" if " " in argument or "？" in argument else argument


def _up(settings: Settings) -> Settings:
    from workers import runfile, session

    state = runfile.read(settings.home)
    if not runfile.alive(state):
        settings = replace(settings, port=_free_port(settings.port))
        note("starting server, workers, API and Flower …")
        session.up_detached(settings)
    return settings


def _free_port(wanted: int) -> int:
    """`wanted`, or the next pair of free ports: another program may be there."""
    for port in range(wanted, wanted + 200, 2):
        if all(_free(number) for number in (port, port + 1)):
            return port
    return wanted


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _addresses(settings: Settings) -> None:
    from workers import runfile

    state = runfile.read(settings.home)
    if state is None:
        return
    click.echo(f"\nIt stays up for you to look at:\n  API docs  {state.api_url}/docs\n  Flower    {state.flower_url}")
    click.echo("Ask more:  .venv/bin/dujiang ask 'your question' -c handbook\nStop it:   make down")


if __name__ == "__main__":
    main()
