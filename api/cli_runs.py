"""`dujiang runs`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from api.terminal import collections_option, json_option, more, over, page_options, print_json, system, table

if TYPE_CHECKING:
    from workers.views import RunView

OUTCOMES = ("pending", "indexed", "unchanged", "skipped", "failed", "cancelled")


@click.group(epilog="Example: dujiang runs list -c handbook")
def runs() -> None:
    """The balance of each run."""


@runs.command("list", epilog="Example: dujiang runs list -c handbook --limit 5 --json")
@collections_option
@page_options(20)
@json_option
def list_runs(collections: Sequence[str], limit: int, after: str, as_json: bool) -> None:
    """Newest first."""
    with system() as opened:
        page = over(collections, lambda name: opened.runs(collection=name, limit=limit, after=after))
    if as_json:
        print_json(page)
        return
    head = ("run", "collection", "status", "started", "discovered", "indexed", "unchanged", "skipped", "failed", "cancelled")
    table(
        head,
        [(r.run_id, r.collection, r.status, r.started_at, r.discovered, r.indexed, r.unchanged, r.skipped, r.failed, r.cancelled) for r in page.data],
    )
    more(page)


@runs.command("show", epilog="Example: dujiang runs show RUN --items failed")
@click.argument("run_id", metavar="RUN")
@click.option("--items", type=click.Choice((*OUTCOMES, "all")), help="List the documents behind a number instead.")
@page_options(100)
@json_option
def show_run(run_id: str, items: str | None, limit: int, after: str, as_json: bool) -> None:
    """A run's balance, or the documents behind one of its numbers."""
    with system() as opened:
        if items is None:
            _shown(opened.run(run_id), as_json)
            return
        page = opened.run_items(run_id, outcome="" if items == "all" else items, limit=limit, after=after)
    if as_json:
        print_json(page)
        return
    table(("document", "outcome", "detail", "id"), [(item.document, item.outcome, item.detail, item.document_id) for item in page.data])
    more(page)


def _shown(run: RunView, as_json: bool) -> None:
    if as_json:
        print_json(run)
        return
    from api.cli_ingest import balance
    from api.progress import line

    balance(run)
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
