"""Blocks of a Feishu document, built as a tree and sent as the flat list that the API sends.

A test writes ``[heading(1, "Levels"), text("High at ", run("Nankou", bold=True)), bullet("a", bullet("b"))]``: words of a block are strings or
inline elements, everything that is itself a `Block` becomes its child.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote as percent

Element = dict[str, Any]


@dataclass(slots=True)
class Block:
    """One block. `over` replaces fields of what is sent, to send what no builder would; `id` is given out when left empty."""

    type: int
    key: str
    payload: Any = field(default_factory=dict[str, Any])
    children: list[Block] = field(default_factory=list["Block"])
    id: str = ""
    over: Mapping[str, Any] = field(default_factory=dict[str, Any])


def run(content: str, *, bold: bool = False, italic: bool = False, strike: bool = False, code: bool = False, link: str = "") -> Element:
    """A stretch of text with one style."""
    style: dict[str, Any] = {"bold": bold, "italic": italic, "strikethrough": strike, "underline": False, "inline_code": code}
    if link:
        style["link"] = {"url": percent(link, safe="")}
    return {"text_run": {"content": content, "text_element_style": style}}


def person(open_id: str) -> Element:
    return {"mention_user": {"user_id": open_id, "text_element_style": {}}}


def mention(token: str, title: str, url: str, obj_type: int = 22) -> Element:
    return {"mention_doc": {"token": token, "obj_type": obj_type, "url": percent(url, safe=""), "title": title, "text_element_style": {}}}


def formula(content: str) -> Element:
    return {"equation": {"content": content, "text_element_style": {}}}


def reminder(seconds: float) -> Element:
    return {"reminder": {"expire_time": str(int(seconds * 1000)), "is_whole_day": True, "is_notify": False, "notify_time": str(int(seconds * 1000))}}


def attached(token: str, block: str = "") -> Element:
    return {"file": {"file_token": token, "source_block_id": block, "text_element_style": {}}}


def elements(words: Sequence[str | Element]) -> list[Element]:
    return [run(word) if isinstance(word, str) else word for word in words]


def worded(kind: int, key: str, parts: Sequence[str | Element | Block], **style: Any) -> Block:
    """A block with text: the parts that are blocks become its children."""
    words = [part for part in parts if not isinstance(part, Block)]
    payload = {"elements": elements(words), "style": {"align": 1, "folded": False, **style}}
    return Block(kind, key, payload, [part for part in parts if isinstance(part, Block)])


def text(*parts: str | Element | Block) -> Block:
    return worded(2, "text", parts)


def heading(level: int, *parts: str | Element | Block) -> Block:
    """Levels 1 to 9. Children are what a folded section holds."""
    return worded(2 + level, f"heading{level}", parts)


def bullet(*parts: str | Element | Block) -> Block:
    return worded(12, "bullet", parts)


def ordered(*parts: str | Element | Block, sequence: str = "auto") -> Block:
    return worded(13, "ordered", parts, sequence=sequence)


def code(content: str, language: int = 1) -> Block:
    return worded(14, "code", [content], language=language, wrap=False)


def quote(*parts: str | Element | Block) -> Block:
    return worded(15, "quote", parts)


def equation(content: str) -> Block:
    return worded(16, "equation", [content])


def todo(*parts: str | Element | Block, done: bool = False) -> Block:
    return worded(17, "todo", parts, done=done)


def bitable(token: str, table: str, view: int = 1) -> Block:
    return Block(18, "bitable", {"token": f"{token}_{table}", "view_type": view})


def callout(*children: Block, emoji: str = "bulb") -> Block:
    return Block(19, "callout", {"background_color": 2, "border_color": 2, "emoji_id": emoji}, list(children))


def divider() -> Block:
    return Block(22, "divider")


def attachment(token: str, name: str) -> Block:
    """A file, inside the view block that the editor puts around it."""
    return Block(33, "view", {"view_type": 1}, [Block(23, "file", {"token": token, "name": name, "view_type": 1})])


def grid(*columns: Sequence[Block]) -> Block:
    inner = [Block(25, "grid_column", {"width_ratio": 100 // len(columns)}, list(column)) for column in columns]
    return Block(24, "grid", {"column_size": len(columns)}, inner)


def iframe(url: str, kind: int = 99) -> Block:
    return Block(26, "iframe", {"component": {"iframe_type": kind, "url": percent(url, safe="")}})


def image(token: str, caption: str = "", width: int = 640, height: int = 480) -> Block:
    return Block(
        27, "image", {"token": token, "width": width, "height": height, "align": 2, **({"caption": {"content": caption}} if caption else {})}
    )


def mindnote(token: str) -> Block:
    return Block(29, "mindnote", {"token": token})


def sheet(token: str, page: str) -> Block:
    return Block(30, "sheet", {"token": f"{token}_{page}"})


def table(rows: Sequence[Sequence[str | Block | Sequence[Block]]], *, spans: Mapping[tuple[int, int], tuple[int, int]] | None = None) -> Block:
    """Rows of words, of one block or of several a cell. `spans`: (row, column) → (rows, columns); cells beneath are written "" and sent."""
    height, width = len(rows), len(rows[0])
    cells: list[Block] = []
    for row in rows:
        for content in row:
            inner = [text(content)] if isinstance(content, str) else [content] if isinstance(content, Block) else list(content)
            cells.append(Block(32, "table_cell", {}, inner))
    merges = [
        {"row_span": (spans or {}).get((r, c), (1, 1))[0], "col_span": (spans or {}).get((r, c), (1, 1))[1]}
        for r in range(height)
        for c in range(width)
    ]
    layout = {
        "row_size": height,
        "column_size": width,
        "column_width": [100] * width,
        "merge_info": merges,
        "header_row": True,
        "header_column": False,
    }
    return Block(31, "table", {"property": layout}, cells)


def quotes(*children: Block) -> Block:
    """A container of quoted blocks."""
    return Block(34, "quote_container", {}, list(children))


def add_on(data: str) -> Block:
    """A text drawing (Mermaid or PlantUML), the way the editor keeps it."""
    import orjson

    record = orjson.dumps({"data": data, "theme": "default", "view": "chart"}).decode()
    return Block(40, "add_ons", {"component_id": "", "component_type_id": "blk_631fefbbae02400430b8f9f4", "record": record})


def board(token: str) -> Block:
    return Block(43, "board", {"token": token, "width": 800, "height": 600})


def preview(title: str, url: str) -> Block:
    return Block(48, "link_preview", {"url": percent(url, safe=""), "url_type": "Undefined", "title": title})


def synced(*children: Block) -> Block:
    """The original of content that other documents show."""
    return Block(49, "source_synced", {"elements": [], "align": 1}, list(children))


def mirror(document: str, block: str) -> Block:
    """A block that shows a `synced` one of the same or another document."""
    return Block(50, "reference_synced", {"source_document_id": document, "source_block_id": block})


def unknown(*children: Block, kind: int = 1234, key: str = "hologram") -> Block:
    """A block that came after the documentation."""
    return Block(kind, key, {"depth": 3}, list(children))


def flat(document: str, title: str, blocks: Sequence[Block]) -> list[dict[str, Any]]:
    """What the API lists: the page block, then everything below it, each before its children. Ids follow positions unless a block names its own."""
    listed: list[dict[str, Any]] = []

    def add(block: Block, parent: str, fixed: str = "") -> str:
        own = fixed or block.id or f"blk{document[-6:]}{len(listed):06d}"
        row: dict[str, Any] = {"block_id": own, "parent_id": parent, "block_type": block.type, block.key: block.payload}
        listed.append(row)
        children = [add(child, own) for child in block.children]
        if children:
            row["children"] = children
        if block.key == "table":
            row["table"] = {**block.payload, "cells": children}
        row.update(block.over)
        return own

    add(Block(1, "page", {"elements": elements([title]) if title else [], "style": {"align": 1}}, list(blocks)), "", document)
    return listed
