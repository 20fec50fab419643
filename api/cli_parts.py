"""`dujiang worker`, `beat`, `serve`: one part alone, for deployments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pipeline.settings import Settings

_logs_option = click.option("--json", "as_json", is_flag=True, help="Log as JSON lines on standard error.")


def _settings(as_json: bool, **flags: object) -> Settings:
    from pipeline.settings import load

    return load({**flags, "log_format": "json" if as_json else None}).settings


def _connected(settings: Settings) -> Settings:
    """With the broker's address. Raises BadRequest: a part alone starts no server."""
    from pipeline.errors import BadRequest
    from workers.session import connected

    found = connected(settings)
    if not found.redis_url and not found.broker_url:
        raise BadRequest(
            "a part alone needs a Redis that runs", hint="Set DUJIANG_REDIS_URL, or start everything with `dujiang up`.", code="no_broker"
        )
    return found


@click.command(epilog="Example: dujiang worker --queues parse,chunk --pool prefork --concurrency 4")
@click.option("--queues", default="", metavar="NAMES", help="Stages (parse,chunk) or queues; all when left out.")
@click.option("--name", default="worker", show_default=True, help="Name of this node; it must differ from the others' on this machine.")
@click.option(
    "--pool", type=click.Choice(["prefork", "threads", "solo"]), default="prefork", show_default=True, help="Processes to compute, threads to wait."
)
@click.option(
    "--concurrency", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes or threads. Of two or more, one is kept free of bulk."
)
@_logs_option
def worker(queues: str, name: str, pool: str, concurrency: int, as_json: bool) -> None:
    """Serve queues until a signal ends it; what it holds is finished or given back."""
    from workers.worker import run, served

    settings = _connected(_settings(as_json))
    run(settings, name=name, consumes=served(queues), pool=pool, concurrency=concurrency, alone=True)


@click.command(epilog="Example: dujiang beat")
@_logs_option
def beat(as_json: bool) -> None:
    """Form batches, and take back what was lost. Several may run; one works at a time."""
    from workers.beat import run

    run(_connected(_settings(as_json)))


@click.command(epilog="Example: dujiang serve --host 0.0.0.0 --port 8400")
@click.option("--host", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 takes a free one.")
@_logs_option
def serve(host: str | None, port: int | None, as_json: bool) -> None:
    """Serve HTTP until a signal ends it."""
    from api.serve import serve as run

    run(_settings(as_json, host=host, port=port))
