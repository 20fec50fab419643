"""`dujiang ingest`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import click

from api.terminal import collection_option, dry_run_option, excerpt, json_option, note, print_json, system

if TYPE_CHECKING:
    from pipeline.contracts import Scalar
    from workers.views import FailureView, Incoming, RunView

_NUMBER = re.compile(r"-?(0|[1-9]\d{0,17})(\.\d+)?([eE][-+]?\d{1,3})?")


@click.command(epilog="Example: dujiang ingest ./handbook notes.zip 'reports/*.pdf' -c handbook --meta year=2024")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@collection_option
@click.option("--meta", multiple=True, metavar="KEY=VALUE", help="Metadata of every document; numbers and true/false are read as such. Repeatable.")
@click.option("--pages", default="", metavar="1-3,7", help="Only these pages.")
@click.option(
    "--content",
    type=click.Choice(["full", "article", "auto"]),
    help="Of web pages everything, the main content, or what seems right; full when left out.",
)
@click.option("--lane", type=click.Choice(["interactive", "bulk"]), help="Queue lane; interactive for a few documents when left out.")
@click.option("--no-wait", is_flag=True, help="Return when everything is in the queue.")
@dry_run_option
@json_option
def ingest(
    paths: Sequence[str],
    collection: str,
    meta: Sequence[str],
    pages: str,
    content: str | None,
    lane: str | None,
    no_wait: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Take in files, folders, globs, zip archives and manifests (.jsonl, a line per document).

    What is unchanged is recognised and left alone. When nothing is up, what is needed is started, and stopped at the end.
    Exit code 3 when some documents failed.
    """
    from api.incoming import listed
    from api.progress import Progress
    from api.system import Ingestion
    from pipeline.settings import load

    metadata = metadata_of(meta)
    items = listed(paths, max_bytes=load().settings.max_file_mb * 1_000_000)
    if dry_run:
        _would(collection, items, as_json)
        return
    options = {name: value for name, value in (("pages", pages), ("content", content)) if value}
    progress = Progress()
    with system() as opened:
        what = Ingestion(collection, items, lane or "", metadata, options, "command line", wait=not no_wait, on_progress=progress, on_note=note)
        try:
            run = opened.ingest(what)
        except KeyboardInterrupt:
            progress.end()
            if progress.run_id:
                note(f"{progress.run_id} is kept: it goes on with the next `dujiang ingest` or `up`; `dujiang runs cancel {progress.run_id}` ends it")
            raise
        finally:
            progress.end()
    print_json(run) if as_json else balance(run)
    code = exit_code(run)
    if code:
        click.get_current_context().exit(code)


def exit_code(run: RunView) -> int:
    """3 when some documents failed, 1 when the run did."""
    if run.failed:
        return 3
    return 1 if run.status == "failed" else 0


def balance(run: RunView) -> None:
    """The sum of a run, then its failures with reasons and cures."""
    took = f" in {run.duration_s:.1f} s" if run.duration_s is not None else ""
    if run.finished and run.discovered and run.unchanged == run.discovered:
        click.echo(f"nothing to do: all {run.unchanged} documents are unchanged ({run.run_id})")
        return
    click.echo(f"{click.style(run.status, bold=True)}{took}: {run.run_id}, collection {run.collection}")
    if run.finished:
        parts = " + ".join(f"{getattr(run, name)} {name}" for name in ("indexed", "unchanged", "skipped", "failed", "cancelled"))
        click.echo(f"{run.discovered} documents = {parts}; {run.chunks} chunks")
        calls = ", ".join(f"{count} {name}" for name, count in run.model_calls.items() if count)
        if calls:
            click.echo(f"model calls: {calls}")
    else:
        click.echo(f"{run.discovered} documents; follow it with: dujiang runs show {run.run_id}")
    for warning in run.warnings:
        note(f"warning: {warning}")
    if run.failures:
        click.echo(f"{click.style('failed', fg='red')}:")
        for failure in run.failures:
            show(failure)
    if run.failed > len(run.failures):
        click.echo(f"  and {run.failed - len(run.failures)} more: dujiang failures list -c {run.collection}")


def show(failure: FailureView) -> None:
    """Three lines: which document and where, why, and what to do."""
    click.echo(f"  {excerpt(failure.document, 200)}  [{failure.stage}, {failure.code}]")
    click.echo(f"    {excerpt(failure.detail, 400)}")
    click.echo(f"    → {excerpt(failure.hint, 400)}")


def _would(collection: str, items: Sequence[Incoming], as_json: bool) -> None:
    from pipeline.errors import PipelineError

    bad = [(item, item.problem) for item in items if isinstance(item.problem, PipelineError)]
    if as_json:
        rejected = [{"document": item.key, "code": problem.code, "detail": problem.detail, "hint": problem.hint} for item, problem in bad]
        documents = [item.key for item in items if item.problem is None]
        print_json({"dry_run": True, "collection": collection, "discovered": len(items), "documents": documents, "rejected": rejected})
        return
    click.echo(f"would take {len(items) - len(bad)} documents into {collection}; {len(bad)} cannot be read")
    for item, problem in bad:
        click.echo(f"  {excerpt(item.key, 200)}  [{problem.code}]\n    {problem.detail}\n    → {problem.hint}")


def metadata_of(pairs: Sequence[str]) -> dict[str, Scalar | list[str]]:
    """``key=value`` options, with values as JSON knows them.

    ``year=2024`` is a number, ``draft=true`` a truth value, ``tags=["a","b"]`` a list of strings, ``id="007"`` and
    anything else a string. Raises a usage error.
    """
    found = dict[str, "Scalar | list[str]"]()
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.strip():
            raise click.UsageError(f"--meta {pair!r} is not key=value.")
        found[name.strip()] = _value(text)
    return found


def _value(text: str) -> Scalar | list[str]:
    if text in {"true", "false"} or _NUMBER.fullmatch(text) or text.startswith(('"', "[")):
        try:
            value: object = json.loads(text)
        except ValueError:
            return text
        if isinstance(value, list):
            items = cast("list[object]", value)
            return [item for item in items if isinstance(item, str)] if all(isinstance(item, str) for item in items) else text
        return cast("Scalar", value)
    return text
