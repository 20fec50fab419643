"""HTML through lexbor: headings, paragraphs, lists, tables and code of a page, or of its main content only."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from pipeline.contracts import ParsedDocument, RawDocument, Scalar
from pipeline.errors import BadRequest, Malformed
from pipeline.parse import article, charset
from pipeline.parse.article import BLOCKS
from pipeline.parse.layout import Cell, Layout, clean, flat, headed, markup, replaced, spread

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode

_NOISE: tuple[str, ...] = tuple(
    "script style noscript template svg canvas iframe object embed nav dialog select button input textarea datalist audio video map link meta".split()
)
_HIDDEN = '[hidden], [aria-hidden="true"], [role="navigation"], [role="search"], [role="banner"], [role="contentinfo"]'
_FOOTER = "body > footer, body > div > footer, body > header nav"
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_LIST_ITEMS = frozenset({"ul", "ol", "menu"})
_LANGUAGE = re.compile(r"(?:^|\s)(?:language-|lang-|highlight-source-|highlight-text-|brush:\s*|sourceCode\s+)([A-Za-z][\w+#.-]{0,30})")
_GUTTER = re.compile(r"[\d\s]*")
CONTENT = ("full", "article", "auto")
LEAST_ARTICLE = 200
"""UTF-8 bytes of content below which a page is kept whole: a sentence or two."""
LEAST_SHARE = 0.25
"""Part of a page's running text below which ``auto`` keeps it whole: a forum, a list of short notes."""
MOST_DEPTH = 200
"""Levels of nesting that are followed; text below them is kept, its structure is not."""


def parse(raw: RawDocument, options: Mapping[str, str]) -> ParsedDocument:
    """The page as text, without source lines. Charset by byte order mark, then by the bytes, header and declaration as hints.

    Options:
        content: ``full`` (default), all but navigation, or the only <main> or <article> where there is exactly one; ``article``, the main content
            only, and the whole page with a warning where next to none is found; ``auto``, the same where it holds a fair part of the page's text.
        links: ``inline`` writes ``[text](address)``; left out, the text alone stays.

    Raises Malformed, BadRequest for another value of an option.
    """
    content, links = options.get("content") or "full", options.get("links") or ""
    if content not in CONTENT or links not in {"", "inline"}:
        wrong = "content" if content not in CONTENT else "links"
        raise BadRequest(
            f"the option {wrong} has a value that HTML does not know", hint="Use content=full, article or auto; links=inline.", code="option"
        )
    text, name = charset.decode_page(raw.data, raw.charset)
    page = _Page(clean(text), raw.item.url if links else None)
    document = page.article(name, LEAST_SHARE if content == "auto" else 0.0) if content != "full" else None
    if document is not None:
        return document
    document = page.full(name)
    if not document.text:
        raise Malformed("the page has no text outside its navigation", hint="Pages drawn by scripts must be saved as rendered.", code="no_text")
    if content == "full":
        return document
    return replace(document, warnings=(*document.warnings, "no main content stood out, so that the whole page was kept"))


class _Page:
    """One page, decoded; each reading parses it anew, since it takes the tree apart."""

    def __init__(self, text: str, address: str | None) -> None:
        self.text = text
        self.address = address
        """Base of the links, where they shall be written."""

    def article(self, charset_name: str, least_share: float) -> ParsedDocument | None:
        """The main content, or None where there is too little of it."""
        tree = self._tree()
        titles = _titles(tree)
        metadata = _metadata(tree)
        _strip(tree)
        found = article.select(tree, titles)
        if found is None or (found.share < least_share and not found.short):
            return None
        walk = _Walk()
        if found.heading:
            walk.layout.headings.append((1, flat(found.heading)))
        document = self._document(walk, found.node, flat(found.heading), titles, charset_name, metadata)
        return document if found.short or len(document.text.encode()) >= LEAST_ARTICLE else None

    def full(self, charset_name: str) -> ParsedDocument:
        """All but what is plainly navigation."""
        tree = self._tree()
        titles = _titles(tree)
        metadata = _metadata(tree)
        root = _main(tree)
        if root is None:
            raise Malformed("the page has no content", code="no_text")
        return self._document(_Walk(), root, "", titles[:1], charset_name, metadata)

    def _tree(self) -> LexborHTMLParser:
        from selectolax.lexbor import LexborHTMLParser

        tree = LexborHTMLParser(self.text)
        base = tree.css_first("base[href]") if self.address is not None else None
        if base is not None:
            self.address = urljoin(self.address or "", base.attributes.get("href") or "")
        return tree

    def _document(
        self, walk: _Walk, root: LexborNode, heading: str, titles: Sequence[str], charset_name: str, metadata: Mapping[str, Scalar | list[str]]
    ) -> ParsedDocument:
        if self.address is not None:
            _write_links(root, self.address)
        walk.children(root, 0)
        walk.flush()
        firsts, page_title = walk.titles, titles[0] if titles else ""
        own = heading or (firsts[0] if len(firsts) == 1 or (firsts and not page_title) else page_title)
        return walk.layout.document(
            title=own, media_type="text/html", parser="html", charset=charset_name, metadata=metadata, warnings=replaced(self.text)
        )


def _titles(tree: LexborHTMLParser) -> list[str]:
    """What the page calls itself: its title element first, then what it tells those who share it."""
    title = tree.css_first("title")
    shared = [node.attributes.get("content") or "" for node in tree.css('meta[property="og:title"], meta[name="twitter:title"]')]
    return [flat(title.text()) if title else "", *map(flat, shared)]


def _write_links(root: LexborNode, base: str) -> None:
    for node in root.css("a[href]"):
        address, text = urljoin(base, (node.attributes.get("href") or "").strip()), flat(node.text())
        parent = node.parent
        if text and text != address and address.startswith(("http://", "https://")) and (parent is None or parent.tag not in _HEADINGS):
            node.insert_before("[")
            node.insert_after(f"]({address})")


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


def _strip(tree: LexborHTMLParser) -> None:
    """Take out what is never text, or never seen."""
    tree.strip_tags(list(_NOISE))
    for node in tree.css(_HIDDEN):
        if node.tag not in {"body", "html", "main", "article"}:
            node.decompose()


def _main(tree: LexborHTMLParser) -> LexborNode | None:
    """The node that holds the content, noise already taken out."""
    _strip(tree)
    for node in tree.css(_FOOTER):
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
            elif tag in BLOCKS:
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
            self.code(node)
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

    def code(self, node: LexborNode) -> None:
        """A block of code, between fences where its language is named; a column of line numbers is left out."""
        for number in node.css(".lineno, .linenos, .line-number, .line-numbers-rows, .pre-numbering, .gutter"):
            number.decompose()
        pieces: list[str] = []
        _code_text(node, pieces, 0)
        text = clean("".join(pieces)).strip("\n")
        if _GUTTER.fullmatch(text) and "\n" in text and node.parent is not None and node.parent.tag in {"td", "th"}:
            return
        language = _language(node)
        if language and text.strip():
            fence = "````" if "```" in text else "```"
            text = f"{fence}{language}\n{text}\n{fence}"
        self.layout.block(text, "Code")

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
                own.append(" " if tag in BLOCKS or tag == "br" else "")
                if level < 20 and child.css_first("ul, ol, menu") is not None:
                    self._item(child, own, nested, level)
                else:
                    own.append(child.text(separator=" " if tag in BLOCKS else ""))
                own.append(" " if tag in BLOCKS else "")
            child = child.next

    def table(self, node: LexborNode, depth: int) -> None:
        """A table of data; one that only places things on the page is walked through."""
        if node.attributes.get("role") == "presentation" or len(node.css("table")) > 1 or node.css_first("pre") is not None:
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


def _code_text(node: LexborNode, pieces: list[str], depth: int) -> None:
    """Text of preformatted content; a break or a block inside ends a line."""
    child = node.first_child
    while child is not None:
        tag = child.tag or ""
        if tag == "-text":
            pieces.append(child.text_content or "")
        elif tag == "br":
            pieces.append("\n")
        elif tag and tag[0] not in "-_!":
            block = tag in BLOCKS
            if depth > MOST_DEPTH:
                pieces.append(child.text())
            else:
                _code_text(child, pieces, depth + 1)
            if block and pieces and not pieces[-1].endswith("\n"):
                pieces.append("\n")
        child = child.next


def _language(node: LexborNode) -> str:
    """What the element, the <code> in it or the frame around it names."""
    places = [node, node.css_first("code"), node.parent, node.parent.parent if node.parent is not None else None]
    for place in places:
        if place is None or place.tag not in {"pre", "code", "div", "figure", "td"}:
            continue
        named = place.attributes
        given = named.get("data-lang") or named.get("data-language") or ""
        found = _LANGUAGE.search(f" {given and 'lang-' + given} {named.get('class') or ''}")
        if found:
            return found[1].lower()
    return ""


def _cell(node: LexborNode) -> Cell:
    return Cell(flat(clean(node.text(separator=" "))), _span(node, "rowspan"), _span(node, "colspan"), node.tag == "th")


def _span(node: LexborNode, name: str) -> int:
    written = (node.attributes.get(name) or "1").strip()
    return min(max(int(written), 1), 1000) if written.isascii() and written.isdigit() else 1
