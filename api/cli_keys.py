"""`dujiang keys`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from api.terminal import collections_option, confirm, dry_run_option, json_option, note, print_json, system, table, yes_option


@click.group(epilog="Example: dujiang keys create reader -c handbook --permission read")
def keys() -> None:
    """API keys. As soon as one exists, the HTTP API asks for one on this machine too."""


@keys.command("create", epilog="Example: dujiang keys create reader -c handbook --permission read")
@click.argument("name")
@collections_option
@click.option(
    "--permission",
    "permissions",
    multiple=True,
    type=click.Choice(["read", "write", "admin"]),
    default=("read", "write"),
    show_default=True,
    help="Repeatable.",
)
@json_option
def create(name: str, collections: Sequence[str], permissions: Sequence[str], as_json: bool) -> None:
    """A new key. Its secret is shown this once; only a hash of it is kept."""
    with system() as opened:
        view = opened.create_key(name, collections=collections, permissions=permissions)
    if as_json:
        print_json(view)
        return
    click.echo(view.key or "")
    note(f"{view.key_id}: {', '.join(view.permissions)} on {', '.join(view.collections) or 'every collection'}; this is the only time it is shown")


@keys.command("list", epilog="Example: dujiang keys list")
@json_option
def list_keys(as_json: bool) -> None:
    """All keys, without their secrets."""
    with system() as opened:
        views = opened.keys()
    if as_json:
        first, last = (views[0].key_id, views[-1].key_id) if views else (None, None)
        print_json({"data": list(views), "first_id": first, "last_id": last, "has_more": False})
        return
    head = ("id", "name", "permissions", "collections", "created", "last used", "revoked")
    rows = [(v.key_id, v.name, v.permissions, v.collections or "all", v.created_at, v.last_used_at, v.revoked_at) for v in views]
    table(head, rows)


@keys.command("revoke", epilog="Example: dujiang keys revoke KEY_ID --yes")
@click.argument("key_id")
@yes_option
@dry_run_option
@json_option
def revoke(key_id: str, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Refuse a key from now on."""
    with system() as opened:
        known = [view for view in opened.keys() if view.key_id == key_id]
        if not known:
            from pipeline.errors import NotFound

            raise NotFound(f"there is no key {key_id!r}", hint="`dujiang keys list` shows those there are.")
        if not dry_run:
            confirm(f"Revoke the key {known[0].name}?", yes=yes)
            opened.revoke_key(key_id)
    if as_json:
        print_json({"revoked": not dry_run, "dry_run": dry_run, "id": key_id})
    else:
        click.echo(f"{'would revoke' if dry_run else 'revoked'} {key_id} ({known[0].name})")
