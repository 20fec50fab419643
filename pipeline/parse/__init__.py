"""Bytes to text with positions, one format a file. Heavy libraries are imported by the format that needs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pipeline import registry
from pipeline.contracts import ParsedDocument, RawDocument
from pipeline.errors import Malformed
from pipeline.parse.magic import DOCX, ODS, PDF, SUFFIXES, XLS, XLSX, sniff, suffix

__all__ = ["PARSERS", "RISKY", "SUFFIXES", "VERSION", "name_of", "parse", "sniff"]

VERSION = 2
"""Rises whenever a parser gives another text for the same bytes: stored outputs of older versions are then made anew."""

PARSERS: Mapping[str, str] = {
    "text/markdown": "pipeline.parse.markdown:parse",
    "text/plain": "pipeline.parse.plain:parse",
    "text/html": "pipeline.parse.html:parse",
    "text/csv": "pipeline.parse.csv:parse",
    "text/tab-separated-values": "pipeline.parse.csv:parse",
    "application/json": "pipeline.parse.json:parse",
    "application/jsonl": "pipeline.parse.json:parse_lines",
    DOCX: "pipeline.parse.docx:parse",
    XLSX: "pipeline.parse.xlsx:parse",
    XLS: "pipeline.parse.xlsx:parse",
    ODS: "pipeline.parse.xlsx:parse",
    PDF: "pipeline.parse.pdf:parse",
    "application/vnd.yuque.document+json": "pipeline.parse.yuque:parse",
    "application/vnd.feishu.docx+json": "pipeline.parse.feishu.docx:parse",
    "application/vnd.feishu.sheet+json": "pipeline.parse.feishu.grids:parse_sheet",
    "application/vnd.feishu.bitable+json": "pipeline.parse.feishu.grids:parse_bitable",
}
"""Media type → parser."""

RISKY = frozenset({PDF, DOCX, XLSX, XLS, ODS})
"""Media types that are slow or read by native code: they go from queue to queue, always in a guarded child."""


def name_of(raw: RawDocument) -> str:
    """What stands for the file's name: path, address or key, whichever there is."""
    return raw.item.path or raw.item.url or raw.item.key


def parse(raw: RawDocument, options: Mapping[str, str] = {}, *, parsers: Mapping[str, str] = PARSERS) -> ParsedDocument:
    """Sniff and parse in this process, and check the outcome.

    PDF, DOCX and workbooks belong into `guard.Guard`: native code can hang or crash, and pdfium is not thread-safe.
    Options: ``pages`` ("1-3,7") for PDF; ``content`` and ``links`` for HTML (`pipeline.parse.html`).
    Raises Malformed, Unsupported, TooLarge, BadRequest for an option, BrokenContract for a faulty parser.
    """
    name = name_of(raw)
    kind, warnings = sniff(raw.data, name, raw.media_type or raw.item.media_type)
    parser = registry.find(parsers, kind, what="media type")
    document: ParsedDocument = parser(raw if raw.media_type == kind else replace(raw, media_type=kind), options)
    if not document.text or document.text.isspace():
        raise Malformed("the file holds no text", hint="Nothing to index: remove it from the source, or fill it.", code="empty")
    document.check()
    title = document.title or raw.item.title or stem(name)
    if warnings or title != document.title:
        return replace(document, title=title, warnings=warnings + document.warnings)
    return document


def stem(name: str) -> str:
    """The last part of a path, key or address, without its suffix: the title when nothing better is known."""
    last = name.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1].split("?", 1)[0]
    end = suffix(last)
    return last[: -len(end)] if end else last
