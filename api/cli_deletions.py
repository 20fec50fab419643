"""`dujiang deletions`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, TextIO

import click

from api.terminal import confirm, dry_run_option, json_option, print_json, still_to_do, system, table, yes_option
from pipeline.errors import BadRequest

if TYPE_CHECKING:
    from api.system import System
    from workers.views import ReplayedView, TombstoneView

PAGE = 1000
"""Entries of one request."""


@click.group(epilog="Example: dujiang deletions list")
def deletions() -> None:
    """What deletions have left to be done, and deletions done again after a restore."""


@deletions.command("list", epilog="Example: dujiang deletions list --json")
@json_option
def list_deletions(as_json: bool) -> None:
    """What still holds something of what was deleted; nobody is shown it any more."""
    with system() as opened:
        found = opened.outstanding()
    if as_json:
        print_json({"data": list(found)})
    elif found:
        table(("what", "number", "since"), [(one.what, one.number, one.since) for one in found])
    else:
        click.echo("nothing holds anything of what was deleted")


@deletions.command("export", epilog="Example: dujiang deletions export > deletions.jsonl")
@json_option
def export(as_json: bool) -> None:
    """Write what was ever deleted, a line of JSON each, to be kept beside backups: ids and times, no names and no content."""
    with system() as opened:
        entries = [asdict(one) for one in _all(opened)]
    if as_json:
        print_json({"data": entries})
        return
    for entry in entries:
        click.echo(json.dumps(entry))


@deletions.command("replay", epilog="Example: dujiang deletions replay deletions.jsonl --dry-run")
@click.argument("file", type=click.File("r", encoding="utf-8"))
@dry_run_option
@yes_option
@json_option
def replay(file: TextIO, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Delete again, in a system that was restored, what was deleted after its backup. What came later stays; safe to repeat.

    FILE is what `deletions export` wrote; - reads it from standard input.
    """
    entries = list(_read(file))
    with system() as opened:
        found = _replayed(opened, entries, dry_run=True)
        if not dry_run:
            confirm(f"Delete {_sum(found)}?", yes=yes)
            found = _replayed(opened, entries, dry_run=False)
    if as_json:
        print_json(found)
        return
    click.echo(f"{'would delete' if dry_run else 'deleted'} {_sum(found)}")
    still_to_do(found.outstanding)


def _sum(found: ReplayedView) -> str:
    return f"{found.tenants} tenants, {len(found.collections)} collections, {len(found.sources)} sources and {found.documents} documents"


def _all(opened: System) -> Iterator[TombstoneView]:
    after = ""
    while True:
        page = opened.tombstones(limit=PAGE, after=after)
        yield from page
        documents = [one.id for one in page if one.kind == "document"]
        if len(documents) < PAGE:
            return
        after = documents[-1]


def _read(file: TextIO) -> Iterator[TombstoneView]:
    from api.results import decode
    from workers.views import TombstoneView

    for number, line in enumerate(file, start=1):
        try:
            value = json.loads(line) if line.strip() else None
        except ValueError as error:
            raise BadRequest(f"line {number} is not JSON", hint="Give a file that `dujiang deletions export` wrote.") from error
        if value is not None:
            yield decode(TombstoneView, value)


def _replayed(opened: System, entries: list[TombstoneView], *, dry_run: bool) -> ReplayedView:
    """In pieces, since a request has a limit. Everything that is not a document stands in front."""
    from workers.views import ReplayedView

    ordered = sorted(entries, key=lambda one: one.kind == "document")
    found = [opened.replay_deletions(ordered[at : at + PAGE], dry_run=dry_run) for at in range(0, len(ordered), PAGE)]
    return ReplayedView(
        dry_run,
        sum(one.tenants for one in found),
        tuple(name for one in found for name in one.collections),
        tuple(name for one in found for name in one.sources),
        sum(one.documents for one in found),
        found[-1].outstanding if found else (),
    )
