"""Documents of the simulated Feishu: revision, blocks in pages, raw text and Markdown."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tests.simulators.feishu_gate import fine, refused
from tests.simulators.feishu_model import Thing
from tests.simulators.served import Answer, Call

if TYPE_CHECKING:
    from tests.simulators.feishu import Feishu

READ, CONTENT = "docx:document:readonly", "docs:document.content:read"


class Docs:
    """Handlers of the document routes."""

    def __init__(self, feishu: Feishu) -> None:
        self.feishu, self.library = feishu, feishu.library

    def routes(self) -> list[tuple[Any, ...]]:
        return [
            ("docx.get", "GET", "/docx/v1/documents/:doc", self.document, READ),
            ("docx.blocks", "GET", "/docx/v1/documents/:doc/blocks", self.blocks, READ),
            ("docx.block", "GET", "/docx/v1/documents/:doc/blocks/:block", self.block, READ),
            ("docx.block", "GET", "/docx/v1/documents/:doc/blocks/:block/children", self.children, READ),
            ("docx.raw", "GET", "/docx/v1/documents/:doc/raw_content", self.raw, READ),
            ("docs.content", "GET", "/docs/v1/content", self.markdown, CONTENT),
        ]

    def document(self, _call: Call, found: re.Match[str]) -> Answer:
        thing = self._readable(found["doc"])
        if isinstance(thing, Answer):
            return thing
        return fine({"document": {"document_id": thing.token, "revision_id": thing.revision, "title": thing.title}})

    def blocks(self, call: Call, found: re.Match[str]) -> Answer:
        rows = self._blocks(call, found["doc"])
        return rows if isinstance(rows, Answer) else self._paged(call, rows)

    def block(self, call: Call, found: re.Match[str]) -> Answer:
        rows = self._blocks(call, found["doc"])
        if isinstance(rows, Answer):
            return rows
        row = next((row for row in rows if row["block_id"] == found["block"]), None)
        return refused(1770002, "not found", 404) if row is None else fine({"block": row})

    def children(self, call: Call, found: re.Match[str]) -> Answer:
        rows = self._blocks(call, found["doc"])
        if isinstance(rows, Answer):
            return rows
        if all(row["block_id"] != found["block"] for row in rows):
            return refused(1770002, "not found", 404)
        above = {found["block"]}
        kept: list[dict[str, Any]] = []
        for row in rows:
            if row["parent_id"] in above:
                kept.append(row)
                if call.query.get("with_descendants") == "true":
                    above.add(row["block_id"])
        return self._paged(call, kept)

    def raw(self, _call: Call, found: re.Match[str]) -> Answer:
        thing = self._readable(found["doc"])
        return thing if isinstance(thing, Answer) else fine({"content": "\n".join(words(row) for row in thing.blocks) + "\n"})

    def markdown(self, call: Call, _found: re.Match[str]) -> Answer:
        if call.query.get("doc_type") != "docx" or call.query.get("content_type") != "markdown":
            return refused(1061002, "params error.")
        thing = self._readable(call.query.get("doc_token", ""))
        if isinstance(thing, Answer):
            return thing
        return fine({"content": "\n\n".join(_marked(row) for row in thing.blocks if words(row))})

    def _paged(self, call: Call, rows: list[dict[str, Any]]) -> Answer:
        # what is cut is the document as it stands when the page is asked for: an edit between two pages tears the reading
        page = self.feishu.pager.cut(call, rows, 500, still=False)
        if page is None:
            return refused(1770022, "invalid page token")
        return fine({"items": page.rows, "has_more": page.more, **({"page_token": page.token} if page.more else {})})

    def _blocks(self, call: Call, token: str) -> list[dict[str, Any]] | Answer:
        thing = self._readable(token)
        if isinstance(thing, Answer):
            return thing
        revision = int(call.query.get("document_revision_id") or -1)
        if revision in (-1, thing.revision):
            return thing.blocks
        if not self.feishu.editor:
            return refused(1770032, "forBidden", 403)
        return thing.history.get(revision) or refused(1770021, "too old document")

    def _readable(self, token: str) -> Thing | Answer:
        thing = self.library.things.get(token)
        if thing is None or thing.type != "docx":
            return refused(1770002, "not found", 404)
        if thing.gone:
            return refused(1770003, "resource deleted")
        return refused(1770032, "forBidden", 403) if thing.barred else thing


def words(row: dict[str, Any]) -> str:
    """The text of one block, without its styles."""
    payload = next((value for key, value in row.items() if isinstance(value, dict) and "elements" in value), {})
    found = [next(iter(element.values())) for element in payload.get("elements") or ()]
    return "".join(str(inner.get("content") or inner.get("title") or "") for inner in found if isinstance(inner, dict))


def _marked(row: dict[str, Any]) -> str:
    """One block as the Markdown endpoint words it: headings and items are marked, the rest is text."""
    kind, said = row["block_type"], words(row)
    if kind == 1:
        return f"# {said}"
    if 3 <= kind <= 11:
        return f"{'#' * min(6, kind - 2)} {said}"
    return {12: f"- {said}", 13: f"1. {said}", 14: f"```\n{said}\n```", 15: f"> {said}"}.get(kind, said)
