"""pdfium with types: opening, lines of a page with their places, outline, properties."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from pipeline.contracts import Box
from pipeline.errors import Malformed
from pipeline.parse.layout import clean

_SOFT = re.compile("[\ufffe\u0002](?=(.?))")
_EDGE = 0.09
"""Share of a page's height, above and below, where running headers and footers stand."""
_PASSWORD = 4
"""FPDF_ERR_PASSWORD."""
MOST_BOOKMARKS = 20_000


@dataclass(frozen=True, slots=True)
class Line:
    """One line as pdfium reads it."""

    text: str
    page: int
    box: Box
    size: float
    """Type size in points as printed."""
    weight: int
    edge: bool
    """Whether it stands where running headers and footers do."""


class Pdf:
    """An open document. Close it; one at a time a process."""

    def __init__(self, data: bytes) -> None:
        """Raises Malformed (``encrypted``, ``truncated``, ``malformed``)."""
        self._library: Any = import_module("pypdfium2")
        self._raw: Any = import_module("pypdfium2.raw")
        self._error: type[Exception] = self._library.PdfiumError
        try:
            self._document: Any = self._library.PdfDocument(data)
            self.pages: int = len(self._document)
        except self._error as error:
            if getattr(error, "err_code", None) == _PASSWORD:
                raise Malformed("the PDF needs a password to be opened", hint="Remove the password and ingest it again.", code="encrypted") from error
            if b"%%EOF" not in data[-2048:]:
                raise _truncated() from error
            raise Malformed("the PDF is damaged and could not be repaired") from error
        problem = None if b"%%EOF" in data else _truncated()
        problem = problem or (None if self.pages else Malformed("the PDF has no pages"))
        if problem is not None:
            self.close()
            raise problem

    def close(self) -> None:
        """Free pdfium's memory."""
        self._document.close()

    def lines(self, number: int) -> list[Line]:
        """Lines of a page, counted from 1, in the order of the file; none when it has no text or cannot be loaded."""
        try:
            page = self._document[number - 1]
        except self._error:
            return []
        try:
            textpage = page.get_textpage()
            try:
                text: str = textpage.get_text_range()
                return self._lines(textpage.raw, text, number, placer(page)) if text.strip() else []
            finally:
                textpage.close()
        finally:
            page.close()

    def _lines(self, handle: Any, text: str, number: int, place: Placer) -> list[Line]:
        """Places come from the first and the last character of each line: text offsets count UTF-16 units there."""
        raw = self._raw
        matrix = raw.FS_MATRIX()
        wide = not text.isascii() and any(c > "\uffff" for c in text)
        lines: list[Line] = []
        at = 0
        for part in text.split("\r\n"):
            size = len(part) + sum(c > "\uffff" for c in part) if wide else len(part)
            bare = part.strip()
            if bare:
                first: int = raw.FPDFText_GetCharIndexFromTextIndex(handle, at + len(part) - len(part.lstrip()))
                last: int = raw.FPDFText_GetCharIndexFromTextIndex(handle, at + size - 1 - (len(part) - len(part.rstrip())))
                box = self._box(handle, first, last, place)
                index = max(first, 0)
                scale = math.hypot(matrix.c, matrix.d) if raw.FPDFText_GetMatrix(handle, index, ctypes.byref(matrix)) else 1.0
                points = round(raw.FPDFText_GetFontSize(handle, index) * scale, 1)
                edge = box[3] < place.height * _EDGE or box[1] > place.height * (1 - _EDGE)
                lines.append(Line(words(bare), number, box, points, raw.FPDFText_GetFontWeight(handle, index), edge))
            at += size + 2
        return lines

    def _box(self, handle: Any, first: int, last: int, place: Placer) -> Box:
        rect = self._raw.FS_RECTF()
        box: Box | None = None
        for index in (first, last):
            if index >= 0 and self._raw.FPDFText_GetLooseCharBox(handle, index, ctypes.byref(rect)):
                corner = place.box(rect.left, rect.bottom, rect.right, rect.top)
                box = corner if box is None else union(box, corner)
        return box or (0.0, 0.0, place.width, place.height)

    def outline(self) -> list[tuple[int, int, str]]:
        """(page from 1, level from 1, title) of each bookmark that leads to a page; none when the outline is broken."""
        found: list[tuple[int, int, str]] = []
        try:
            for mark in self._document.get_toc(max_depth=6):
                target = mark.get_dest()
                index: int | None = target.get_index() if target else None
                if index is not None:
                    found.append((index + 1, mark.level + 1, mark.get_title()))
                if len(found) >= MOST_BOOKMARKS:
                    break
        except self._error:
            return []
        return found

    def properties(self) -> dict[str, str]:
        """Title, Author and the like, as the file claims."""
        return self._document.get_metadata_dict(skip_empty=True)


def _truncated() -> Malformed:
    return Malformed("the PDF ends in the middle: it was cut off while being saved or copied", hint="Copy or download it again.", code="truncated")


def words(text: str) -> str:
    """Hyphens that pdfium found at a line's end go, unless what follows begins like a word of its own."""
    if "\ufffe" in text or "\x02" in text:
        text = _SOFT.sub(lambda found: "-" if found[1].isupper() or found[1].isdigit() else "", text)
    return clean(text)


def placer(page: Any) -> Placer:
    """The page's own mapping."""
    cropbox: Callable[[], tuple[float, float, float, float]] = page.get_cropbox
    return Placer(*cropbox(), page.get_rotation())


@dataclass(frozen=True, slots=True)
class Placer:
    """Page space (origin below, unrotated) to points from the upper left corner of the page as shown."""

    left: float
    low: float
    right: float
    high: float
    turn: int
    """Clockwise degrees: 0, 90, 180, 270."""

    @property
    def width(self) -> float:
        """As shown."""
        return self.high - self.low if self.turn in {90, 270} else self.right - self.left

    @property
    def height(self) -> float:
        """As shown."""
        return self.right - self.left if self.turn in {90, 270} else self.high - self.low

    def box(self, left: float, low: float, right: float, high: float) -> Box:
        """A rectangle of page space as shown."""
        match self.turn:
            case 90:
                x0, top, x1, bottom = low - self.low, left - self.left, high - self.low, right - self.left
            case 180:
                x0, top, x1, bottom = self.right - right, low - self.low, self.right - left, high - self.low
            case 270:
                x0, top, x1, bottom = self.high - high, self.right - right, self.high - low, self.right - left
            case _:
                x0, top, x1, bottom = left - self.left, self.high - high, right - self.left, self.high - low
        return round(x0, 1), round(top, 1), round(x1, 1), round(bottom, 1)


def union(a: Box, b: Box) -> Box:
    """Smallest box around both."""
    return min(a[0], b[0]), min(a[1], b[1]), max(a[2], b[2]), max(a[3], b[3])
