"""`dujiang collections reindex`, `rollback` and `generations`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from api.terminal import clean, dry_run_option, json_option, note, pairs, print_json, system, table

if TYPE_CHECKING:
    from api.system import System
    from workers.views import GenerationView, ReindexView, RunView

wait_option = click.option("--wait", is_flag=True, help="Return when it has ended; what is missing is started for as long as it takes.")


@click.command(epilog="Example: dujiang collections reindex handbook --chunker sections:400/0 --wait")
@click.argument("name")
@click.option("--embedder", default="", metavar="SPEC", help="Model of the new generation, e.g. openai:text-embedding-3-small.")
@click.option("--chunker", default="", metavar="SPEC", help="Chunker of the new generation, e.g. windows:256/32.")
@click.option("--option", "options", multiple=True, metavar="KEY=VALUE", help="Chunker option. Repeatable.")
@click.option("--accept-failures", is_flag=True, help="Let a generation answer in which documents failed; those answer no more, and are named.")
@wait_option
@dry_run_option
@json_option
def reindex(name: str, embedder: str, chunker: str, options: Sequence[str], accept_failures: bool, wait: bool, dry_run: bool, as_json: bool) -> None:
    """Build a collection anew from kept bytes; it answers as it is until the new build is whole.

    What is left out stays as it is. Where documents failed, asking again goes on with them alone.
    Exit code 3 when some documents failed.
    """
    given = pairs(options, "--option") if options else None
    with system() as opened:
        if dry_run:
            _would(opened.plan_reindex(name, embedder=embedder, chunker=chunker, options=given), as_json)
            return

        def begin() -> RunView:
            if accept_failures:
                return opened.accept_generation(name)
            return opened.reindex(name, embedder=embedder, chunker=chunker, options=given)

        calibrated = opened.collection(name).calibration is not None
        run, idle = _done(opened, begin, wait)
    _told(run, idle, as_json)
    if calibrated:
        note("the calibrated refusal threshold stays with the old generation: calibrate the new one with `dujiang eval calibrate`")


@click.command(epilog="Example: dujiang collections rollback handbook")
@click.argument("name")
@wait_option
@json_option
def rollback(name: str, wait: bool, as_json: bool) -> None:
    """Return to the build that answered before; what was deleted since stays deleted, what changed since is built first."""
    with system() as opened:
        run, idle = _done(opened, lambda: opened.rollback(name), wait)
    _told(run, idle, as_json)


def _done(opened: System, begin: Callable[[], RunView], wait: bool) -> tuple[RunView, bool]:
    """The run, and whether nobody is up to work on it."""
    from api.progress import Progress

    run = begin()
    if not wait:
        return run, not run.finished and not opened.status().up
    progress = Progress()
    try:
        return opened.wait(run, on_progress=progress, on_note=note), False
    finally:
        progress.end()


def _told(run: RunView, idle: bool, as_json: bool) -> None:
    from api.cli_ingest import balance, exit_code

    print_json(run) if as_json else balance(run)
    if idle:
        note("nothing is running that would work on it: start it with `dujiang up`")
    code = exit_code(run)
    if code:
        click.get_current_context().exit(code)


def _would(plan: ReindexView, as_json: bool) -> None:
    if as_json:
        print_json(plan)
        return
    about = "" if plan.sampled >= plan.documents else "about "
    click.echo(
        f"would build {plan.documents} documents with {clean(plan.chunker)} and {clean(plan.embedder)}: {about}{plan.new_chunks} chunks"
        f" ({plan.chunks} now), of which {about}{plan.to_embed} are embedded, {about}{plan.tokens} tokens"
    )
    if about:
        click.echo(f"told from {plan.sampled} of them")


@click.command(epilog="Example: dujiang collections generations handbook")
@click.argument("name")
@json_option
def generations(name: str, as_json: bool) -> None:
    """Every build of a collection that the store holds."""
    with system() as opened:
        found = opened.generations(name)
    if as_json:
        print_json({"data": list(found)})
        return
    listed(found)


def listed(found: Sequence[GenerationView]) -> None:
    """A line for each."""
    head = ("generation", "status", "chunker", "embedder", "created", "live", "retired")
    table(head, [(g.generation, g.status, g.chunker, g.embedder, g.created_at, g.live_at, g.retired_at) for g in found])
