"""PDF text layer through pdfium: paragraphs with page and box, headings from the outline or from type sizes.

pdfium is not thread-safe: one document at a time a process.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pipeline.contracts import Box, ParsedDocument, RawDocument
from pipeline.errors import BadRequest, Malformed
from pipeline.parse.layout import Layout, clean, flat

if TYPE_CHECKING:
    import pypdfium2

_CJK = re.compile("[\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef]")
_BULLET = re.compile(r"(?:[-•‣◦▪●○■□·*–]|\(?\d{1,3}[.)、]|[a-z][.)])\s")
_FULL_STOP = re.compile(r"[.!?。！？:：;；]['\"”’)）]*$")
_DIGITS = re.compile(r"\d+")
_SOFT = re.compile("[\ufffe\u0002](?=(.?))")
_JUNK_TITLE = re.compile(
    r"untitled|anonymous|unspecified|microsoft word|powerpoint|\.(?:docx?|pdf|tex|dvi|indd|xlsx?|pptx?|txt)\b|^[\W\d_]*$", re.IGNORECASE
)
MOST_PARAGRAPH = 4000
"""Characters after which the next line begins a paragraph of its own."""
_HEADING_RATIO = 1.07
_BOLD = 600
"""Font weight from which a line on its own reads as a heading in a text of normal weight."""
_EDGE = 0.09
"""Share of a page's height, above and below, where running headers and footers stand."""


@dataclass(frozen=True, slots=True)
class _Line:
    text: str
    page: int
    box: Box
    size: float
    weight: int
    edge: bool


@dataclass(slots=True)
class _Paragraph:
    text: str
    page: int
    box: Box
    size: float
    weight: int
    lines: int


def parse(raw: RawDocument, options: Mapping[str, str]) -> ParsedDocument:
    """Option ``pages``: numbers and ranges from 1, e.g. "1-3,7".

    Raises Malformed (``encrypted``, ``truncated``, ``malformed``, ``no_text``, ``no_pages``), BadRequest for a bad page range.
    """
    wanted = page_range(options.get("pages", ""))
    document = _opened(raw.data)
    try:
        total = len(document)
        numbers = [number for number in range(1, total + 1) if wanted is None or any(low <= number <= high for low, high in wanted)]
        if not numbers:
            raise Malformed(f"the document has {total} pages, none of them in the range asked for", hint="Correct the option pages.", code="no_pages")
        lines, silent = _read(document, numbers)
        if not lines:
            raise Malformed(
                "the PDF has no text layer: its pages are images or empty",
                hint="Run OCR over it (e.g. ocrmypdf), then ingest the result.",
                code="no_text",
            )
        return _compose(document, _without_running(lines, len(numbers)), total, silent)
    finally:
        document.close()


def page_range(spec: str) -> list[tuple[int, int]] | None:
    """First and last page of each part, from 1; None for all pages. Raises BadRequest."""
    if not spec.strip():
        return None
    ranges: list[tuple[int, int]] = []
    for part in spec.split(","):
        found = re.fullmatch(r"\s*(\d{1,7})\s*(?:(-)\s*(\d{1,7})?)?\s*", part)
        low = int(found[1]) if found else 0
        high = (int(found[3]) if found[3] else 10**7) if found and found[2] else low
        if not found or not 0 < low <= high:
            raise BadRequest(f"{spec!r} is not a page range", hint='Write pages as "1-3,7".', code="bad_option")
        ranges.append((low, high))
    return ranges


def _opened(data: bytes) -> pypdfium2.PdfDocument:
    import pypdfium2
    import pypdfium2.raw as pdfium

    try:
        document = pypdfium2.PdfDocument(data)
        pages = len(document)
    except pypdfium2.PdfiumError as error:
        if getattr(error, "err_code", None) == pdfium.FPDF_ERR_PASSWORD:
            raise Malformed("the PDF needs a password to be opened", hint="Remove the password and ingest it again.", code="encrypted") from error
        if b"%%EOF" not in data[-2048:]:
            raise _truncated() from error
        raise Malformed("the PDF is damaged and could not be repaired") from error
    if b"%%EOF" not in data:
        document.close()
        raise _truncated()
    if not pages:
        document.close()
        raise Malformed("the PDF has no pages")
    return document


def _truncated() -> Malformed:
    return Malformed("the PDF ends in the middle: it was cut off while being saved or copied", hint="Copy or download it again.", code="truncated")


def _read(document: pypdfium2.PdfDocument, numbers: Sequence[int]) -> tuple[list[_Line], list[int]]:
    """(lines of the pages in reading order, pages without any text)."""
    import pypdfium2

    lines: list[_Line] = []
    silent: list[int] = []
    for number in numbers:
        try:
            page = document[number - 1]
        except pypdfium2.PdfiumError:
            silent.append(number)
            continue
        try:
            found = _page_lines(page, number)
        finally:
            page.close()
        lines.extend(found)
        if not found:
            silent.append(number)
    return lines, silent


def _page_lines(page: pypdfium2.PdfPage, number: int) -> list[_Line]:
    import pypdfium2.raw as pdfium

    textpage = page.get_textpage()
    try:
        text = textpage.get_text_range()
        if not text.strip():
            return []
        place = _Placer(page)
        handle = textpage.raw
        rect, matrix = pdfium.FS_RECTF(), pdfium.FS_MATRIX()
        reference = ctypes.byref(rect)
        wide = any(c > "\uffff" for c in text) if not text.isascii() else False
        lines: list[_Line] = []
        at = 0
        for part in text.split("\r\n"):
            size = len(part) + sum(c > "\uffff" for c in part) if wide else len(part)
            bare = part.strip()
            if bare:
                first = pdfium.FPDFText_GetCharIndexFromTextIndex(handle, at + len(part) - len(part.lstrip()))
                last = pdfium.FPDFText_GetCharIndexFromTextIndex(handle, at + size - 1 - (len(part) - len(part.rstrip())))
                box = None
                for index in (first, last):
                    if index >= 0 and pdfium.FPDFText_GetLooseCharBox(handle, index, reference):
                        corner = place.box(rect.left, rect.bottom, rect.right, rect.top)
                        box = corner if box is None else union(box, corner)
                box = box or (0.0, 0.0, place.width, place.height)
                edge = box[3] < place.height * _EDGE or box[1] > place.height * (1 - _EDGE)
                index = max(first, 0)
                scale = math.hypot(matrix.c, matrix.d) if pdfium.FPDFText_GetMatrix(handle, index, ctypes.byref(matrix)) else 1.0
                points = round(pdfium.FPDFText_GetFontSize(handle, index) * scale, 1)
                lines.append(_Line(_words(bare), number, box, points, pdfium.FPDFText_GetFontWeight(handle, index), edge))
            at += size + 2
        return lines
    finally:
        textpage.close()


class _Placer:
    """Page space (origin below, unrotated) to points from the upper left corner of the page as shown."""

    def __init__(self, page: pypdfium2.PdfPage) -> None:
        self.left, self.low, self.right, self.high = page.get_cropbox()
        self.turn = page.get_rotation()
        across, up = self.right - self.left, self.high - self.low
        self.width, self.height = (up, across) if self.turn in {90, 270} else (across, up)

    def box(self, left: float, low: float, right: float, high: float) -> Box:
        match self.turn:
            case 90:
                corners = (low - self.low, left - self.left, high - self.low, right - self.left)
            case 180:
                corners = (self.right - right, low - self.low, self.right - left, high - self.low)
            case 270:
                corners = (self.high - high, self.right - right, self.high - low, self.right - left)
            case _:
                corners = (left - self.left, self.high - high, right - self.left, self.high - low)
        x0, top, x1, bottom = corners
        return round(x0, 1), round(top, 1), round(x1, 1), round(bottom, 1)


def union(a: Box, b: Box) -> Box:
    """Smallest box around both."""
    return min(a[0], b[0]), min(a[1], b[1]), max(a[2], b[2]), max(a[3], b[3])


def _words(text: str) -> str:
    """Hyphens that pdfium found at a line's end go, unless what follows begins like a word of its own."""
    if "\ufffe" in text or "\x02" in text:
        text = _SOFT.sub(lambda found: "-" if found[1].isupper() or found[1].isdigit() else "", text)
    return clean(text)


def _without_running(lines: list[_Line], pages: int) -> list[_Line]:
    """Drop what stands at the edge of most pages with only its numbers changing; needs three pages to judge by."""
    if pages < 3:
        return lines
    seen = {(line.page, _DIGITS.sub("#", line.text)) for line in lines if line.edge}
    often = Counter(text for _, text in seen)
    running = {text for text, count in often.items() if count >= 3 and count * 10 >= pages * 6}
    kept = [line for line in lines if not (line.edge and _DIGITS.sub("#", line.text) in running)]
    return kept or lines


def _paragraphs(lines: Sequence[_Line]) -> list[_Paragraph]:
    paragraphs: list[_Paragraph] = []
    right = 0.0
    before: _Line | None = None
    for line in lines:
        last = paragraphs[-1] if paragraphs else None
        if last is None or before is None or _begins(line, before, last, right):
            paragraphs.append(_Paragraph(line.text, line.page, line.box, line.size, line.weight, 1))
            right = line.box[2]
        else:
            last.text = _joined(last.text, line.text)
            last.box = union(last.box, line.box)
            last.lines += 1
            right = max(right, line.box[2])
        before = line
    return paragraphs


def _begins(line: _Line, before: _Line, paragraph: _Paragraph, right: float) -> bool:
    """Whether a line starts a new paragraph."""
    if line.page != before.page or len(paragraph.text) > MOST_PARAGRAPH:
        return True
    height = max(before.box[3] - before.box[1], 1.0)
    overlap = min(line.box[3], before.box[3]) - max(line.box[1], before.box[1])
    if overlap > 0.5 * min(height, line.box[3] - line.box[1]):
        return False
    if abs(line.size - paragraph.size) > 0.1 * max(paragraph.size, 1.0):
        return True
    gap = line.box[1] - before.box[3]
    if gap > 0.6 * height or gap < -0.8 * height or _BULLET.match(line.text):
        return True
    width = max(right - paragraph.box[0], 1.0)
    return bool(_FULL_STOP.search(before.text)) and before.box[2] < right - 0.12 * width


def _joined(first: str, second: str) -> str:
    """Lines of a paragraph as running text: no space between Chinese or Japanese characters."""
    if _rowlike(second) and _rowlike(first[first.rfind("\n") + 1 :]):
        return f"{first}\n{second}"
    if _CJK.match(first[-1:]) and _CJK.match(second[:1]):
        return first + second
    if first.endswith("-") and second[:1].islower() and first[-2:-1].isalpha():
        return first[:-1] + second
    return f"{first} {second}"


def _rowlike(line: str) -> bool:
    """Whether a line reads like a table's row: a third of it digits. Rows keep their line breaks."""
    return len(line) > 5 and sum(map(str.isdigit, line)) * 3 > len(line)


def _compose(document: pypdfium2.PdfDocument, lines: list[_Line], pages: int, silent: Sequence[int]) -> ParsedDocument:
    paragraphs = _paragraphs(lines)
    outline = _outline(document)
    levels = _Levels(paragraphs)
    layout = Layout()
    largest: _Paragraph | None = None
    for paragraph in paragraphs:
        name = flat(paragraph.text)
        level = outline.get((paragraph.page, _bare(name)), 0) if outline else levels.of(paragraph)
        if level and len(name) <= 200 and any(map(str.isalpha, name)):
            layout.heading(name, level, page=paragraph.page, box=paragraph.box)
        else:
            layout.block(paragraph.text, page=paragraph.page, box=paragraph.box)
        if paragraph.page == paragraphs[0].page and len(name) > 3 and _upright(paragraph) and (largest is None or paragraph.size > largest.size):
            largest = paragraph
    metadata = document.get_metadata_dict(skip_empty=True)
    title = flat(clean(metadata.get("Title", "")))
    if not title or _JUNK_TITLE.search(title):
        sized = largest is not None and any(other.size < largest.size for other in paragraphs)
        title = flat(largest.text) if largest is not None and sized and len(largest.text) <= 200 else ""
    author = flat(clean(metadata.get("Author", "")))
    author = "" if _JUNK_TITLE.search(author) else author
    warnings = [f"pages without text, perhaps scanned: {_ranges(silent)}"] if silent else []
    held = layout.document(title=title, media_type="application/pdf", parser="pdf", pages=pages, warnings=warnings)
    return replace(held, metadata={"author": author}) if author else held


def _outline(document: pypdfium2.PdfDocument) -> dict[tuple[int, str], int]:
    """(page, bare title) → level from 1, of the bookmarks."""
    import pypdfium2

    entries: dict[tuple[int, str], int] = {}
    try:
        for mark in document.get_toc(max_depth=6):
            target = mark.get_dest()
            index = target.get_index() if target else None
            name = _bare(mark.get_title())
            if index is not None and name:
                entries[index + 1, name] = mark.level + 1
            if len(entries) > 20_000:
                break
    except pypdfium2.PdfiumError:
        return {}
    return entries


def _bare(text: str) -> str:
    return "".join(c for c in text.casefold() if c.isalnum())


def _upright(paragraph: _Paragraph) -> bool:
    """False for lines set sideways along a page's edge."""
    return paragraph.box[3] - paragraph.box[1] < 2.5 * max(paragraph.size, 6.0) * paragraph.lines


class _Levels:
    """Heading levels by type: sizes clearly above the commonest, largest first, then bold lines of body size."""

    def __init__(self, paragraphs: Sequence[_Paragraph]) -> None:
        sizes: Counter[float] = Counter()
        bold = 0
        for paragraph in paragraphs:
            sizes[paragraph.size] += len(paragraph.text)
            bold += len(paragraph.text) if paragraph.weight >= _BOLD else 0
        total = sum(sizes.values())
        self.body = sizes.most_common(1)[0][0] if sizes else 0.0
        self.bold_stands_out = bold * 4 < total
        larger = sorted((size for size, count in sizes.items() if size >= self.body * _HEADING_RATIO and count * 4 < total), reverse=True)
        self.ranks = {size: min(rank, 4) for rank, size in enumerate(larger, 1)} if self.body > 0 else {}

    def of(self, paragraph: _Paragraph) -> int:
        """Level from 1, or 0 for running text."""
        if paragraph.lines > 3 or not _upright(paragraph) or (_BULLET.match(paragraph.text) and not paragraph.text[0].isdigit()):
            return 0
        ended = bool(_FULL_STOP.search(paragraph.text))
        rank = self.ranks.get(paragraph.size, 0)
        if rank and (not ended or paragraph.size >= 1.3 * self.body):
            return rank
        short = paragraph.lines == 1 and len(paragraph.text) <= 100 and not ended
        same = abs(paragraph.size - self.body) < 0.5
        return len(set(self.ranks.values())) + 1 if short and same and paragraph.weight >= _BOLD and self.bold_stands_out else 0


def _ranges(numbers: Sequence[int]) -> str:
    """ "1-3, 7" """
    parts: list[str] = []
    first = last = numbers[0]
    for number in (*numbers[1:], 0):
        if number != last + 1:
            parts.append(str(first) if first == last else f"{first}-{last}")
            first = number
        last = number
    return ", ".join(parts)
