"""`dujiang mcp` as an agent starts it: over this machine's data folder, and over a Dujiang behind HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mcp_types import CallToolResult

from tests.mcp_client import MODES, ROOT, code, over_stdio, run, words
from tests.served_api import Served, served

TEXTS = {
    "travel.md": "# Travel\n\nThe head of department approves travel before it is booked. Trains are preferred to planes.\n",
    "出差.txt": "林岑批准了这次出差，乘坐高铁前往石桥站。",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("mcp")) as here:
        here.ingest("handbook", TEXTS)
        here.ingest("secret", {"plan.md": "# Plan\n\nThe secret station stands behind the stone bridge.\n"})
        yield here


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "said.txt"


def here(home: Served) -> dict[str, str]:
    return {"DUJIANG_HOME": home.platform.settings.home, "DUJIANG_EMBEDDER": "hashed", "DUJIANG_LOG_LEVEL": "debug"}


def test_an_agent_reads_this_machines_collections_while_the_system_runs(home: Served, log: Path) -> None:
    async def work() -> None:
        async with over_stdio(log=log, **here(home)) as client:
            listed = await client.call_tool("list_collections", {})
            assert [one["name"] for one in listed.structured_content["collections"]] == ["handbook", "secret"]
            answered = await client.call_tool("ask", {"question": "Who approves travel?"})
            (cited, *_) = answered.structured_content["citations"]
            span = {"document": cited["document_id"], "start_char": cited["start_char"], "end_char": cited["end_char"]}
            read = await client.call_tool("read_source", span)
            assert read.structured_content["text"] == cited["quote"] in words(answered)
            found = await client.call_tool("search", {"query": "谁批准出差", "k": 1})
            assert "林岑" in words(found)

    run(work)
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize("mode", MODES)
def test_an_agent_can_be_held_to_one_collection(home: Served, log: Path, mode: str) -> None:
    async def work() -> list[CallToolResult]:
        async with over_stdio("-c", "handbook", mode=mode, log=log, **here(home)) as client:
            return [
                await client.call_tool("list_collections", {}),
                await client.call_tool("search", {"query": "secret station stone bridge", "k": 50}),
                await client.call_tool("search", {"query": "station", "collections": ["secret"]}),
            ]

    listed, found, refused = run(work)
    assert [one["name"] for one in listed.structured_content["collections"]] == ["handbook"]
    assert {one["collection"] for one in found.structured_content["passages"]} == {"handbook"}
    assert code(refused) == "collection_not_found"


@pytest.mark.parametrize("narrowed", [(), ("-c", "handbook")], ids=["by the key", "by -c"])
def test_an_agent_reads_a_dujiang_behind_http_as_far_as_its_key_may(home: Served, log: Path, narrowed: tuple[str, ...]) -> None:
    (hidden,) = (view.document_id for view in home.platform.documents("secret").data)
    key = home.key("all") if narrowed else home.key("agent", "handbook")

    async def work() -> None:
        async with over_stdio(*narrowed, log=log, DUJIANG_URL=home.url, DUJIANG_API_KEY=key) as client:
            listed = await client.call_tool("list_collections", {})
            assert [one["name"] for one in listed.structured_content["collections"]] == ["handbook"]
            found = await client.call_tool("search", {"query": "secret station stone bridge approves travel", "k": 50})
            (first, *_) = found.structured_content["passages"]
            assert {one["collection"] for one in found.structured_content["passages"]} == {"handbook"}
            span = {"document": first["document_id"], "start_char": first["start_char"], "end_char": first["end_char"]}
            assert (await client.call_tool("read_source", span)).structured_content["text"] == first["text"]
            assert not (await client.call_tool("ask", {"question": "Who approves travel?"})).structured_content["refused"]
            assert code(await client.call_tool("ask", {"question": "Where?", "collections": ["secret"]})).endswith("not_found")
            assert code(await client.call_tool("read_source", {"document": hidden})) == "document_not_found"
            assert code(await client.call_tool("read_source", {"document": hidden, "collection": "secret"})).endswith("not_found")
            undated = await client.call_tool("read_source", {**span, "as_of": "2024-05-15T00:00:00+08:00"})
            assert code(undated) == "undated"

    run(work)


def test_a_dujiang_that_is_away_is_a_failed_call_and_not_the_end(home: Served, log: Path) -> None:
    async def work() -> None:
        async with over_stdio(log=log, DUJIANG_URL="http://127.0.0.1:9") as client:
            assert code(await client.call_tool("list_collections", {})) == "unavailable"
            assert code(await client.call_tool("ask", {"question": "Who?"})) == "unavailable"

    run(work)
    assert "Traceback" not in log.read_text()


def test_standard_output_carries_nothing_but_the_protocol_and_the_end_of_input_ends_it(home: Served) -> None:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("DUJIANG_")}
    greeting = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    sent = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": greeting},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "list_collections", "arguments": {}}},
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "api.cli", "mcp", "--json"],
        cwd=ROOT,
        env={**plain, **here(home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.write("this is no message\n" + "".join(f"{json.dumps(one)}\n" for one in sent))
        process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert [answer["id"] for answer in answers if "result" in answer] == [1, 2], answers
        rest, said = process.communicate(timeout=120)
        assert process.returncode == 0 and rest == ""
        assert all(json.loads(line)["level"] for line in said.splitlines()), said
