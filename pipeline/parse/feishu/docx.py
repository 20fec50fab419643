"""Blocks of a Feishu document in the order of their parents, every type of them; an unknown one keeps its children and is counted.

The bytes are ``{"document": …, "blocks": […], "sheets": {token: …}, "bitables": {token: …}, "synced": {block id: [blocks]}, "names": {id: name}}``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import orjson

from pipeline.contracts import ParsedDocument, RawDocument
from pipeline.errors import Malformed
from pipeline.parse.feishu import grids
from pipeline.parse.feishu.inline import LANGUAGES, NOTHING, Inline, Json, rows, table
from pipeline.parse.layout import Cell, Layout, clean, flat, markup, spread

MEDIA_TYPE = "application/vnd.feishu.docx+json"
MOST_DEPTH = 60
MOST_COVERED = 1_000_000
"""Characters that one merged cell may write into the places it covers."""
_TICKS = re.compile(r"`{3,}")
_DIGITS = re.compile(r"[0-9]{1,9}")
_TEXTS = ("text", "equation", "todo", "bullet", "ordered", "quote", "code")
_PLAIN = frozenset({"page", "grid", "grid_column", "view", "table_cell", "agenda", "agenda_item", "agenda_item_content", "source_synced", "task"})
"""Containers that add nothing of their own: their children stand one after another."""
_OBJECTS = {
    "chat_card": "chat card",
    "diagram": "diagram",
    "mindnote": "mind map",
    "board": "whiteboard",
    "isv": "third-party block",
    "undefined": "unsupported block",
    "ai_template": "AI template",
    "okr": "OKR",
    "okr_objective": "OKR objective",
    "okr_key_result": "OKR key result",
    "okr_progress": "OKR progress",
}
"""Kinds whose content no interface gives, in words."""


def parse(raw: RawDocument, options: Mapping[str, str]) -> ParsedDocument:
    """Raises Malformed when the bytes are not what the connector keeps."""
    try:
        content: object = orjson.loads(raw.data)
    except orjson.JSONDecodeError as error:
        raise Malformed("the stored blocks of Feishu are not JSON") from error
    kept = table(content)
    blocks = {str(block.get("block_id")): block for block in map(table, rows(kept.get("blocks")))}
    document = table(kept.get("document"))
    reader = _Reader(kept, blocks)
    root = blocks.get(str(document.get("document_id"))) or next((block for block in blocks.values() if not block.get("parent_id")), NOTHING)
    title = flat(clean(str(document.get("title") or ""))) or flat(reader.inline.text(table(root.get("page"))))
    reader.title(title)
    if root and kind_of(root) != "page":
        reader.block(root, 0)
    reader.children(root, 0)
    reader.rest(set(blocks))
    warnings = [f"{number} × {what}: not readable through the interface" for what, number in sorted(reader.dropped.items())]
    return reader.layout.document(title=title, media_type=MEDIA_TYPE, parser="feishu", warnings=warnings)


def kind_of(block: Json) -> str:
    """Name of the payload: numbers of types come and go, its name says what it is."""
    common = {"block_id", "parent_id", "children", "block_type", "comment_ids"}
    return next((name for name in block if name not in common), "undefined")


class _Reader:
    """One document on its way into a layout."""

    def __init__(self, kept: Json, blocks: Mapping[str, Json]) -> None:
        self.layout = Layout()
        self.inline = Inline(table(kept.get("names")))
        self.dropped: Counter[str] = Counter()
        self._kept, self._blocks = kept, blocks
        self._seen: set[str] = set()
        self._sync: list[str] = []

    def title(self, title: str) -> None:
        if title:
            self.layout.heading(title, 1)

    def rest(self, known: set[str]) -> None:
        """Blocks that no parent names, or that lie too deep: better at the end than lost."""
        for name in sorted(known - self._seen):
            block = self._blocks[name]
            parent = str(block.get("parent_id"))
            if name not in self._seen and kind_of(block) != "page" and (parent not in known or parent in self._seen):
                self.block(block, 1)

    def children(self, block: Json, depth: int) -> None:
        """A block's children, runs of list items as one block."""
        self._seen.add(str(block.get("block_id")))
        run: list[Json] = []
        for child in self._children(block):
            if kind_of(child) in ("bullet", "ordered", "todo"):
                run.append(child)
                continue
            self._list(run, depth)
            run = []
            self.block(child, depth + 1)
        self._list(run, depth)

    def _list(self, run: Sequence[Json], depth: int) -> None:
        if run:
            self.layout.block("\n".join(self._items(run, depth)), "List")

    def block(self, block: Json, depth: int) -> None:
        """One block at the top of the page, or in a container that adds nothing."""
        name = str(block.get("block_id"))
        if name in self._seen or depth > MOST_DEPTH:
            return
        self._seen.add(name)
        kind = kind_of(block)
        payload = table(block.get(kind))
        if kind.startswith("heading"):
            level = _number(kind[7:]) or 1
            text = flat(self.inline.text(payload))
            if text:
                self.layout.heading(text, min(level + 1, 7))
            self.children(block, depth)
        elif kind == "text":
            self.layout.block(self.inline.text(payload).strip("\n"))
            self.children(block, depth)
        elif kind == "table":
            self._table(block, payload, depth)
        elif kind in ("sheet", "bitable", "reference_base"):
            self._grid(kind, payload)
        elif kind in ("quote", "quote_container", "callout"):
            self.layout.block("\n".join(self._begun(block, depth)), "Quote")
        elif kind in ("code", "add_ons"):
            self.layout.block("\n".join(self._begun(block, depth)), "Code")
        elif kind in _PLAIN:
            self.children(block, depth)
        elif kind == "reference_synced":
            self._synced(payload, depth)
        else:
            self.layout.block("\n".join(self._own(block, kind, payload)), "Caption" if kind == "image" else "Text")
            self.children(block, depth)

    def _children(self, block: Json) -> Iterator[Json]:
        for name in rows(block.get("children")):
            child = self._blocks.get(str(name))
            if child is not None:
                yield child

    # ------------------------------------------------------------ nested: blocks as lines

    def _lines(self, block: Json, depth: int) -> list[str]:
        """A block with all below it as lines of Markdown, for lists, quotes and cells. One that stands elsewhere already is left out."""
        if kind_of(block) in ("bullet", "ordered", "todo"):
            return self._items([block], depth)
        name = str(block.get("block_id"))
        if name in self._seen or depth > MOST_DEPTH:
            return []
        self._seen.add(name)
        return self._begun(block, depth)

    def _begun(self, block: Json, depth: int) -> list[str]:
        """The same for a block that is noted as seen."""
        kind = kind_of(block)
        payload = table(block.get(kind))
        below = self._below(block, depth)
        if kind in ("quote", "quote_container", "callout"):
            own = self.inline.text(payload).split("\n") if kind == "quote" else []
            head = ["[!NOTE]"] if kind == "callout" else []
            return [f"> {line}".rstrip() for line in (*head, *own, *below)]
        if kind == "table":
            return [" | ".join(row) for row in spread(self._cells(block, payload, depth))]
        if kind in ("sheet", "bitable", "reference_base"):
            return [" | ".join(row) for _, grid in self._grids(kind, payload) for row in grid]
        if kind == "reference_synced":
            return [line for child in self._source(payload) for line in self._lines(child, depth + 1)]
        if kind in _PLAIN:
            return below
        return [*self._own(block, kind, payload), *below]

    def _below(self, block: Json, depth: int) -> list[str]:
        lines: list[str] = []
        run: list[Json] = []
        for child in self._children(block):
            if kind_of(child) in ("bullet", "ordered", "todo"):
                run.append(child)
                continue
            lines += [*self._items(run, depth + 1), *self._lines(child, depth + 1)]
            run = []
        return [*lines, *self._items(run, depth + 1)]

    def _items(self, run: Sequence[Json], depth: int) -> list[str]:
        """Items of one level; "auto" goes on counting, a number begins anew."""
        lines: list[str] = []
        number = 0
        for item in run:
            name = str(item.get("block_id"))
            if name in self._seen:
                continue
            self._seen.add(name)
            kind = kind_of(item)
            payload = table(item.get(kind))
            style = table(payload.get("style"))
            if kind == "ordered":
                given = str(style.get("sequence") or "auto")
                number = _number(given) or number + 1
                mark = f"{number}. "
            else:
                number = 0
                mark = "- " if kind == "bullet" else ("- [x] " if style.get("done") else "- [ ] ")
            first, *more = self.inline.text(payload).split("\n")
            lines.append(f"{mark}{first}".rstrip())
            lines += ["  " + line for line in (*more, *(self._below(item, depth + 1) if depth < MOST_DEPTH else ()))]
        return lines

    def _own(self, block: Json, kind: str, payload: Json) -> list[str]:
        """What a block says itself, without its children."""
        if kind == "code":
            return _fenced(self.inline.text(payload), _language(payload))
        if kind == "equation":
            return [f"$${self.inline.text(payload).strip()}$$"]
        if kind in _TEXTS or kind == "agenda_item_title":
            return self.inline.text(payload).strip("\n").split("\n")
        if kind == "divider":
            return []
        if kind == "image":
            caption = str(table(payload.get("caption")).get("content") or "")
            return [f"![{flat(caption)}]"] if caption.strip() else []
        if kind == "file":
            return [f"[{payload.get('name') or 'file'}]"]
        if kind in ("iframe", "link_preview"):
            from urllib.parse import unquote

            address = payload.get("url") or table(payload.get("component")).get("url")
            return [unquote(str(address))] if address else []
        if kind == "jira_issue":
            return [str(payload.get("key") or payload.get("id") or "")]
        if kind in ("wiki_catalog", "sub_page_list"):
            return [f"- {title}" for title in map(str, rows(payload.get("titles")))]
        if kind == "add_ons":
            return self._add_on(payload)
        return self._unknown(block, kind, payload)

    def _add_on(self, payload: Json) -> list[str]:
        try:
            record: object = orjson.loads(str(payload.get("record") or "null"))
        except orjson.JSONDecodeError:
            record = None
        data = table(record).get("data")
        if isinstance(data, str) and data.strip():
            return _fenced(data, "plantuml" if data.lstrip().startswith("@start") else "mermaid")
        return self._placeholder("add-on")

    def _unknown(self, block: Json, kind: str, payload: Json) -> list[str]:
        """A block of a kind that we do not know may hold text all the same."""
        text = self.inline.text(payload).strip()
        number = block.get("block_type")
        what = f"block of type {number}" if kind == "undefined" and number not in (None, 999) else _OBJECTS.get(kind, kind.replace("_", " "))
        return [*(text.split("\n") if text else ()), *self._placeholder(what)]

    def _placeholder(self, what: str) -> list[str]:
        self.dropped[what] += 1
        return [f"[{what}]"]

    # ------------------------------------------------------------ tables

    def _table(self, block: Json, payload: Json, depth: int) -> None:
        cells = self._cells(block, payload, depth)
        spanned = any(cell.rowspan > 1 or cell.colspan > 1 for row in cells for cell in row)
        header = bool(table(payload.get("property")).get("header_row"))
        grid = spread(cells)
        self.layout.table(grid, header_rows=1 if header and len(grid) > 1 else 0, source=markup(cells) if spanned else "")

    def _cells(self, block: Json, payload: Json, depth: int) -> list[list[Cell]]:
        """Row by row; cells and spans are both counted by position, covered ones included."""
        shape = table(payload.get("property"))
        names = [str(name) for name in rows(payload.get("cells")) or rows(block.get("children"))]
        width = min(max(1, _number(shape.get("column_size"))), max(1, len(names)))
        merges = [table(merge) for merge in rows(shape.get("merge_info"))]
        covered: set[int] = set()
        out: list[list[Cell]] = []
        for position, name in enumerate(names):
            if position % width == 0:
                out.append([])
            inner = self._lines(self._blocks.get(name, NOTHING), depth + 1)
            if position in covered:
                continue
            merge = merges[position] if position < len(merges) else NOTHING
            # Spans are numbers that anybody can write: they end with the table.
            rows_left = (len(names) - position - 1) // width + 1
            tall, wide = min(max(1, _number(merge.get("row_span"))), rows_left), min(max(1, _number(merge.get("col_span"))), width - position % width)
            text = " ".join(flat(line) for line in inner if line.strip())
            if len(text) * tall * wide > MOST_COVERED:
                tall = wide = 1
            covered |= {position + row * width + column for row in range(tall) for column in range(wide)} - {position}
            out[-1].append(Cell(text, tall, wide, header=bool(shape.get("header_row")) and position < width))
        return out

    def _grid(self, kind: str, payload: Json) -> None:
        grids_ = list(self._grids(kind, payload))
        if not grids_:
            self.layout.block("\n".join(self._placeholder("embedded sheet" if kind == "sheet" else "embedded base")))
        for name, grid in grids_:
            if name:
                self.layout.block(name, "Caption")
            self.layout.table(grid, header_rows=1 if len(grid) > 1 else 0)

    def _grids(self, kind: str, payload: Json) -> Iterator[tuple[str, list[list[str]]]]:
        token = str(payload.get("token") or "")
        found = table(table(self._kept.get("sheets" if kind == "sheet" else "bitables")).get(token))
        if found:
            yield from grids.of_sheets(found) if kind == "sheet" else grids.of_bitable(found)

    # ------------------------------------------------------------ synced blocks

    def _synced(self, payload: Json, depth: int) -> None:
        for child in self._source(payload):
            self.block(child, depth + 1)

    def _source(self, payload: Json) -> list[Json]:
        """Blocks that stand in another document, once each; a block that contains itself ends there."""
        name = str(payload.get("source_block_id") or "")
        source = rows(table(self._kept.get("synced")).get(name))
        if not source and name in self._blocks and name not in self._seen:
            return [cast("Json", {**self._blocks[name], "block_id": f"copy of {name}"})]
        if not source or name in self._sync:
            self.layout.block("\n".join(self._placeholder("synced block")))
            return []
        self._sync.append(name)
        foreign = {str(block.get("block_id")): block for block in map(table, source)}
        self._blocks = {**foreign, **self._blocks}
        root = foreign.get(name)
        return list(self._children(root)) if root is not None else []


def _fenced(code: str, language: str) -> list[str]:
    """The fence is longer than any run of ticks inside; indentation stays."""
    longest = max(map(len, _TICKS.findall(code)), default=2)
    mark = "`" * max(3, longest + 1)
    return [f"{mark}{language if language != 'plaintext' else ''}", *code.rstrip("\n").split("\n"), mark]


def _language(payload: Json) -> str:
    number = _number(table(payload.get("style")).get("language"))
    return LANGUAGES[number - 1] if 0 < number <= len(LANGUAGES) else "plaintext"


def _number(value: object) -> int:
    """0 for what is no number of a sensible length."""
    if isinstance(value, str):
        return int(value) if _DIGITS.fullmatch(value) else 0
    return int(value) if isinstance(value, int | float) else 0
