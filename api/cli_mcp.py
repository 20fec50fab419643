"""`dujiang mcp`: the MCP server for one agent on this machine."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from api.terminal import collections_option

if TYPE_CHECKING:
    from api.mcp_library import Library
    from pipeline.settings import Settings


@click.command(epilog="Example: dujiang mcp -c handbook")
@collections_option
@click.option("--json", "as_json", is_flag=True, help="Log as JSON lines on standard error.")
def mcp(collections: tuple[str, ...], as_json: bool) -> None:
    """Serve the Model Context Protocol on standard input and output, read-only, until the agent closes it.

    It reads the system on this machine, or the one that DUJIANG_URL names with the key in DUJIANG_API_KEY. Needs the extra
    dujiang[mcp]. A running `dujiang up` serves the same tools over HTTP at /mcp.
    """
    from api.mcp import need_sdk, stdio
    from pipeline.settings import load
    from workers.logs import configure

    need_sdk()
    settings = load({"log_format": "json" if as_json else None}).settings
    configure(settings)
    with _library(settings, collections) as library:
        stdio(library)


@contextmanager
def _library(settings: Settings, collections: Sequence[str]) -> Generator[Library]:
    if settings.url:
        from api.mcp_remote import There

        there = There(settings.url, api_key=settings.api_key, only=collections)
        try:
            yield there
        finally:
            there.close()
        return
    from api.local import open_platform
    from api.mcp_library import Here
    from workers.views import Principal

    with open_platform(settings) as platform:
        yield Here(platform, Principal(collections=tuple(collections), permissions=("read",)))
