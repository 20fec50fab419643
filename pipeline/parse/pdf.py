"""PDF text layer through pdfium: paragraphs with page and box, headings from the outline or from type sizes.

pdfium is not thread-safe: one document at a time a process.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.contracts import Box, ParsedDocument, RawDocument
from pipeline.errors import BadRequest, Malformed
from pipeline.parse.layout import Layout, clean, flat
from pipeline.parse.pdfium import Line, Pdf, union

_CJK = re.compile("[\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef]")
_BULLET = re.compile(r"(?:[-•‣◦▪●○■□·*–]|\(?\d{1,3}[.)、]|[a-z][.)])\s")
_FULL_STOP = re.compile(r"[.!?。！？:：;；]['\"”’)）]*$")
_DIGITS = re.compile(r"\d+")
_JUNK_TITLE = re.compile(
    r"untitled|anonymous|unspecified|microsoft word|powerpoint|\.(?:docx?|pdf|tex|dvi|indd|xlsx?|pptx?|txt)\b|^[\W\d_]*$", re.IGNORECASE
)
MOST_PARAGRAPH = 4000
"""Characters after which the next line begins a paragraph of its own."""
_HEADING_RATIO = 1.07
_BOLD = 600
"""Font weight from which a line on its own reads as a heading in a text of normal weight."""


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
    pdf = Pdf(raw.data)
    try:
        numbers = [number for number in range(1, pdf.pages + 1) if wanted is None or any(low <= number <= high for low, high in wanted)]
        if not numbers:
            raise Malformed(
                f"the document has {pdf.pages} pages, none of them in the range asked for", hint="Correct the option pages.", code="no_pages"
            )
        read = {number: pdf.lines(number) for number in numbers}
        lines = [line for number in numbers for line in read[number]]
        if not lines:
            raise Malformed(
                "the PDF has no text layer: its pages are images or empty",
                hint="Run OCR over it (e.g. ocrmypdf), then ingest the result.",
                code="no_text",
            )
        return _compose(pdf, _without_running(lines, len(numbers)), [number for number in numbers if not read[number]])
    finally:
        pdf.close()


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


def _without_running(lines: list[Line], pages: int) -> list[Line]:
    """Drop what stands at the edge of most pages with only its numbers changing; needs three pages to judge by."""
    if pages < 3:
        return lines
    seen = {(line.page, _DIGITS.sub("#", line.text)) for line in lines if line.edge}
    often = Counter(text for _, text in seen)
    running = {text for text, count in often.items() if count >= 3 and count * 10 >= pages * 6}
    kept = [line for line in lines if not (line.edge and _DIGITS.sub("#", line.text) in running)]
    return kept or lines


def _paragraphs(lines: Sequence[Line]) -> list[_Paragraph]:
    paragraphs: list[_Paragraph] = []
    right = 0.0
    before: Line | None = None
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


def _begins(line: Line, before: Line, paragraph: _Paragraph, right: float) -> bool:
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


def _compose(pdf: Pdf, lines: list[Line], silent: Sequence[int]) -> ParsedDocument:
    paragraphs = _paragraphs(lines)
    outline = {(page, _bare(name)): level for page, level, name in pdf.outline() if _bare(name)}
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
        if paragraph.page == paragraphs[0].page and len(name) > 3 and levels.of(paragraph) and (largest is None or paragraph.size > largest.size):
            largest = paragraph
    metadata = pdf.properties()
    title = flat(clean(metadata.get("Title", "")))
    if not title or _JUNK_TITLE.search(title):
        sized = largest is not None and any(other.size < largest.size for other in paragraphs)
        title = flat(largest.text) if largest is not None and sized and len(largest.text) <= 200 else ""
    author = flat(clean(metadata.get("Author", "")))
    author = "" if _JUNK_TITLE.search(author) else author
    warnings = [f"pages without text, perhaps scanned: {_ranges(silent)}"] if silent else []
    held = layout.document(title=title, media_type="application/pdf", parser="pdf", pages=pdf.pages, warnings=warnings)
    return replace(held, metadata={"author": author}) if author else held


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
