"""`dujiang batches`."""

from __future__ import annotations

import click

from api.terminal import facts, json_option, print_json, system, table


@click.group(epilog="Example: dujiang batches show 42")
def batches() -> None:
    """What the numbers in Flower and in the logs stand for."""


@batches.command("show", epilog="Example: dujiang batches show 42 --json")
@click.argument("batch_id", metavar="BATCH", type=click.IntRange(1, 2**63 - 1))
@json_option
def show(batch_id: int, as_json: bool) -> None:
    """A batch and its documents, where they stand now. Closed batches are kept for seven days."""
    with system() as opened:
        view = opened.batch(batch_id)
    if as_json:
        print_json(view)
        return
    facts(
        [
            ("batch", view.batch_id),
            ("status", view.status),
            ("stages", view.stages),
            ("queue", view.queue),
            ("issued", f"{view.token} times" if view.token > 1 else "once"),
            ("worker", view.owner),
            ("collection", view.collection),
            ("documents", view.size),
            ("chunks", view.chunks),
            ("seconds", view.seconds),
            ("created", view.created_at),
            ("finished", view.finished_at),
        ]
    )
    click.echo()
    rows = [(one.document, one.stage, one.status, one.run_id, one.document_id, one.detail) for one in view.documents]
    table(("document", "stage", "status", "run", "id", "detail"), rows)
