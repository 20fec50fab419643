"""Plain text: paragraphs are what blank lines separate; the text itself stays as it is."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.contracts import ParsedDocument, RawDocument, Section
from pipeline.parse import charset
from pipeline.parse.layout import clean, replaced

MOST_SECTION = 20_000
"""Characters after which a paragraph's next line begins a new section, so that a log without blank lines keeps useful line numbers."""


def parse(raw: RawDocument, options: Mapping[str, str]) -> ParsedDocument:
    """One section a paragraph, with source lines. No title: plain text does not say which line would be one."""
    text, name = charset.decode(raw.data, raw.charset)
    text = clean(text)
    sections: list[Section] = []
    line, seen = 1, 0
    for start, end in _spans(text):
        line += text.count("\n", seen, start)
        last = line + text.count("\n", start, end)
        sections.append(Section(start, end, "Text", 0, (), None, None, line, last))
        line, seen = last, end
    return ParsedDocument(text, tuple(sections), (), "", "text/plain", "plain", name, warnings=replaced(text))


def _spans(text: str) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for found in _paragraphs(text):
        start, end = found
        while end - start > MOST_SECTION:
            cut = text.rfind("\n", start + 1, start + MOST_SECTION)
            if cut < 0:
                cut = text.find("\n", start + MOST_SECTION, end)
            if cut < 0:
                break
            spans.append((start, cut))
            start = cut + 1
        spans.append((start, end))
    return spans


def _paragraphs(text: str) -> list[tuple[int, int]]:
    """Spans between blank lines, without a regular expression over lines of many megabytes."""
    spans: list[tuple[int, int]] = []
    at, start, end = 0, -1, 0
    for line in text.split("\n"):
        if line and not line.isspace():
            if start < 0:
                start = at
            end = at + len(line)
        elif start >= 0:
            spans.append((start, end))
            start = -1
        at += len(line) + 1
    if start >= 0:
        spans.append((start, end))
    return spans
