"""Addresses out of sitemaps: indexes of sitemaps, packed ones, plain lists. Dates in them are not believed."""

from __future__ import annotations

import html
import re
import zlib

_LOCATION = re.compile(r"<loc>\s*(?:<!\[CDATA\[)?\s*([^<\]]+?)\s*(?:\]\]>)?\s*</loc>", re.IGNORECASE)
_PREFIXED = re.compile(r"<(/?)(?:sm|sitemap|s|ns0):", re.IGNORECASE)
MOST_BYTES = 60_000_000
"""Unpacked; the standard allows 50 MB."""
MOST_ADDRESSES = 50_000
MOST_LEVELS = 3


def read(data: bytes) -> tuple[list[str], bool]:
    """(addresses in the order of the file, whether they are further sitemaps). Empty for what is no sitemap."""
    text = _unpacked(data).decode("utf-8", "replace").lstrip("\ufeff")
    head = text[:2000].lower()
    if "<" not in head:
        lines = [line.strip() for line in text.splitlines()[:MOST_ADDRESSES]]
        return [line for line in lines if line.startswith(("http://", "https://"))], False
    text = _PREFIXED.sub(r"<\1", text)
    found: list[str] = []
    for match in _LOCATION.finditer(text):
        found.append(html.unescape(match[1]))
        if len(found) >= MOST_ADDRESSES:
            break
    return found, "<sitemapindex" in text[:5000].lower()


def _unpacked(data: bytes) -> bytes:
    """The file itself, cut at the bound when it swells beyond it."""
    if not data.startswith(b"\x1f\x8b"):
        return data[:MOST_BYTES]
    try:
        return zlib.decompressobj(31).decompress(data, MOST_BYTES)
    except zlib.error:
        return b""
