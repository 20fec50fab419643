"""A document's blocks as the API gives them, and all that they only name: embedded sheets and bases, synced blocks, people, lists of pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar, cast

from pipeline.errors import BadRequest, Forbidden, NotFound, Rejected, TooLarge, Unauthorised, Unavailable
from pipeline.load.feishu import grids
from pipeline.load.feishu.answers import NOTHING, Json, table, tables
from pipeline.load.feishu.client import FeishuClient

PAGE = 500
READINGS = 3
"""Times that a document is read again because somebody wrote in it between two pages."""
NAMES = 50
"""People that one call asks for."""
MOST_SYNCED = 50
_COMMON = frozenset({"block_id", "parent_id", "children", "block_type", "comment_ids"})

Row = dict[str, object]
Found = TypeVar("Found")


class Content:
    """One document being gathered. What a follow-up call refuses is left to the parser's placeholder; what may pass is raised."""

    def __init__(self, client: FeishuClient, token: str) -> None:
        self._client, self._token = client, token
        self.files: list[tuple[str, str, str]] = []
        """(token, name, kind) of images and attachments."""
        self.more: list[grids.Attachment] = []
        self.embeds = False
        """True when it shows what lives elsewhere, whose edits do not touch its own time."""

    def gather(self) -> Row:
        """What the parser reads. Raises NotFound, Forbidden, Retryable of the document itself."""
        blocks = read(self._client, self._token)
        kept: Row = {"document": {"document_id": self._token, "title": _title(blocks, self._token)}, "blocks": blocks}
        sheets: Row = {}
        bases: Row = {}
        synced: Row = {}
        for block in [*blocks]:
            kind, payload = _kind(block), _payload(block)
            token = str(payload.get("token") or "")
            if kind == "sheet" and token:
                self._embed(sheets, token, self._sheet)
            elif kind in ("bitable", "reference_base") and token:
                self._embed(bases, token, self._base)
            elif kind == "reference_synced" and len(synced) < MOST_SYNCED:
                self._synced(synced, payload)
            elif kind in ("image", "file") and token:
                self.files.append((token, str(payload.get("name") or kind), kind))
            elif kind in ("sub_page_list", "wiki_catalog"):
                self._titles(cast("Row", payload))
        for name, found in (("sheets", sheets), ("bitables", bases), ("synced", synced), ("names", self._people([*blocks, *_all(synced)]))):
            if found:
                kept[name] = found
        return kept

    def _embed(self, into: Row, token: str, get: Callable[[str, str], Row]) -> None:
        if token in into:
            return
        self.embeds = True
        # Sheet and table ids hold no underscore, tokens may.
        holder, _, part = token.rpartition("_")
        found = _tried(lambda: get(holder or token, part if holder else ""))
        if found is not None:
            into[token] = found

    def _sheet(self, token: str, part: str) -> Row:
        return grids.sheet(self._client, token, only=part)

    def _base(self, token: str, part: str) -> Row:
        kept, _, files = grids.base(self._client, token, only=part)
        self.more += files
        return kept

    def _synced(self, into: Row, payload: Json) -> None:
        """The source's blocks; of this very document they are at hand."""
        document, block = str(payload.get("source_document_id") or ""), str(payload.get("source_block_id") or "")
        if not block or block in into or document in ("", self._token):
            return
        self.embeds = True
        path = f"/docx/v1/documents/{document}/blocks/{block}"

        def get() -> list[Json]:
            root = table(self._client.get("docx", path).get("block"))
            pages = self._client.pages("docx", f"{path}/children", {"page_size": PAGE, "with_descendants": "true"}, rows="items")
            return [root, *(row for rows in pages for row in rows)] if root else []

        found = _tried(get)
        if found:
            into[block] = found

    def _titles(self, payload: Row) -> None:
        """Titles of the pages below a wiki page, of which the block holds the token alone."""
        token = str(payload.get("wiki_token") or "")

        def get() -> list[str]:
            held = table(self._client.get("wiki", "/wiki/v2/spaces/get_node", {"token": token}).get("node"))
            path = f"/wiki/v2/spaces/{held.get('space_id')}/nodes"
            pages = self._client.pages("wiki", path, {"page_size": 50, "parent_node_token": str(held.get("node_token"))}, rows="items")
            return [str(row.get("title") or "") for rows in pages for row in rows]

        if token:
            self.embeds = True
            payload["titles"] = _tried(get) or []

    def _people(self, blocks: list[Json]) -> Row:
        """Open id → name of who is mentioned; those whom the app may not look up stay nameless."""
        ids = sorted({name for block in blocks for name in _mentioned(block)})
        names: Row = {}
        for start in range(0, len(ids), NAMES):
            found = _tried(lambda part=ids[start : start + NAMES]: self._named(part))
            names |= found or {}
        return names

    def _named(self, ids: list[str]) -> Row:
        answer = self._client.get("contact", "/contact/v3/users/batch?" + "&".join(f"user_ids={name}" for name in ids) + "&user_id_type=open_id")
        return {str(row.get("open_id")): str(row.get("name")) for row in tables(answer.get("items")) if row.get("name")}


def read(client: FeishuClient, token: str) -> list[Json]:
    """All blocks of one revision: a document of several pages is read again when it was written in meanwhile."""
    pages = _pages(client, token)
    first = next(pages)
    if next(pages, None) is None:
        return first
    blocks: list[Json] = []
    for _ in range(READINGS):
        before = revision(client, token)
        try:
            blocks = [block for page in _pages(client, token) for block in page]
        except BadRequest as error:
            if error.code != "bad_page":
                raise
            continue
        if revision(client, token) == before:
            return blocks
    raise Unavailable("the document is being written in, and could not be read in one piece", after=20.0, code="torn_read")


def revision(client: FeishuClient, token: str) -> object:
    """A number that moves with every edit, and with comments, too."""
    return table(client.get("docx", f"/docx/v1/documents/{token}").get("document")).get("revision_id")


def markdown(client: FeishuClient, token: str) -> str:
    """The vendor's own Markdown of a document: what its blocks are read for, less what they embed."""
    params = {"doc_token": token, "doc_type": "docx", "content_type": "markdown"}
    return str(client.get("docx", "/docs/v1/content", params).get("content") or "")


def raw_text(client: FeishuClient, token: str) -> str:
    """A document's text without any structure."""
    return str(client.get("docx", f"/docx/v1/documents/{token}/raw_content").get("content") or "")


def _pages(client: FeishuClient, token: str) -> Iterator[list[Json]]:
    params: dict[str, str | int] = {"page_size": PAGE, "document_revision_id": -1, "user_id_type": "open_id"}
    return client.pages("blocks", f"/docx/v1/documents/{token}/blocks", params, rows="items")


def _tried(get: Callable[[], Found]) -> Found | None:
    """None where the source refuses it for good."""
    try:
        return get()
    except Unauthorised:
        raise
    except (Forbidden, NotFound, BadRequest, TooLarge):
        return None
    except Rejected:
        return None


def _kind(block: Json) -> str:
    return next((name for name in block if name not in _COMMON), "")


def _payload(block: Json) -> Json:
    return table(block.get(_kind(block)))


def _title(blocks: list[Json], token: str) -> str:
    root = next((block for block in blocks if block.get("block_id") == token), None) or next((b for b in blocks if "page" in b), NOTHING)
    return "".join(_text(element) for element in _elements(root))


def _elements(block: Json) -> list[Json]:
    return tables(_payload(block).get("elements"))


def _text(element: Json) -> str:
    return str(table(element.get("text_run")).get("content") or "")


def _mentioned(block: Json) -> Iterator[str]:
    for element in _elements(block):
        name = table(element.get("mention_user")).get("user_id")
        if name:
            yield str(name)


def _all(synced: Row) -> Iterator[Json]:
    for blocks in synced.values():
        yield from cast("list[Json]", blocks)
