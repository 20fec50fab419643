"""`dujiang runs`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from api.terminal import collections_option, json_option, more, over, page_options, print_json, system, table

if TYPE_CHECKING:
    from workers.views import RunView

STAGES = ("load", "parse", "chunk", "embed", "index")
OUTCOMES = ("pending", "indexed", "unchanged", "skipped", "failed", "cancelled")


@click.group(epilog="Example: dujiang runs list -c handbook")
def runs() -> None:
    """The balance of each run."""


@runs.command("list", epilog="Example: dujiang runs list -c handbook --limit 5 --json")
@collections_option
@click.option("--source", default="", metavar="NAME", help="Only of this source.")
@page_options(20)
@json_option
def list_runs(collections: Sequence[str], source: str, limit: int, after: str, as_json: bool) -> None:
    """Newest first."""
    with system() as opened:
        page = over(collections, lambda name: opened.runs(collection=name, source=source, limit=limit, after=after))
    if as_json:
        print_json(page)
        return
    head = ("run", "collection", "status", "started", "discovered", "indexed", "unchanged", "skipped", "failed", "cancelled")
    table(
        head,
        [(r.run_id, r.collection, r.status, r.started_at, r.discovered, r.indexed, r.unchanged, r.skipped, r.failed, r.cancelled) for r in page.data],
    )
    more(page)


@runs.command("show", epilog="Example: dujiang runs show RUN --outcome failed --stage embed")
@click.argument("run_id", metavar="RUN")
@click.option("--outcome", "--items", "items", type=click.Choice((*OUTCOMES, "all")), help="List the documents behind a number instead.")
@click.option("--stage", type=click.Choice(STAGES), help="List those that ended, or are, at this stage.")
@page_options(100)
@json_option
def show_run(run_id: str, items: str | None, stage: str | None, limit: int, after: str, as_json: bool) -> None:
    """A run's balance, or the documents behind one of its numbers."""
    with system() as opened:
        if items is None and stage is None:
            _shown(opened.run(run_id), as_json)
            return
        page = opened.run_items(run_id, outcome="" if items in (None, "all") else items, stage=stage or "", limit=limit, after=after)
    if as_json:
        print_json(page)
        return
    rows = [(item.document, item.outcome, item.stage, item.detail, item.document_id) for item in page.data]
    table(("document", "outcome", "stage", "detail", "id"), rows)
    more(page)


def _shown(run: RunView, as_json: bool) -> None:
    if as_json:
        print_json(run)
        return
    from api.cli_ingest import balance
    from api.progress import line

    balance(run)
    told = [(stage, *(outcomes.get(name, 0) for name in OUTCOMES[1:])) for stage, outcomes in run.balance.items()]
    if len(told) > 1:
        table(("ended at", *OUTCOMES[1:]), told)
    if not run.finished:
        click.echo(line(run, None))


def _steer(verb: str, run_id: str, as_json: bool) -> None:
    with system() as opened:
        run: RunView = getattr(opened, verb)(run_id)
    _shown(run, as_json)


@runs.command(epilog="Example: dujiang runs cancel RUN")
@click.argument("run_id", metavar="RUN")
@json_option
def cancel(run_id: str, as_json: bool) -> None:
    """Cancel what is not done yet; what is indexed stays."""
    _steer("cancel", run_id, as_json)


@runs.command(epilog="Example: dujiang runs pause RUN")
@click.argument("run_id", metavar="RUN")
@json_option
def pause(run_id: str, as_json: bool) -> None:
    """Start no more documents of this run."""
    _steer("pause", run_id, as_json)


@runs.command(epilog="Example: dujiang runs resume RUN")
@click.argument("run_id", metavar="RUN")
@json_option
def resume(run_id: str, as_json: bool) -> None:
    """Go on with a paused run."""
    _steer("resume", run_id, as_json)
