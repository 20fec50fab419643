"""Collections held back, and `dujiang tenants`."""

from __future__ import annotations

import click

from api.terminal import clean, confirm, dry_run_option, json_option, print_json, still_to_do, system, table, yes_option


@click.command(epilog="Example: dujiang collections pause handbook")
@click.argument("name")
@json_option
def pause(name: str, as_json: bool) -> None:
    """Begin nothing new for a collection; what is under way finishes its stage."""
    _hold(name, as_json, paused=True)


@click.command(epilog="Example: dujiang collections resume handbook")
@click.argument("name")
@json_option
def resume(name: str, as_json: bool) -> None:
    """Go on with a paused collection."""
    _hold(name, as_json, paused=False)


def _hold(name: str, as_json: bool, *, paused: bool) -> None:
    with system() as opened:
        opened.hold_collection(name, paused=paused)
    if as_json:
        print_json({"collection": name, "paused": paused})
    else:
        click.echo(f"{clean(name)} is {'paused' if paused else 'going on'}")


@click.command(epilog="Example: dujiang collections cancel handbook")
@click.argument("name")
@json_option
def cancel(name: str, as_json: bool) -> None:
    """Cancel every run of a collection that has not ended; what is indexed stays."""
    with system() as opened:
        stopped = opened.cancel_collection(name)
    if as_json:
        print_json({"data": list(stopped)})
        return
    for run in stopped:
        click.echo(f"cancelled {run.run_id}: {run.cancelled} documents")
    if not stopped:
        click.echo("nothing was under way")


@click.group(epilog="Example: dujiang tenants list")
def tenants() -> None:
    """Shares of tenants in the workers."""


@tenants.command("list", epilog="Example: dujiang tenants list --json")
@json_option
def list_tenants(as_json: bool) -> None:
    """Every tenant with its weight."""
    with system() as opened:
        found = opened.tenants()
    if as_json:
        print_json({"data": list(found)})
    else:
        table(("tenant", "weight", "batches at once"), [(one.name, f"{one.weight:g}", one.most or "any") for one in found])


@tenants.command("set", epilog="Example: dujiang tenants set acme --weight 3")
@click.argument("name")
@click.option("--weight", type=float, help="2 gets twice as many batches as 1.")
@click.option("--most", type=click.IntRange(0, 1000), help="Batches of one stage at once, also when it is alone; 0: any number.")
@json_option
def set_weight(name: str, weight: float | None, most: int | None, as_json: bool) -> None:
    """Give a tenant a share beside others; it counts when several wait."""
    if weight is None and most is None:
        raise click.UsageError("Give --weight, --most or both.")
    with system() as opened:
        found = opened.weigh(name, weight, most)
    if as_json:
        print_json(found)
    else:
        bound = f", at most {found.most} batches of a stage at once" if found.most else ""
        click.echo(f"{clean(found.name)} has weight {found.weight:g}{bound}")


@tenants.command("delete", epilog="Example: dujiang tenants delete acme --dry-run")
@click.argument("name")
@dry_run_option
@yes_option
@json_option
def delete_tenant(name: str, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Delete a tenant: collections, documents, sources, runs, keys. There is no way back."""
    with system() as opened:
        found = opened.delete_tenant(name, dry_run=True)
        if not dry_run:
            confirm(f"Delete {name} with {len(found.collections)} collections and {found.documents} documents?", yes=yes)
            found = opened.delete_tenant(name, dry_run=False)
    if as_json:
        print_json(found)
        return
    click.echo(f"{'would delete' if dry_run else 'deleted'} {len(found.collections)} collections with {found.documents} documents")
    still_to_do(found.outstanding)
