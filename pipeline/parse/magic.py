"""What a file really is, by its first bytes, then by its name."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping

from pipeline.errors import Malformed, Unsupported
from pipeline.parse import charset

PDF = "application/pdf"
DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
XLSX = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
XLS = "application/vnd.ms-excel"
ODS = "application/vnd.oasis.opendocument.spreadsheet"

SUFFIXES: Mapping[str, str] = {
    ".md": "text/markdown",
    ".markdown": "text/markdown",
    ".mkd": "text/markdown",
    ".mdx": "text/markdown",
    ".txt": "text/plain",
    ".text": "text/plain",
    ".log": "text/plain",
    ".rst": "text/plain",
    ".html": "text/html",
    ".htm": "text/html",
    ".xhtml": "text/html",
    ".csv": "text/csv",
    ".tsv": "text/tab-separated-values",
    ".tab": "text/tab-separated-values",
    ".json": "application/json",
    ".geojson": "application/json",
    ".jsonl": "application/jsonl",
    ".ndjson": "application/jsonl",
    ".docx": DOCX,
    ".docm": DOCX,
    ".xlsx": XLSX,
    ".xlsm": XLSX,
    ".xls": XLS,
    ".ods": ODS,
    ".pdf": PDF,
}

VENDOR = frozenset(
    {
        "application/vnd.yuque.document+json",
        "application/vnd.feishu.docx+json",
        "application/vnd.feishu.sheet+json",
        "application/vnd.feishu.bitable+json",
    }
)
"""What connectors keep of a vendor's answers: they made the bytes, so their word counts, whatever the document is called."""

_ALIASES = {
    "text/x-markdown": "text/markdown",
    "application/xhtml+xml": "text/html",
    "application/csv": "text/csv",
    "text/json": "application/json",
    "application/x-ndjson": "application/jsonl",
    "application/x-jsonlines": "application/jsonl",
    "application/jsonlines": "application/jsonl",
    "application/x-pdf": PDF,
}

_FOREIGN: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x89PNG\r\n\x1a\n", "PNG image"),
    (0, b"\xff\xd8\xff", "JPEG image"),
    (0, b"GIF87a", "GIF image"),
    (0, b"GIF89a", "GIF image"),
    (0, b"II*\x00", "TIFF image"),
    (0, b"MM\x00*", "TIFF image"),
    (8, b"WEBP", "WebP image"),
    (4, b"ftyp", "video or HEIF image"),
    (0, b"ID3", "MP3 recording"),
    (0, b"OggS", "Ogg recording"),
    (0, b"fLaC", "FLAC recording"),
    (8, b"WAVE", "WAV recording"),
    (0, b"\x1aE\xdf\xa3", "Matroska video"),
    (0, b"\x1f\x8b", "gzip archive"),
    (0, b"BZh", "bzip2 archive"),
    (0, b"\xfd7zXZ\x00", "xz archive"),
    (0, b"7z\xbc\xaf\x27\x1c", "7-Zip archive"),
    (0, b"Rar!\x1a\x07", "RAR archive"),
    (0, b"\x28\xb5\x2f\xfd", "Zstandard archive"),
    (257, b"ustar", "tar archive"),
    (0, b"\x7fELF", "program"),
    (0, b"SQLite format 3\x00", "SQLite database"),
    (0, b"PAR1", "Parquet file"),
    (0, b"\xca\xfe\xba\xbe", "Java class"),
    (0, b"\x00asm", "WebAssembly module"),
    (0, b"wOF", "font"),
    (0, b"{\\rtf", "RTF document"),
    (0, b"%!PS", "PostScript document"),
)

_NAMED = {
    ".doc": "Word 97 document",
    ".ppt": "PowerPoint 97 presentation",
    ".pptx": "PowerPoint presentation",
    ".odt": "OpenDocument text",
    ".odp": "OpenDocument presentation",
    ".epub": "EPUB book",
    ".eml": "e-mail message",
    ".msg": "Outlook message",
    ".rtf": "RTF document",
    ".ipynb": "Jupyter notebook",
    ".mht": "web archive",
    ".mhtml": "web archive",
}
"""Formats a person would expect to be read, and that have no parser yet."""

SUPPORTED = "Markdown, plain text, HTML, CSV, TSV, JSON, JSON Lines, DOCX, XLSX, XLS, ODS and PDF"
_BINARY = frozenset({PDF, DOCX, XLSX, XLS, ODS})
_SHEETS = frozenset({XLSX, XLS, ODS})
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_HTML = re.compile(rb"\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html|head|body)[\s>]", re.IGNORECASE | re.DOTALL)


def suffix(name: str) -> str:
    """Lower-case suffix with its dot, of a path, a key or an address; empty when there is none."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1].split("?", 1)[0].split("#", 1)[0]
    dot = last.rfind(".")
    return last[dot:].lower() if dot > 0 else ""


def media_type(declared: str) -> str:
    """A header's media type without parameters, in the spelling used here."""
    plain = declared.partition(";")[0].strip().lower()
    return _ALIASES.get(plain, plain)


def sniff(data: bytes, name: str, declared: str = "") -> tuple[str, tuple[str, ...]]:
    """(media type by content first, then name, then declaration; warnings when content and name disagree).

    Raises Unsupported for what no parser reads, and Malformed (``empty``, ``encrypted``) for what no parser could.
    """
    if not data:
        raise Malformed("the file is empty", hint="Nothing to index: remove it from the source, or fill it.", code="empty")
    end = suffix(name)
    said = media_type(declared)
    if said in VENDOR:
        return said, ()
    named = SUFFIXES.get(end, "") or (said if said in _KNOWN else "")
    if end == ".html" or (said == "text/html" and named != "text/html" and _HTML.match(data[:2048])):
        named = "text/html"
    found = _container(data, named)
    if found:
        agree = found == named or not named or (found in _SHEETS and named in _SHEETS)
        return found, () if agree else (f"the content is {label(found)}, although the name says {label(named)}",)
    return _text(data, end, named)


def label(kind: str) -> str:
    """Short name of a supported media type for messages."""
    return _LABELS.get(kind, kind)


def _container(data: bytes, named: str) -> str:
    """Media type by magic bytes; empty for what must be text."""
    if data.startswith(b"PK\x03\x04") or data.startswith(b"PK\x05\x06"):
        return _zip(data, named)
    if data.startswith(_OLE):
        return _ole(data)
    before, mark, _ = data[:1024].partition(b"%PDF-")
    if mark and (named == PDF or not before.strip(b"\x00\xef\xbb\xbf \r\n\t")):
        return PDF
    for offset, mark, what in _FOREIGN:
        if data.startswith(mark, offset):
            raise Unsupported(f"{what}s are not read", hint=f"Convert it to one of: {SUPPORTED}.")
    return ""


def _zip(data: bytes, named: str) -> str:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as container:
            names = set(container.namelist())
            kind = container.read("mimetype")[:100].decode("ascii", "replace").strip() if "mimetype" in names else ""
    except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError, RuntimeError, OSError):
        return named if named in {DOCX, XLSX, ODS} else _cut_zip(data)
    if kind == ODS:
        return ODS
    if "xl/workbook.bin" in names:
        raise Unsupported("binary workbooks (XLSB) are not read", hint="Save it as XLSX.")
    for prefix, found in (("word/", DOCX), ("xl/", XLSX)):
        if any(name.startswith(prefix) for name in names):
            return found
    if any(name.startswith("ppt/") for name in names):
        what = "PowerPoint presentations"
    elif kind == "application/epub+zip":
        what = "EPUB books"
    elif kind.startswith("application/vnd.oasis"):
        what = "OpenDocument texts and presentations"
    else:
        raise Unsupported("a ZIP archive is no document by itself", hint="Ingest the .zip file by its path: its members become documents.")
    raise Unsupported(f"{what} are not read", hint=f"Convert it to one of: {SUPPORTED}.")


def _cut_zip(data: bytes) -> str:
    """A container without its directory: the names of its first members tell what it was."""
    for mark, found in ((b"word/", DOCX), (b"xl/", XLSX)):
        if mark in data[:4096]:
            return found
    raise Malformed("the file is a damaged ZIP container", hint="Copy or download the file again.", code="truncated")


def _ole(data: bytes) -> str:
    """OLE2 containers, told apart by the names in their directory."""

    def holds(entry: str) -> bool:
        return entry.encode("utf-16-le") in data

    if holds("EncryptedPackage") or holds("EncryptionInfo"):
        raise Malformed("the Office file is protected by a password", hint="Remove the password in Office and ingest it again.", code="encrypted")
    if holds("__properties_version1.0"):
        what = "Outlook messages"
    elif holds("WordDocument"):
        what = "Word 97 documents"
    elif holds("PowerPoint Document"):
        what = "PowerPoint 97 presentations"
    elif holds("Workbook") or holds("Book"):
        return XLS
    else:
        what = "OLE2 containers of this kind"
    raise Unsupported(f"{what} are not read", hint=f"Save it in a newer format; supported: {SUPPORTED}.")


def _text(data: bytes, end: str, named: str) -> tuple[str, tuple[str, ...]]:
    """Media type of what has no magic bytes: it is text, or nothing we read."""
    if end in _NAMED:
        raise Unsupported(f"{_NAMED[end]}s are not read", hint=f"Convert it to one of: {SUPPORTED}.")
    head = data[:4096]
    if len(head.translate(None, _CONTROL)) < len(head) and not charset.plausible(data[: charset.SAMPLE]):
        raise Unsupported("the content is binary, of no known format", hint=f"Supported: {SUPPORTED}.", code="unsupported")
    if named and named not in _BINARY and not (named == "text/plain" and _HTML.match(data[:2048])):
        return named, ()
    if _HTML.match(data[:2048]):
        found = "text/html"
    elif named in _SHEETS:
        found = "text/tab-separated-values" if b"\t" in head else "text/csv"
    else:
        found = "text/plain"
    if not named or (named == "text/plain" and not end):
        return found, ()
    return found, (f"the content is {label(found)}, although the name says {label(named)}",)


_CONTROL = bytes(code for code in range(32) if code not in b"\t\n\v\f\r\x1b") + b"\x7f"
_KNOWN = frozenset(SUFFIXES.values())
_LABELS = {
    "text/markdown": "Markdown",
    "text/plain": "plain text",
    "text/html": "HTML",
    "text/csv": "CSV",
    "text/tab-separated-values": "TSV",
    "application/json": "JSON",
    "application/jsonl": "JSON Lines",
    DOCX: "DOCX",
    XLSX: "XLSX",
    XLS: "XLS",
    ODS: "ODS",
    PDF: "PDF",
}
