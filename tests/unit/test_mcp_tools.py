"""The tools of the MCP server over a library in memory: bounds, text that JSON cannot hold, an installation without the extra."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from mcp import Client
from mcp_types import CallToolResult

from api import cli
from api.asking import Asking
from api.mcp import server_of
from api.mcp_tools import MOST_COLLECTIONS, PASSAGE_CHARS, PASSAGES_CHARS
from pipeline.contracts import Hit, ParsedDocument, SearchResult
from pipeline.contracts.questions import Mode
from pipeline.errors import NotFound
from pipeline.shapes import search_json
from workers.excerpts import excerpt
from workers.views import CollectionView, DocumentView, ExcerptView


@dataclass
class Shelf:
    """One document to a collection, its identity the collection's name."""

    texts: dict[str, str]
    looked: list[str] = field(default_factory=list[str])

    def collections(self) -> Sequence[CollectionView]:
        return [CollectionView(name, "", "", None, "", 1, 1, 1, 1, datetime.now(UTC)) for name in self.texts]

    def search(self, text: str, options: Asking) -> dict[str, Any]:
        hits = [Hit(name, name, 1, 0, name, name, "", said, 5, 5 + len(said), 0.5, {}, collection=name) for name, said in self.texts.items()]
        return search_json(SearchResult(text, Mode.HYBRID, tuple(hits[: options.k]), ()))

    def ask(self, text: str, options: Asking) -> Generator[str | dict[str, Any]]:
        yield from ()

    def document(self, collection: str, document_id: str) -> DocumentView:
        self.looked.append(collection)
        if document_id != collection:
            raise NotFound(f"there is no document {document_id!r}")
        return DocumentView(document_id, collection, "", collection, "", "", "", "done", 1, 1, 1, {}, datetime.now(UTC))

    def excerpt(self, collection: str, document_id: str, start: int, end: int | None, *, most: int, as_of: datetime | None) -> ExcerptView:
        return excerpt(ParsedDocument(self.texts[collection]), document_id, start, end, most=most, as_of=as_of)


def call(shelf: Shelf, name: str, **arguments: Any) -> CallToolResult:
    async def once() -> CallToolResult:
        async with Client(server_of(shelf)) as client:
            return await client.call_tool(name, arguments)

    return asyncio.run(once())


def test_a_search_gives_a_bounded_number_of_characters_and_says_where_a_passage_goes_on() -> None:
    shelf = Shelf({f"c{number}": "x" * (PASSAGE_CHARS + 100) for number in range(12)})
    passages = call(shelf, "search", query="x", k=12).structured_content["passages"]
    assert [len(one["text"]) for one in passages] == [PASSAGE_CHARS] * (PASSAGES_CHARS // PASSAGE_CHARS) + [0, 0]
    assert all(one["truncated"] and one["end_char"] - one["start_char"] == len(one["text"]) for one in passages)


def test_a_passage_that_fits_is_whole() -> None:
    (one,) = call(Shelf({"c": "short"}), "search", query="x").structured_content["passages"]
    assert (one["text"], one["truncated"], one["start_char"], one["end_char"]) == ("short", False, 5, 10)


def test_the_list_of_collections_ends_somewhere_and_says_so() -> None:
    listed = call(Shelf({f"c{number:04}": "" for number in range(MOST_COLLECTIONS + 1)}), "list_collections").structured_content
    assert (len(listed["collections"]), listed["more"]) == (MOST_COLLECTIONS, True)


def test_half_a_character_is_replaced_and_moves_no_offset() -> None:
    read = call(Shelf({"c": "a\ud83db"}), "read_source", document="c").structured_content
    assert (read["text"], read["end_char"], read["length"]) == ("a\ufffdb", 3, 3)


@pytest.mark.parametrize(("given", "looked"), [("", ["a", "b"]), ("b", ["b"])], ids=["anywhere", "where it is said to be"])
def test_a_document_is_looked_for_where_it_is_said_to_be_or_everywhere(given: str, looked: list[str]) -> None:
    shelf = Shelf({"a": "one", "b": "two", "c": "three"})
    assert call(shelf, "read_source", document="b", collection=given).structured_content["text"] == "two"
    assert shelf.looked == looked


def test_an_answer_that_never_comes_is_a_failed_call() -> None:
    failed = call(Shelf({}), "ask", question="Who?")
    assert failed.is_error and failed.structured_content["error"]["code"] == "cancelled"


def test_without_the_extra_the_verb_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    assert cli.run(["mcp"]) == 1
    said = capfd.readouterr()
    assert said.out == "" and "pip install 'dujiang[mcp]'" in said.err and "Traceback" not in said.err
