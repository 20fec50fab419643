"""JSON as bytes, for answers and for the command line."""

from __future__ import annotations

import json
from typing import Any


def dumps(value: Any) -> bytes:
    """Compact UTF-8 JSON of plain values; a lone surrogate (a file name that is not UTF-8) stays an escape."""
    import orjson

    try:
        return orjson.dumps(value)
    except (TypeError, orjson.JSONEncodeError):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")
