"""The official MCP client over HTTP and over a process of ours, one connection a call."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent

ROOT = Path(__file__).resolve().parents[1]
MODES = ("auto", "legacy")
"""Of the protocol: the one without a handshake (since 2026-07-28), and the one before it."""
LIMIT_S = 120.0
T = TypeVar("T")


@asynccontextmanager
async def over_http(url: str, key: str = "", mode: str = "auto") -> AsyncIterator[Client]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=LIMIT_S) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=mode) as client,
    ):
        yield client


@asynccontextmanager
async def over_stdio(*arguments: str, mode: str = "auto", log: Path, **environment: str) -> AsyncIterator[Client]:
    """`dujiang mcp` as an agent starts it; what it says on standard error goes into `log`."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("DUJIANG_")}
    command = StdioServerParameters(command=sys.executable, args=["-m", "api.cli", "mcp", *arguments], env={**plain, **environment}, cwd=ROOT)
    with log.open("w") as said:
        async with Client(stdio_client(command, errlog=said), mode=mode) as client:
            yield client


def run(work: Callable[[], Awaitable[T]]) -> T:
    async def limited() -> T:
        return await asyncio.wait_for(work(), LIMIT_S)

    return asyncio.run(limited())


def call(url: str, key: str, name: str, mode: str = "auto", **arguments: Any) -> CallToolResult:
    async def once() -> CallToolResult:
        async with over_http(url, key, mode) as client:
            return await client.call_tool(name, arguments)

    return run(once)


def words(result: CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


def code(result: CallToolResult) -> str:
    """Of a failed call; its words say the same, and how to go on."""
    assert result.is_error, result
    error = result.structured_content["error"]
    assert words(result) == f"{error['code']}: {error['detail']}\n{error['hint']}" and error["hint"]
    return error["code"]
