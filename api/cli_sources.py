"""`dujiang sources`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from api.results import Deleted
from api.terminal import (
    clean,
    confirm,
    dry_run_option,
    facts,
    json_option,
    more,
    note,
    page_options,
    print_json,
    still_to_do,
    system,
    table,
    yes_option,
)

if TYPE_CHECKING:
    from api.sourcing import SourceChange
    from workers.source_views import SourceView

ANY = {"ignore_unknown_options": True}
"""What a source is told depends on its kind: the kind's own options are read by hand."""
told_argument = click.argument("told", nargs=-1, type=click.UNPROCESSED, metavar="[--OPTION VALUE]...")


@click.group(epilog="Example: dujiang sources create wiki --kind folder -c handbook --path /srv/wiki --cron '0 2 * * *' --timezone Asia/Shanghai")
def sources() -> None:
    """Where documents come from again and again."""


def _schedule(required: bool):
    def add(function: click.decorators.FC) -> click.decorators.FC:
        hint = "" if required else " Left as it is when not given."
        function = click.option("--jitter", "jitter_s", type=float, metavar="SECONDS", help=f"Begin up to so much later.{hint}")(function)
        function = click.option("--timezone", metavar="NAME", help=f"Of the schedule, e.g. Asia/Shanghai.{hint}")(function)
        return click.option("--cron", metavar="FIELDS", help=f"When to sync by itself, e.g. '0 2 * * *'; '' for never.{hint}")(function)

    return add


@sources.command("kinds", epilog="Example: dujiang sources kinds")
@json_option
def list_kinds(as_json: bool) -> None:
    """What there is to connect to, and what each kind needs to be told."""
    with system() as opened:
        kinds = opened.sources.kinds()
    if as_json:
        print_json(kinds)
        return
    for kind in kinds:
        click.echo(f"{click.style(kind.name, bold=True)}  {clean(kind.about)}")
        for option in kind.options:
            marks = ", ".join(word for word, given in (("required", option.required), ("secret", option.secret)) if given)
            click.echo(f"  --{option.name.replace('_', '-'):<16} {clean(option.about)}{f' ({marks})' if marks else ''}")


@sources.command("list", epilog="Example: dujiang sources list --json")
@page_options(100)
@json_option
def list_sources(limit: int, after: str, as_json: bool) -> None:
    """All there are, by name."""
    with system() as opened:
        page = opened.sources.list(limit=limit, after=after)
    if as_json:
        print_json(page)
        return
    head = ("name", "kind", "collection", "status", "documents", "last sync", "next sync")
    table(head, [(v.name, v.kind, v.collection, v.status, v.documents, v.last_at, v.next_at) for v in page.data])
    more(page)


@sources.command(
    "create",
    context_settings=ANY,
    epilog="Example: dujiang sources create wiki --kind feishu -c handbook --folder-token fldcn… --app-id cli_… --app-secret env:FEISHU_SECRET",
)
@click.argument("name")
@click.option("--kind", required=True, help="E.g. feishu, yuque, web, folder; `dujiang sources kinds` lists them with their options.")
@click.option("-c", "--collection", required=True, metavar="NAME", help="Where its documents go.")
@_schedule(required=True)
@told_argument
@json_option
def create(
    name: str,
    kind: str,
    collection: str,
    cron: str | None,
    timezone: str | None,
    jitter_s: float | None,
    told: Sequence[str],
    as_json: bool,
) -> None:
    """A new source.

    Feishu takes --folder-token, --app-id and --app-secret, Yuque --user-id and --token, the web --entry-url and --max-pages, a folder --path.
    A value of the form env:NAME is read from that variable where the workers run; a single - is asked for without being shown.
    """
    change = _change(told, cron, timezone, jitter_s)
    with system() as opened:
        view = opened.sources.create(name, kind, collection, change)
    _shown(view, as_json)
    if not as_json:
        note(f"`dujiang sources validate {name}` tries it, `dujiang sources sync {name}` fetches what it holds")


@sources.command("show", epilog="Example: dujiang sources show wiki")
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """What it is told, how it stands, and when it is next."""
    with system() as opened:
        _shown(opened.sources.show(name), as_json)


@sources.command("update", context_settings=ANY, epilog="Example: dujiang sources update wiki --app-secret - --cron '30 1 * * *'")
@click.argument("name")
@_schedule(required=False)
@click.option("--forget-deleted", is_flag=True, help="Documents that people deleted here may come back with the next sync.")
@told_argument
@json_option
def update(
    name: str,
    cron: str | None,
    timezone: str | None,
    jitter_s: float | None,
    forget_deleted: bool,
    told: Sequence[str],
    as_json: bool,
) -> None:
    """Change what is given, and leave the rest. New credentials let a source that was stopped go on."""
    change = _change(told, cron, timezone, jitter_s, forget_deleted)
    with system() as opened:
        _shown(opened.sources.update(name, change), as_json)


@sources.command("delete", epilog="Example: dujiang sources delete wiki --keep-documents --yes")
@click.argument("name")
@click.option("--keep-documents", is_flag=True, help="They stay, and belong to no source.")
@yes_option
@dry_run_option
@json_option
def delete(name: str, keep_documents: bool, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Delete a source with its documents."""
    with system() as opened:
        view = opened.sources.show(name)
        number = view.documents + view.hidden
        found = Deleted(False, name, 0 if keep_documents else number, kept=number if keep_documents else 0)
        if not dry_run:
            confirm(f"Delete the source {name}, and {'keep' if keep_documents else 'delete'} its {number} documents?", yes=yes)
            found = opened.sources.delete(name, keep_documents=keep_documents)
    if as_json:
        print_json(asdict(found) | {"dry_run": dry_run})
        return
    stay = f"{found.kept} documents stay" if keep_documents else f"{found.documents} documents with it"
    click.echo(f"{'would delete' if dry_run else 'deleted'} {clean(name)}; {stay}")
    still_to_do(found.outstanding)


@sources.command("validate", epilog="Example: dujiang sources validate wiki")
@click.argument("name")
@json_option
def validate(name: str, as_json: bool) -> None:
    """Try the credentials, and name what is missing. Exit code 1 when something is."""
    with system() as opened:
        checks = opened.sources.validate(name)
    if as_json:
        print_json(checks)
    for check in checks if not as_json else ():
        click.echo(f"{click.style('ok', fg='green') if check.ok else click.style('missing', fg='red')}  {clean(check.name)}  {clean(check.detail)}")
        if not check.ok and check.hint:
            click.echo(f"    → {clean(check.hint)}")
    if not all(check.ok for check in checks):
        click.get_current_context().exit(1)


@sources.command("sync", epilog="Example: dujiang sources sync wiki --full")
@click.argument("name")
@click.option("--full", is_flag=True, help="Fetch everything again, whatever the source says has changed.")
@click.option("--no-wait", is_flag=True, help="Return when the run is in the ledger.")
@json_option
def sync(name: str, full: bool, no_wait: bool, as_json: bool) -> None:
    """List what the source holds now, and take in what is new or changed.

    While a sync is under way, that one is followed. When nothing is up, what is needed is started, and stopped at the end.
    Exit code 3 when some documents failed.
    """
    from api.cli_ingest import balance, exit_code
    from api.progress import Progress

    progress = Progress()
    with system() as opened:
        try:
            run = opened.sync(name, full=full, wait=not no_wait, on_progress=progress, on_note=note)
        finally:
            progress.end()
        stopped = opened.sources.show(name).last_error if run.status == "paused" else ""
    print_json(run) if as_json else balance(run)
    if stopped:
        note(f"it waits: {stopped}")
    code = 1 if run.status == "paused" else exit_code(run)
    if code:
        click.get_current_context().exit(code)


@sources.command("status", epilog="Example: dujiang sources status wiki")
@click.argument("name")
@json_option
def status(name: str, as_json: bool) -> None:
    """A source with its last run, and its documents by status."""
    from api.cli_ingest import balance

    with system() as opened:
        view = opened.sources.status(name)
    if as_json:
        print_json(view)
        return
    _shown(view.source, False)
    if view.documents:
        click.echo("documents: " + ", ".join(f"{number} {state}" for state, number in sorted(view.documents.items())))
    if view.run is not None:
        balance(view.run)


@sources.command("pause", epilog="Example: dujiang sources pause wiki")
@click.argument("name")
@json_option
def pause(name: str, as_json: bool) -> None:
    """Stop listing and downloading; what is under way stops where it stands."""
    with system() as opened:
        _shown(opened.sources.pause(name), as_json)


@sources.command("resume", epilog="Example: dujiang sources resume wiki")
@click.argument("name")
@json_option
def resume(name: str, as_json: bool) -> None:
    """Go on from where it stood."""
    with system() as opened:
        _shown(opened.sources.resume(name), as_json)


@sources.command("prune", epilog="Example: dujiang sources prune wiki --approve")
@click.argument("name")
@click.option("--approve", is_flag=True, help="Delete them.")
@page_options(100)
@json_option
def prune(name: str, approve: bool, limit: int, after: str, as_json: bool) -> None:
    """List the documents that the source no longer has; with --approve, delete them, however many they are."""
    with system() as opened:
        if approve:
            number = opened.sources.prune(name)
            print_json({"deleted": True, "id": name, "documents": number}) if as_json else click.echo(f"deleted {number} documents")
            return
        page = opened.sources.absent(name, limit=limit, after=after)
    if as_json:
        print_json(page)
        return
    table(("document", "title", "why"), [(item.document, item.title, item.evidence) for item in page.data])
    more(page)


def _change(told: Sequence[str], cron: str | None, timezone: str | None, jitter_s: float | None, forget_deleted: bool = False) -> SourceChange:
    from api.sourcing import SourceChange

    return SourceChange(_options(told), cron, timezone, jitter_s, forget_deleted)


def _options(told: Sequence[str]) -> dict[str, str]:
    """``--folder-token X --app-id=Y`` as options. Raises a usage error naming what is no such pair."""
    found: dict[str, str] = {}
    words = iter(told)
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not name:
            raise click.UsageError(f"Got an unexpected argument {word!r}: what a source is told looks like --folder-token VALUE.")
        if not equals:
            following = next(words, None)
            if following is None:
                raise click.UsageError(f"Option {word!r} requires a value.")
            value = following
        if value == "-":
            value = str(click.prompt(name.replace("-", " "), hide_input=True, err=True))
        found[name.replace("-", "_")] = value
    return found


def _shown(view: SourceView, as_json: bool) -> None:
    if as_json:
        print_json(view)
        return
    names = ("name", "kind", "collection", "status", "documents", "hidden", "deleted_here", "held", "cron", "timezone", "next_at", "last_at")
    facts([(item, getattr(view, item)) for item in (*names, "last_run_id", "last_error") if getattr(view, item) not in ("", 0, None)])
    for name, value in {**view.options, **view.secrets}.items():
        click.echo(f"  {clean(name)} = {clean(value)}")
