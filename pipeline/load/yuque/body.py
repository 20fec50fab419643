"""What of a document's detail is kept: the content in all its forms, without the counters that change with every reader."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import cast

from pipeline.load.yuque.client import ROWS

KEPT = ("id", "type", "format", "slug", "title", "description", "body", "body_html", "body_lake", "body_sheet", "body_table", "created_at")
_IMAGE = re.compile(r"!\[([^\]\n]{0,500})\]\(([^)\s]{1,2000})")
_FILE = re.compile(r"(?<!!)\[([^\]\n]{0,500})\]\((https?://[^)\s]{0,2000}/attachments?/[^)\s]{0,2000})\)")
MOST_ROWS = 100_000


def kept(detail: Mapping[str, object]) -> dict[str, object]:
    """Equal content gives equal values, whoever looked at it meanwhile. A Markdown document keeps its HTML only where it has tables."""
    found = {name: detail[name] for name in KEPT if detail.get(name) not in (None, "")}
    markdown = str(found.get("body") or "")
    if found.get("format") in ("markdown", "lake") and not ("|" in markdown and ("<br" in markdown or "<card" in markdown)):
        found.pop("body_html", None)
        if markdown.strip():
            found.pop("body_lake", None)
    return found


def whole_table(detail: Mapping[str, object], more: Callable[[int], Mapping[str, object]]) -> object:
    """`body_table` with the records of all pages; `more` fetches page 2 and on."""
    first = _table(detail)
    if first is None:
        return detail.get("body_table")
    total = first.get("totalCount")
    records = list(cast("list[object]", first.get("records") or []))
    page = 2
    while isinstance(total, int) and len(records) < min(total, MOST_ROWS):
        table = _table(more(page))
        rows = cast("list[object]", (table or {}).get("records") or [])
        if not rows:
            break
        records += rows
        page += 1
    return {**first, "records": records, "page": 1, "pageSize": max(ROWS, len(records))}


def _table(detail: Mapping[str, object]) -> Mapping[str, object] | None:
    import orjson

    found = detail.get("body_table")
    if isinstance(found, str):
        try:
            found = orjson.loads(found)
        except orjson.JSONDecodeError:
            return None
    return cast("Mapping[str, object]", found) if isinstance(found, dict) else None


def assets(detail: Mapping[str, object]) -> Iterator[tuple[str, str, str]]:
    """(name, address, kind) of images and attachments in a Markdown body."""
    markdown = str(detail.get("body") or "") if detail.get("format") in ("markdown", "lake") else ""
    for match in _IMAGE.finditer(markdown):
        if "card=math" not in match[2]:
            yield match[1], match[2].split("#", 1)[0], "image"
    for match in _FILE.finditer(markdown):
        yield match[1], match[2], "file"
