"""Markdown by a line scanner: the bulk path, where a full syntax tree would cost more than all other stages.

The text stays as written; only front matter and a licence comment at the top are taken off. Recognised are ATX and
setext headings, HTML headings on one line, fences, indented code, lists, quotes and pipe tables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pipeline.contracts import ParsedDocument, RawDocument, Section, Span, Table
from pipeline.parse import charset, frontmatter
from pipeline.parse.layout import clean, replaced

_ATX = re.compile(r" {0,3}(#{1,6})(?:[ \t\u3000]+(.*?))??(?:[ \t]+#+)?[ \t]*$")
_HTML_HEADING = re.compile(r" {0,3}<h([1-6])\b[^>]*>(.*?)</h\1>\s*$", re.IGNORECASE)
_FENCE = re.compile(r"[ \t]*(`{3,}(?=[^`]*$)|~{3,})")
_LIST = re.compile(r"[ \t]*(?:[-*+]|\d{1,9}[.)])(?:[ \t]|$)")
_RULE = re.compile(r" {0,3}(?:(?:\*[ \t]*){3,}|(?:_[ \t]*){3,}|(?:-[ \t]*){3,})$")
_UNDERLINE = re.compile(r" {0,3}(?:=+|-+)[ \t]*$")
_DELIMITER = re.compile(r"[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$")
_INLINE = re.compile(r"[\[\]*_`<\\{&]")
_LINK = re.compile(r"!?\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])")
_MARKS = re.compile(r"<[^>]*>|\s*\{#[^}]*\}\s*$|`+|\*{1,3}|(?<!\w)_{1,3}|_{1,3}(?!\w)|\\(?=[^\w\s])")
_SPECIAL = frozenset("#`~>-*+_=|<0123456789 \t")
"""First characters of a line that can begin anything but running text; a pipe elsewhere in a line is looked for apart."""


def parse(raw: RawDocument, options: Mapping[str, str]) -> ParsedDocument:
    """Sections with source lines and heading paths, pipe tables, metadata from front matter."""
    text, name = charset.decode(raw.data, raw.charset)
    text = clean(text)
    body, metadata = frontmatter.split(text)
    body = body.lstrip("\ufeff")
    skipped = text.count("\n", 0, len(text) - len(body)) if len(body) < len(text) else 0
    scan = _Scan(body, skipped + 1)
    scan.run()
    title = metadata.get("title")
    return ParsedDocument(
        body,
        tuple(scan.sections),
        tuple(scan.tables),
        title if isinstance(title, str) and title else scan.first_title,
        "text/markdown",
        "markdown",
        name,
        None,
        metadata,
        replaced(body) if "\ufffd" in body else (),
    )


def plain(heading: str) -> str:
    """A heading without its inline marks: links as their text, no emphasis, no attributes."""
    if _INLINE.search(heading):
        heading = _MARKS.sub("", _LINK.sub(r"\1", heading))
    return heading.strip()


class _Scan:
    """One pass over the lines of one document."""

    def __init__(self, text: str, first_line: int) -> None:
        self.lines = text.split("\n")
        self.first_line = first_line
        self.sections: list[Section] = []
        self.tables: list[Table] = []
        self.headings: list[tuple[int, str]] = []
        self.path: tuple[str, ...] = ()
        self.first_title = ""
        self.tag = ""
        self.open_at = 0
        self.open_line = 0
        self.starts: list[int] = []

    def run(self) -> None:
        """Walk the lines; every step consumes at least one."""
        at = 0
        starts = self.starts
        for line in self.lines:
            starts.append(at)
            at += len(line) + 1
        number, count = 0, len(self.lines)
        while number < count:
            line = self.lines[number]
            if not line or line.isspace():
                if self.tag and not self._continues(number):
                    self._close(number)
                number += 1
            elif line[0] not in _SPECIAL and "|" not in line:
                if not self.tag:
                    self._open("Text", number)
                elif self.tag == "List" and not self.lines[number - 1].strip():
                    self._close(number)
                    self._open("Text", number)
                number += 1
            else:
                number = self._special(number, line)
        self._close(count)
        filled = [number for number, line in enumerate(self.lines) if line.strip()]
        if filled and not self.sections:
            # Nothing but rules: a document of text has at least one section.
            self._add(filled[0], filled[-1], "Text")

    def _continues(self, number: int) -> bool:
        """Whether a blank line leaves a list open: the next line is indented or a further item."""
        if self.tag != "List" or number + 1 >= len(self.lines):
            return False
        following = self.lines[number + 1]
        return following[:2] in {"  ", "\t"} or following[:1] == "\t" or bool(_LIST.match(following) and not _RULE.match(following))

    def _special(self, number: int, line: str) -> int:
        """A line that may begin a block of its own; returns the number of the next line to look at."""
        first = line.lstrip(" \t")[:1]
        if first == "#" and (found := _ATX.match(line)):
            return self._heading(number, number + 1, len(found[1]), found[2] or "")
        if first in "`~" and (found := _FENCE.match(line)):
            return self._fence(number, found[1])
        if self.tag == "Text" and first in "=-" and _UNDERLINE.match(line):
            return self._setext(number, 1 if first == "=" else 2)
        if first in "*-_" and _RULE.match(line):
            self._close(number)
            return number + 1
        if "|" in line and self._is_table(number):
            return self._table(number)
        if first == "<" and (found := _HTML_HEADING.match(line)):
            return self._heading(number, number + 1, int(found[1]), found[2])
        return self._ordinary(number, line, first)

    def _ordinary(self, number: int, line: str, first: str) -> int:
        """List items, quotes, indented code, or one more line of text."""
        if first == ">":
            tag = "Quote"
        elif first in "-*+0123456789" and _LIST.match(line) and (self.tag != "Text" or not line[0].isdigit() or line.startswith(("1.", "1)"))):
            tag = "List"
        elif not self.tag and (line.startswith("    ") or line[0] == "\t"):
            tag = "Code"
        else:
            tag = self.tag or "Text"
            if tag == "List" and line[0] not in " \t" and not self.lines[number - 1].strip():
                self._close(number)
                tag = "Text"
        if self.tag and tag != self.tag and not (self.tag == "List" and line[0] in " \t"):
            self._close(number)
        if not self.tag:
            self._open(tag, number)
        return number + 1

    def _open(self, tag: str, number: int) -> None:
        self.tag = tag
        self.open_at = self.starts[number]
        self.open_line = number

    def _close(self, number: int) -> None:
        """End the open block before line `number`, blank lines at its end left out."""
        if not self.tag:
            return
        last = number - 1
        while last > self.open_line and not self.lines[last].strip():
            last -= 1
        self._add(self.open_line, last, self.tag)
        self.tag = ""

    def _add(self, first: int, last: int, tag: str, level: int = 0) -> Span:
        start, end = self.starts[first], self.starts[last] + len(self.lines[last])
        begin = self.first_line
        self.sections.append(Section(start, end, tag, level, self.path, None, None, begin + first, begin + last))
        return start, end

    def _heading(self, first: int, after: int, level: int, source: str) -> int:
        """A title over lines `first` to `after` - 1."""
        self._close(first)
        name = plain(source)
        while self.headings and self.headings[-1][0] >= level:
            self.headings.pop()
        self.path = tuple([text for _, text in self.headings])
        self._add(first, after - 1, "Title", level)
        if name:
            self.headings.append((level, name))
            self.path = (*self.path, name)
            if level == 1 and not self.first_title:
                self.first_title = name
        return after

    def _setext(self, number: int, level: int) -> int:
        """The open paragraph turns out to be a heading."""
        first = self.open_line
        self.tag = ""
        return self._heading(first, number + 1, level, " ".join(line.strip() for line in self.lines[first:number]))

    def _fence(self, number: int, mark: str) -> int:
        """Code up to the closing fence, or to the end of the document as the syntax has it; inside a list it is part of the list."""
        inside = self.tag == "List" and self.lines[number][0] in " \t"
        last = number + 1
        while last < len(self.lines):
            line = self.lines[last].strip()
            if line.startswith(mark) and not line.strip(mark[0]):
                break
            last += 1
        last = min(last, len(self.lines) - 1)
        if not inside:
            self._close(number)
            self._add(number, last, "Code")
        return last + 1

    def _is_table(self, number: int) -> bool:
        """A header row needs a delimiter row of as many cells below it."""
        if number + 1 >= len(self.lines) or self.tag == "List":
            return False
        below = self.lines[number + 1]
        if "-" not in below or ("|" not in below and ":" not in below) or len(below) > 10_000 or not _DELIMITER.match(below):
            return False
        return _columns(self.lines[number]) == _columns(below)

    def _table(self, number: int) -> int:
        """Rows are whole source lines; the delimiter row belongs to no row."""
        self._close(number)
        last = number + 1
        while last + 1 < len(self.lines) and "|" in self.lines[last + 1]:
            last += 1
        start, end = self._add(number, last, "Table")
        rows: list[Span] = []
        for row in (number, *range(number + 2, last + 1)):
            at, line = self.starts[row], self.lines[row]
            rows.append((at, at + len(line)))
        self.tables.append(Table(start, end, tuple(rows), rows[0]))
        return last + 1


def _columns(line: str) -> int:
    inner = line.strip()
    inner = inner[1:] if inner.startswith("|") else inner
    inner = inner[:-1] if inner.endswith("|") and not inner.endswith("\\|") else inner
    return inner.count("|") - inner.count("\\|") + 1
