"""`dujiang collections` and `dujiang documents`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from api import cli_generations, cli_steering
from api.cli_tuning import NAMES, changed, told, tuning_options
from api.results import Deleted
from api.terminal import (
    clean,
    collection_option,
    confirm,
    dry_run_option,
    facts,
    json_option,
    more,
    page_options,
    pairs,
    print_json,
    still_to_do,
    system,
    table,
    yes_option,
)


@click.group(epilog="Example: dujiang collections list")
def collections() -> None:
    """List, create, show, delete collections."""


@collections.command("list", epilog="Example: dujiang collections list --json")
@page_options(100)
@json_option
def list_collections(limit: int, after: str, as_json: bool) -> None:
    """All there are."""
    with system() as opened:
        page = opened.collections(limit=limit, after=after)
    if as_json:
        print_json(page)
        return
    head = ("name", "documents", "chunks", "chunker", "embedder", "revision", "created")
    table(head, [(v.name, v.documents, v.chunks, v.chunker, v.embedder, v.revision, v.created_at) for v in page.data])
    more(page)


@collections.command("create", epilog="Example: dujiang collections create handbook --chunker sections:400/0 --option delimiter='\\n'")
@click.argument("name")
@click.option("--chunker", default="", metavar="SPEC", help="E.g. sections or windows:256/32.")
@click.option("--embedder", default="", metavar="SPEC", help="E.g. local or openai:MODEL.")
@click.option("--option", "options", multiple=True, metavar="KEY=VALUE", help="Chunker option: chunk_token_num, delimiter. Repeatable.")
@tuning_options
@json_option
def create(name: str, chunker: str, embedder: str, options: Sequence[str], as_json: bool, **tuning: object) -> None:
    """A new collection; what is left out is taken from the settings."""
    given = pairs(options, "--option")
    with system() as opened:
        view = opened.create_collection(name, chunker=chunker, embedder=embedder, options=given)
        changes = changed(tuning)
        view = opened.tune_collection(name, changes) if changes else view
    if as_json:
        print_json(view)
    else:
        click.echo(f"{view.name}: chunker {view.chunker}, embedder {view.embedder}")


@collections.command("update", epilog="Example: dujiang collections update handbook --top-k 6 --merge rrf --widen 1 --unset score_threshold")
@click.argument("name")
@tuning_options
@click.option("--unset", multiple=True, type=click.Choice(NAMES), metavar="SETTING", help="Back to the default. Repeatable.")
@json_option
def update(name: str, unset: Sequence[str], as_json: bool, **tuning: object) -> None:
    """Change how a collection is searched. What comes with a question wins over these settings."""
    changes = changed(tuning) | dict.fromkeys(unset)
    if not changes:
        raise click.UsageError("nothing to change: give at least one setting")
    with system() as opened:
        view = opened.tune_collection(name, changes)
    print_json(view) if as_json else facts(told(view))


@collections.command("show", epilog="Example: dujiang collections show handbook")
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """What it was built with, how much it holds, and which builds of it are kept."""
    with system() as opened:
        view, builds = opened.collection(name), opened.generations(name)
    if as_json:
        print_json(asdict(view) | {"generations": list(builds)})
        return
    names = ("name", "documents", "chunks", "chunker", "embedder", "dimension", "store_url", "generation", "revision", "created_at")
    facts([*((item, getattr(view, item)) for item in names), *told(view)])
    if len(builds) > 1:
        click.echo()
        cli_generations.listed(builds)


@collections.command("delete", epilog="Example: dujiang collections delete handbook --yes")
@click.argument("name")
@yes_option
@dry_run_option
@json_option
def delete(name: str, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Delete a collection with all its documents."""
    with system() as opened:
        view = opened.collection(name)
        if not dry_run:
            confirm(f"Delete {name} with {view.documents} documents?", yes=yes)
        found = Deleted(False, name, view.documents, view.chunks) if dry_run else opened.delete_collection(name)
    if as_json:
        print_json(asdict(found) | {"dry_run": dry_run})
        return
    click.echo(f"{'would delete' if dry_run else 'deleted'} {clean(name)} with {found.documents} documents, {found.chunks} chunks")
    still_to_do(found.outstanding)


for _verb in (
    cli_steering.pause,
    cli_steering.resume,
    cli_steering.cancel,
    cli_generations.reindex,
    cli_generations.rollback,
    cli_generations.generations,
):
    collections.add_command(_verb)


@click.group(epilog="Example: dujiang documents list -c handbook")
def documents() -> None:
    """List, show, delete documents."""


@documents.command("list", epilog="Example: dujiang documents list -c handbook --status done")
@collection_option
@click.option("--status", default="", help="ready, queued, leased, retry, done, dead, cancelled, skipped.")
@page_options(100)
@json_option
def list_documents(collection: str, status: str, limit: int, after: str, as_json: bool) -> None:
    """One entry per document."""
    with system() as opened:
        page = opened.documents(collection, status=status, limit=limit, after=after)
    if as_json:
        print_json(page)
        return
    head = ("id", "title", "status", "stage", "chunks", "bytes", "media type", "document")
    table(head, [(v.document_id, v.title, v.status, v.stage, v.chunks, v.bytes, v.media_type, v.document) for v in page.data])
    more(page)


def identity(collection: str, name: str) -> str:
    """A document's id, from the id itself, a path on this machine, or the key it was given."""
    if re.fullmatch(r"[0-9a-f]{32}", name):
        return name
    from pipeline.identity import document_id

    path = Path(name)
    key = f"file://{path.resolve()}" if path.exists() else name
    return document_id("default", collection, key)


@documents.command("show", epilog="Example: dujiang documents show ./handbook/travel.md -c handbook")
@click.argument("document", metavar="DOCUMENT")
@collection_option
@click.option("--no-text", is_flag=True, help="Without the parsed text.")
@json_option
def show_document(document: str, collection: str, no_text: bool, as_json: bool) -> None:
    """Where a document stands, with its parsed text. DOCUMENT is an id, a path, or a key."""
    with system() as opened:
        view = opened.document(collection, identity(collection, document), text=not no_text)
    if as_json:
        print_json(view)
        return
    names = ("document_id", "document", "title", "url", "media_type", "status", "stage", "version", "chunks", "bytes", "updated_at")
    facts([(item, getattr(view, item)) for item in names])
    for key, value in view.metadata.items():
        click.echo(f"  {clean(key)} = {clean(str(value))}")
    if view.failure is not None:
        from api.cli_ingest import show as show_failure

        show_failure(view.failure)
    if view.text is not None:
        click.echo(f"\n{clean(view.text)}")


@documents.command("delete", epilog="Example: dujiang documents delete ./handbook/old.md -c handbook --yes")
@click.argument("document", nargs=-1, required=True, metavar="DOCUMENT...")
@collection_option
@yes_option
@dry_run_option
@json_option
def delete_documents(document: Sequence[str], collection: str, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Delete documents from the index. Each is an id, a path, or a key; unknown ones are an error before any is deleted."""
    with system() as opened:
        views = [opened.document(collection, identity(collection, name), text=False) for name in document]
        ids = list(dict.fromkeys(view.document_id for view in views))
        found = Deleted(False, collection, len(ids), sum(view.chunks for view in views))
        if not dry_run:
            confirm(f"Delete {len(ids)} documents from {collection}?", yes=yes)
            found = opened.delete_documents(collection, ids)
    if as_json:
        counts = {"documents": found.documents, "chunks": found.chunks, "outstanding": found.outstanding}
        print_json({"deleted": not dry_run, "dry_run": dry_run, "ids": ids, **counts})
        return
    for view in views:
        click.echo(f"{'would delete' if dry_run else 'deleted'} {clean(view.document)}")
    click.echo(f"{found.documents} documents, {found.chunks} chunks")
    still_to_do(found.outstanding)
