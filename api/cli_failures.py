"""`dujiang failures`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from api.terminal import (
    clean,
    collections_option,
    confirm,
    dry_run_option,
    facts,
    json_option,
    more,
    over,
    page_options,
    print_json,
    system,
    table,
    yes_option,
)

if TYPE_CHECKING:
    from workers.views import LettersView, Selection

F = TypeVar("F", bound=Callable[..., Any])
STAGES = ("load", "parse", "chunk", "embed", "index")


@click.group(epilog="Example: dujiang failures list -c handbook")
def failures() -> None:
    """Documents that could not be taken in, with reason and cure."""


@failures.command("list", epilog="Example: dujiang failures list -c handbook --code malformed")
@collections_option
@click.option("--run", "run_id", default="", metavar="RUN", help="Only of this run.")
@click.option("--code", default="", help="Only with this code.")
@click.option("--stage", type=click.Choice(STAGES), help="Only what failed there.")
@page_options(100)
@json_option
def list_failures(collections: Sequence[str], run_id: str, code: str, stage: str | None, limit: int, after: str, as_json: bool) -> None:
    """One entry per document."""
    where = {"run_id": run_id, "code": code, "stage": stage or ""}
    with system() as opened:
        page = over(collections, lambda name: opened.failures(collection=name, **where, limit=limit, after=after))
    if as_json:
        print_json(page)
        return
    from api.cli_ingest import show

    if not page.data:
        click.echo("no failures")
    for failure in page.data:
        show(failure)
        click.echo(f"    {failure.document_id}  attempts {failure.attempts}")
    more(page)


@failures.command("show", epilog="Example: dujiang failures show DOCUMENT_ID --traceback")
@click.argument("document_id")
@click.option("--traceback", is_flag=True, help="Where in the software it happened, if it was a bug.")
@json_option
def show_failure(document_id: str, traceback: bool, as_json: bool) -> None:
    """Reason, cure and every attempt of one."""
    with system() as opened:
        failure = opened.failure(document_id)
    if as_json:
        print_json(failure)
        return
    names = ("document", "document_id", "collection", "run_id", "stage", "code", "attempts", "at")
    facts([(name, getattr(failure, name)) for name in names])
    click.echo(f"\n{clean(failure.detail)}\n→ {clean(failure.hint)}")
    if failure.history:
        click.echo()
        head = ("at", "run", "stage", "outcome", "code", "detail", "worker", "version")
        table(head, [(one.at, one.run_id, one.stage, one.outcome, one.code, one.detail, one.worker, one.code_version) for one in failure.history])
    if failure.traceback and traceback:
        click.echo(f"\n{clean(failure.traceback)}")
    elif failure.traceback:
        click.echo("\nit was a bug: --traceback shows where")


def _selecting(function: F) -> F:
    """Documents by id, or everything that the options name."""
    for option in (
        click.option("--stage", type=click.Choice(STAGES), help="Only what failed there."),
        click.option("--code", default="", help="Only with this code."),
        click.option("--run", "run_id", default="", metavar="RUN", help="Only of this run."),
        collections_option,
        click.argument("document_ids", nargs=-1, metavar="[DOCUMENT_ID]..."),
    ):
        function = option(function)
    return function


def _selection(document_ids: Sequence[str], collections: Sequence[str], run_id: str, code: str, stage: str | None) -> Selection:
    from workers.views import Selection

    return Selection(document_ids=tuple(document_ids), collections=tuple(collections), run_id=run_id, code=code, stage=stage or "")


def _act(verb: str, chosen: Selection, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    with system() as opened:
        found = opened.selected_failures(chosen)
        if not dry_run and found.documents:
            if len(chosen.document_ids) != found.documents:
                confirm(f"{verb.capitalize()} {found.documents} failed documents?", yes=yes)
            found = opened.replay_failures(chosen) if verb == "replay" else opened.discard_failures(chosen)
        idle = bool(found.runs) and not opened.status().up
    if as_json:
        print_json(found)
        return
    _told(verb, found, dry_run=dry_run, idle=idle)


def _told(verb: str, found: LettersView, *, dry_run: bool, idle: bool) -> None:
    if not found.documents:
        click.echo("no failures")
        return
    for name, number in found.collections.items():
        click.echo(f"{'would ' if dry_run else ''}{verb} {number} in {clean(name)}")
    for run in found.runs:
        click.echo(f"started {run.run_id}: dujiang runs show {run.run_id}")
    if found.runs and idle:
        click.echo("nothing is up that would work on it: dujiang up")


@failures.command(epilog="Example: dujiang failures replay --code unavailable -c handbook")
@_selecting
@dry_run_option
@yes_option
@json_option
def replay(
    document_ids: Sequence[str], collections: Sequence[str], run_id: str, code: str, stage: str | None, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Try again, from the stage that failed, as a run of its own."""
    _act("replay", _selection(document_ids, collections, run_id, code, stage), dry_run=dry_run, yes=yes, as_json=as_json)


@failures.command(epilog="Example: dujiang failures discard DOCUMENT_ID")
@_selecting
@dry_run_option
@yes_option
@json_option
def discard(
    document_ids: Sequence[str], collections: Sequence[str], run_id: str, code: str, stage: str | None, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Take off the list. What answers goes on answering; the next ingest takes the document up again."""
    _act("discard", _selection(document_ids, collections, run_id, code, stage), dry_run=dry_run, yes=yes, as_json=as_json)
