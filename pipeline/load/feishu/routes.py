"""Kinds of objects: what is kept of each, and which have nothing that an interface would give."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
XLSX = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
BLOCKS = "application/vnd.feishu.docx+json"
SHEET = "application/vnd.feishu.sheet+json"
BITABLE = "application/vnd.feishu.bitable+json"

MEDIA_TYPES: Mapping[str, str] = MappingProxyType({"docx": BLOCKS, "doc": DOCX, "sheet": SHEET, "bitable": BITABLE})
"""Files are what their bytes say."""
UNREADABLE: Mapping[str, str] = MappingProxyType({"mindnote": "mind maps", "slides": "slides"})
