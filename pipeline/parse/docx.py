"""DOCX straight from its XML: headings by style or outline level, list marks and heading numbers computed, merged cells kept.

Comments, deleted text, headers and footers are not part of the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from zipfile import ZipFile

from pipeline.contracts import ParsedDocument, RawDocument, Scalar
from pipeline.errors import Malformed
from pipeline.parse import archive, xml
from pipeline.parse.layout import Cell, Layout, clean, flat, headed, markup, spread
from pipeline.parse.numbering import Numbering, number
from pipeline.parse.xml import Element

W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_M = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
_MC = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
_DC = "{http://purl.org/dc/elements/1.1/}"
_STRICT = b"http://purl.oclc.org/ooxml/wordprocessingml/main"
_SKIPPED = frozenset({f"{W}del", f"{W}moveFrom", f"{W}pPr", f"{W}rPr", f"{_MC}Fallback", f"{W}instrText", f"{W}delText"})
_INLINE = {f"{W}tab": "\t", f"{W}br": "\n", f"{W}cr": "\n", f"{W}noBreakHyphen": "-", f"{_M}sup": "^", f"{_M}sub": "_", f"{_M}den": "/"}
_STYLES = re.compile(rb"<w:styles\b[^>]*>")
_PARAGRAPH_STYLE = re.compile(rb'<w:style\b[^>]{0,300}?w:type="paragraph".*?</w:style>', re.DOTALL)
MOST_DEPTH = 100


def parse(raw: RawDocument, options: Mapping[str, str]) -> ParsedDocument:
    """Paragraphs and tables in document order. DOCX knows no pages before it is laid out, so positions are heading paths.

    Raises Malformed (``encrypted``, ``truncated``, ``malformed``, ``no_text``) and TooLarge (``zip_bomb``).
    """
    with archive.opened(raw.data, "DOCX") as container:
        body = _part(container, "word/document.xml")
        if body is None:
            raise Malformed("the DOCX file has no main document part")
        reader = _Reader(_styles(container), Numbering(_part(container, "word/numbering.xml")))
        main = body.find(f"{W}body")
        for element in main if main is not None else ():
            reader.element(element)
        reader.flush()
        for name in ("word/footnotes.xml", "word/endnotes.xml"):
            reader.notes(_part(container, name))
        title, metadata = _core(container)
    document = reader.layout.document(title=title or reader.title, media_type=raw.media_type, parser="docx", metadata=metadata)
    if not document.text:
        raise Malformed(
            "the DOCX file holds no text: its pages are images or empty", hint="Run OCR over the images, then ingest the result.", code="no_text"
        )
    return document


def _part(container: ZipFile, name: str, less: Callable[[bytes], bytes] | None = None) -> Element | None:
    """A part's root element; None when there is no such part. `less` may drop what is not needed before it is parsed."""
    try:
        data = archive.read(container, name, "DOCX")
    except KeyError:
        return None
    if _STRICT in data[:4096]:
        data = data.replace(_STRICT, W[1:-1].encode())
    return xml.read(less(data) if less else data, "DOCX")


def _core(container: ZipFile) -> tuple[str, dict[str, Scalar | list[str]]]:
    """(title, author) as written in the file's properties."""
    root = _part(container, "docProps/core.xml")
    if root is None:
        return "", {}
    author = flat(clean(root.findtext(f"{_DC}creator") or ""))
    values: dict[str, Scalar | list[str]] = {}
    if author and author.lower() not in {"python-docx", "user", "microsoft office user"}:
        values["author"] = author
    return flat(clean(root.findtext(f"{_DC}title") or "")), values


def _styles(container: ZipFile) -> dict[str, tuple[int, str, int]]:
    """Style id → (heading level from 1 or 0, numbering id, numbering level), inherited from the styles it builds on."""
    root = _part(container, "word/styles.xml", _paragraph_styles)
    if root is None:
        return {}
    own: dict[str, tuple[int, str, int, str]] = {}
    for style in root.iterfind(f"{W}style"):
        name = (_value(style, "name") or "").lower()
        level = 1 if name == "title" else int(name[8:]) if name.startswith("heading ") and name[8:].isdigit() else 0
        outline = _value(style, f"pPr/{W}outlineLvl")
        if not level and outline and outline.isdigit() and int(outline) < 9:
            level = int(outline) + 1
        numbers, depth = number(style.find(f"{W}pPr"))
        own[style.get(f"{W}styleId") or ""] = (level, numbers, depth, _value(style, "basedOn") or "")
    found: dict[str, tuple[int, str, int]] = {}
    for key in own:
        level, numbers, depth, base = own[key]
        for _ in range(20):
            if base not in own:
                break
            level = level or own[base][0]
            numbers, depth = (numbers, depth) if numbers else own[base][1:3]
            base = own[base][3]
        found[key] = (level, numbers, max(depth, level - 1) if level and numbers else depth)
    return found


def _paragraph_styles(data: bytes) -> bytes:
    """The style part without table and character styles, which are nine tenths of it in many files."""
    head = _STYLES.search(data)
    kept = _PARAGRAPH_STYLE.findall(data) if head else []
    return head[0] + b"".join(kept) + b"</w:styles>" if head and kept else data


def _value(element: Element, path: str) -> str | None:
    found = element.find(f"{W}{path}")
    return None if found is None else found.get(f"{W}val")


class _Reader:
    """Walks the body and collects blocks."""

    def __init__(self, styles: Mapping[str, tuple[int, str, int]], numbering: Numbering) -> None:
        self.styles = styles
        self.numbering = numbering
        self.layout = Layout()
        self.items: list[str] = []
        self.title = ""

    def flush(self) -> None:
        """End the open list."""
        if self.items:
            self.layout.block("\n".join(self.items), "List")
            self.items.clear()

    def element(self, element: Element, depth: int = 0) -> None:
        """One child of the body; content controls and revisions are opened."""
        tag = element.tag
        if tag == f"{W}p":
            self.paragraph(element)
        elif tag == f"{W}tbl":
            self.flush()
            self.table(element)
        elif tag in {f"{W}sdt", f"{W}sdtContent", f"{W}ins", f"{W}customXml", f"{W}smartTag", f"{W}moveTo"} and depth < MOST_DEPTH:
            for child in element:
                self.element(child, depth + 1)

    def paragraph(self, element: Element) -> None:
        """A heading, a list item, code or text."""
        text = clean(inline(element)).strip("\n")
        boxes = [clean(inline(box)).strip() for box in _text_boxes(element)]
        if text.strip():
            self._place(element, text)
        for box in boxes:
            if box:
                self.flush()
                self.layout.block(box)

    def _place(self, element: Element, text: str) -> None:
        properties = element.find(f"{W}pPr")
        style = "" if properties is None else _value(properties, "pStyle") or ""
        level, numbers, depth = self.styles.get(style, (0, "", 0))
        outline = None if properties is None else _value(properties, "outlineLvl")
        if outline and outline.isdigit():
            level = int(outline) + 1 if int(outline) < 9 else 0
        direct, direct_depth = number(properties)
        numbers, depth = (direct, direct_depth) if direct else (numbers, depth)
        mark = self.numbering.next(numbers, depth) if numbers and numbers != "0" else ""
        if level:
            self.flush()
            name = flat(text)
            self.title = self.title or (name if level == 1 else "")
            self.layout.heading(f"{mark} {name}" if mark and mark != "-" else name, level)
        elif mark:
            self.items.append(f"{'  ' * min(depth, 8)}{mark} {flat(text)}")
        else:
            self.flush()
            code = style.lower() in {"code", "htmlpreformatted", "sourcecode", "macrotext"}
            self.layout.block(text if code else text.strip(), "Caption" if style.lower() == "caption" else "Code" if code else "Text")

    def table(self, element: Element) -> None:
        """Rows with merged cells resolved: text repeats where a cell spans, the HTML keeps the spans."""
        rows: list[list[Cell]] = []
        open_cells: dict[int, tuple[int, int]] = {}
        heads = 0
        for row in _inside(element, f"{W}tr"):
            cells: list[Cell] = []
            column = 0
            for cell in _inside(row, f"{W}tc"):
                properties = cell.find(f"{W}tcPr")
                wide = (_value(properties, "gridSpan") or "1") if properties is not None else "1"
                width = min(max(int(wide), 1), 1000) if wide.isdigit() else 1
                merge = properties.find(f"{W}vMerge") if properties is not None else None
                if merge is not None and merge.get(f"{W}val") != "restart" and column in open_cells:
                    at, index = open_cells[column]
                    above = rows[at][index]
                    rows[at][index] = Cell(above.text, len(rows) - at + 1, above.colspan)
                else:
                    if merge is not None:
                        open_cells[column] = (len(rows), len(cells))
                    else:
                        open_cells.pop(column, None)
                    cells.append(Cell(flat(clean(inline(cell))), 1, width))
                column += width
            rows.append(cells)
            if heads == len(rows) - 1 and row.find(f"{W}trPr/{W}tblHeader") is not None:
                heads += 1
        grid = [line for line in spread(rows) if any(line)]
        if max(map(len, grid), default=0) > 1:
            self.layout.table(grid, header_rows=heads if 0 < heads < len(grid) else headed(grid), source=markup(rows))
        else:
            for line in grid:
                self.layout.block(line[0])

    def notes(self, root: Element | None) -> None:
        """Footnotes and endnotes stand at the end, under no heading."""
        if root is None:
            return
        self.layout.headings.clear()
        for note in root:
            if note.get(f"{W}type") in {None, "normal"}:
                self.layout.block(flat(clean(inline(note))))


def inline(element: Element) -> str:
    """Visible text below an element: runs, tabs, breaks and formulas; paragraphs inside (of a cell, a note) joined by spaces."""
    out: list[str] = []
    for node in _visible(element, 0):
        tag = node.tag
        if tag in {f"{W}t", f"{_M}t"}:
            out.append(node.text or "")
        elif tag in _INLINE:
            out.append(_INLINE[tag])
        elif tag == f"{W}p" and out and node is not element:
            out.append(" ")
    return "".join(out)


def _visible(element: Element, depth: int) -> Iterator[Element]:
    for child in element:
        tag = child.tag
        if tag in _SKIPPED or (tag == f"{W}txbxContent"):
            continue
        yield child
        if len(child) and depth < MOST_DEPTH:
            yield from _visible(child, depth + 1)


def _text_boxes(element: Element) -> Iterator[Element]:
    """Text boxes anchored in a paragraph, the compatibility copies of the same boxes left out."""
    for box in element.iter(f"{W}txbxContent"):
        if not any(above.tag == f"{_MC}Fallback" for above in box.iterancestors()):
            yield box


def _inside(element: Element, tag: str) -> Iterator[Element]:
    """Children of a kind, those inside content controls and insertions included."""
    for child in element:
        if child.tag == tag:
            yield child
        elif child.tag in {f"{W}sdt", f"{W}sdtContent", f"{W}ins", f"{W}customXml"}:
            yield from _inside(child, tag)
