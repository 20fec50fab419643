"""HTML through lexbor: the main content's headings, paragraphs, lists, tables and code, without what surrounds them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipeline.contracts import ParsedDocument, RawDocument, Scalar
from pipeline.errors import Malformed
from pipeline.parse import charset
from pipeline.parse.layout import Cell, Layout, clean, flat, headed, markup, replaced, spread

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode

_META = re.compile(rb"<meta[^>]{0,300}?charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
_XML = re.compile(rb"\s*<\?xml[^>]{0,100}?encoding\s*=\s*[\"']([\w.:-]+)")
_NOISE: tuple[str, ...] = tuple(
    "script style noscript template svg canvas iframe object embed nav dialog select button input textarea datalist audio video map link meta".split()
)
_HIDDEN = '[hidden], [aria-hidden="true"], [role="navigation"], [role="search"], [role="banner"], [role="contentinfo"]'
_FOOTER = "body > footer, body > div > footer, body > header nav"
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_BLOCKS = frozenset(
    "address article aside blockquote body center dd details div dl dt fieldset figcaption figure footer form header hgroup hr html legend li main "
    "menu ol p pre search section summary table tbody td tfoot th thead tr ul caption h1 h2 h3 h4 h5 h6".split()
)
_LIST_ITEMS = frozenset({"ul", "ol", "menu"})
MOST_DEPTH = 200
"""Levels of nesting that are followed; text below them is kept, its structure is not."""


def parse(raw: RawDocument, options: Mapping[str, str]) -> ParsedDocument:
    """Content of the only <main> or <article> where there is exactly one, else of the body; no source lines.

    Charset by byte order mark, the document's own declaration where the bytes agree, then by scoring.
    """
    from selectolax.lexbor import LexborHTMLParser

    head = raw.data[:4096]
    found = _META.search(head) or _XML.match(head)
    text, name = charset.decode(raw.data, found[1].decode("ascii") if found else raw.charset)
    text = clean(text)
    tree = LexborHTMLParser(text)
    title = tree.css_first("title")
    page_title = flat(title.text()) if title else ""
    metadata = _metadata(tree)
    root = _main(tree)
    if root is None:
        raise Malformed("the page has no content", code="no_text")
    walk = _Walk()
    walk.children(root, 0)
    walk.flush()
    firsts = walk.titles
    own = firsts[0] if len(firsts) == 1 or (firsts and not page_title) else page_title
    document = walk.layout.document(title=own, media_type="text/html", parser="html", charset=name, metadata=metadata, warnings=replaced(text))
    if not document.text:
        raise Malformed("the page has no text outside its navigation", hint="Pages drawn by scripts must be saved as rendered.", code="no_text")
    return document


def _metadata(tree: LexborHTMLParser) -> dict[str, Scalar | list[str]]:
    values: dict[str, Scalar | list[str]] = {}
    for node in tree.css("meta[name][content]"):
        name = (node.attributes.get("name") or "").lower()
        content = flat(clean(node.attributes.get("content") or ""))
        if name in {"author", "description", "keywords"} and content:
            values[name] = content[:1000]
    root = tree.css_first("html")
    language = (root.attributes.get("lang") or "") if root else ""
    if language:
        values["language"] = language[:20]
    return values


def _main(tree: LexborHTMLParser) -> LexborNode | None:
    """The node that holds the content, noise already taken out."""
    tree.strip_tags(list(_NOISE))
    for node in tree.css(f"{_HIDDEN}, {_FOOTER}"):
        if node.tag not in {"body", "html", "main", "article"}:
            node.decompose()
    whole = tree.body or tree.root
    for selector in ("main", '[role="main"]', "article"):
        nodes = tree.css(selector)
        if len(nodes) == 1 and len(nodes[0].text(strip=True)) >= 40:
            return nodes[0]
    return whole


class _Walk:
    """Turns nodes into blocks. Inline text gathers until a block begins or ends."""

    def __init__(self) -> None:
        self.layout = Layout()
        self.inline: list[str] = []
        self.items: list[str] = []
        self.quote = 0
        self.titles: list[str] = []

    def flush(self, tag: str = "Text") -> None:
        """End the open paragraph."""
        if self.inline:
            lines = [flat(line) for line in "".join(self.inline).split("\x01")]
            self.inline.clear()
            text = "\n".join(line for line in lines if line)
            if text:
                self.layout.block(text, "Quote" if self.quote and tag == "Text" else tag)

    def children(self, node: LexborNode, depth: int) -> None:
        """Walk a node's children in order."""
        child = node.first_child
        while child is not None:
            tag = child.tag
            if tag == "-text":
                self.inline.append(child.text_content or "")
            elif tag == "br":
                self.inline.append("\x01")
            elif tag in _BLOCKS:
                self.flush()
                self.block(child, tag or "", depth + 1)
                self.flush()
            elif tag and tag[0] not in "-_!":
                if depth > MOST_DEPTH:
                    self.inline.append(child.text())
                else:
                    self.children(child, depth + 1)
            child = child.next

    def block(self, node: LexborNode, tag: str, depth: int) -> None:
        """One block-level element."""
        if depth > MOST_DEPTH:
            self.inline.append(node.text(separator=" "))
        elif tag in _HEADINGS:
            name = flat(node.text())
            if name:
                self.layout.heading(name, _HEADINGS[tag])
                if tag == "h1":
                    self.titles.append(name)
        elif tag == "pre":
            self.layout.block(clean(node.text()).strip("\n"), "Code")
        elif tag in _LIST_ITEMS:
            lines = self.list(node, tag, 0)
            if lines:
                self.layout.block("\n".join(lines), "List")
        elif tag == "table":
            self.table(node, depth)
        elif tag == "blockquote":
            self.quote += 1
            self.children(node, depth)
            self.flush()
            self.quote -= 1
        elif tag in {"figcaption", "caption"}:
            self.children(node, depth)
            self.flush("Caption")
        else:
            self.children(node, depth)

    def list(self, node: LexborNode, tag: str, level: int) -> list[str]:
        """Lines of a list, nested ones indented."""
        lines: list[str] = []
        number = 0
        for item in node.iter():
            if item.tag in _LIST_ITEMS and level < 20:
                lines.extend(self.list(item, item.tag or "", level + 1))
            if item.tag != "li":
                continue
            number += 1
            nested: list[str] = []
            own: list[str] = []
            self._item(item, own, nested, level)
            text = flat("".join(own))
            mark = f"{number}. " if tag == "ol" else "- "
            if text:
                lines.append("  " * level + mark + text)
            lines.extend(nested)
        return lines

    def _item(self, node: LexborNode, own: list[str], nested: list[str], level: int) -> None:
        """Split an item into its own text and the lines of lists inside it."""
        child = node.first_child
        while child is not None:
            tag = child.tag
            if tag == "-text":
                own.append(child.text_content or "")
            elif tag in _LIST_ITEMS and level < 20:
                nested.extend(self.list(child, tag or "", level + 1))
            elif tag and tag[0] not in "-_!":
                own.append(" " if tag in _BLOCKS or tag == "br" else "")
                if level < 20 and child.css_first("ul, ol, menu") is not None:
                    self._item(child, own, nested, level)
                else:
                    own.append(child.text(separator=" " if tag in _BLOCKS else ""))
                own.append(" " if tag in _BLOCKS else "")
            child = child.next

    def table(self, node: LexborNode, depth: int) -> None:
        """A table of data; one that only places things on the page is walked through."""
        if node.attributes.get("role") == "presentation" or len(node.css("table")) > 1:
            self.children(node, depth)
            return
        caption = node.css_first("caption")
        if caption is not None:
            self.layout.block(flat(caption.text()), "Caption")
        rows: list[list[Cell]] = []
        heads = 0
        for row in node.css("tr"):
            cells = [_cell(cell) for cell in row.iter() if cell.tag in {"td", "th"}]
            if cells:
                rows.append(cells)
                parent = row.parent
                in_head = parent is not None and parent.tag == "thead"
                if heads == len(rows) - 1 and (in_head or all(cell.header for cell in cells)):
                    heads += 1
        grid = [line for line in spread(rows) if any(line)]
        if max(map(len, grid), default=0) < 2:
            for line in grid:
                self.layout.block(line[0] if line else "")
        else:
            self.layout.table(grid, header_rows=heads if 0 < heads < len(grid) else headed(grid), source=markup(rows))


def _cell(node: LexborNode) -> Cell:
    return Cell(flat(clean(node.text(separator=" "))), _span(node, "rowspan"), _span(node, "colspan"), node.tag == "th")


def _span(node: LexborNode, name: str) -> int:
    written = (node.attributes.get(name) or "1").strip()
    return min(max(int(written), 1), 1000) if written.isascii() and written.isdigit() else 1
