"""`dujiang collections reindex`, `rollback` and `generations`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from api.terminal import clean, dry_run_option, json_option, print_json, system, table

if TYPE_CHECKING:
    from workers.views import RunView


@click.command(epilog="Example: dujiang collections reindex handbook --chunker sections:400/0")
@click.argument("name")
@click.option("--embedder", default="", help="Model of the new generation, e.g. openai:text-embedding-3-small.")
@click.option("--chunker", default="", help="Chunker of the new generation, e.g. windows:256/32.")
@click.option("--option", "options", multiple=True, metavar="KEY=VALUE", help="Chunker options; may be repeated.")
@click.option("--accept-failures", is_flag=True, help="Let a generation answer in which documents failed; those answer no more.")
@dry_run_option
@json_option
def reindex(name: str, embedder: str, chunker: str, options: Sequence[str], accept_failures: bool, dry_run: bool, as_json: bool) -> None:
    """Build a collection anew from kept bytes; it answers as it is until the new build is whole."""
    given = _pairs(options)
    with system() as opened:
        if dry_run:
            plan = opened.plan_reindex(name, embedder=embedder, chunker=chunker, options=given)
            if as_json:
                print_json(plan)
            else:
                click.echo(f"would build {plan.documents} documents ({plan.chunks} chunks now) with {clean(plan.chunker)} and {clean(plan.embedder)}")
            return
        if accept_failures:
            run = opened.accept_generation(name)
        else:
            run = opened.reindex(name, embedder=embedder, chunker=chunker, options=given)
        idle = not run.finished and not opened.status().up
    _told(run, idle, as_json)


def _pairs(options: Sequence[str]) -> dict[str, str] | None:
    if not options:
        return None
    for option in options:
        if "=" not in option:
            raise click.UsageError(f"{option!r} is not KEY=VALUE.")
    return {key: value for key, _, value in (option.partition("=") for option in options)}


def _told(run: RunView, idle: bool, as_json: bool) -> None:
    if as_json:
        print_json(run)
        return
    click.echo(f"{run.run_id}: {run.status}, {run.discovered} documents: dujiang runs show {run.run_id}")
    if idle:
        click.echo("nothing is up that would work on it: dujiang up")


@click.command(epilog="Example: dujiang collections rollback handbook")
@click.argument("name")
@json_option
def rollback(name: str, as_json: bool) -> None:
    """Return to the build that answered before; what was deleted since stays deleted, what changed since is built first."""
    with system() as opened:
        run = opened.rollback(name)
        idle = not run.finished and not opened.status().up
    _told(run, idle, as_json)


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
    head = ("generation", "status", "chunker", "embedder", "created", "live", "retired")
    table(head, [(g.generation, g.status, g.chunker, g.embedder, g.created_at, g.live_at, g.retired_at) for g in found])
