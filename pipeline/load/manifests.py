"""Manifests: a line of JSON per document, either a path or the text itself, with its key, title, address and metadata."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import orjson

from pipeline.contracts import Scalar
from pipeline.errors import Gone, Malformed, NotFound, PipelineError, TooLarge
from pipeline.load.entries import FileEntry, found, trouble

FIELDS = frozenset({"path", "text", "key", "title", "url", "metadata", "media_type"})
SUFFIXES = (".jsonl", ".ndjson")
Checked = Callable[[str], PipelineError | None]
"""Why a path of a manifest may not be read; None when it may."""


def is_manifest(path: str) -> bool:
    """Whether the first line is an object with `path` or `text` and no field but a manifest's: other JSON Lines are documents themselves."""
    try:
        with open(path, "rb") as file:
            line = file.readline(1 << 20).lstrip(b"\xef\xbb\xbf")
    except OSError:
        return False
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        return _starts_like_one(line)
    return isinstance(row, dict) and _shape(cast(dict[str, object], row))


def _shape(row: dict[str, object]) -> bool:
    return row.keys() <= FIELDS and (isinstance(row.get("path"), str) or isinstance(row.get("text"), str))


def _starts_like_one(line: bytes) -> bool:
    """A first line longer than what was read: a text of megabytes in place."""
    return len(line) == 1 << 20 and line.lstrip().startswith((b'{"text"', b'{"path"', b'{"key"', b'{"title"'))


def entries(path: str, stat: os.stat_result, max_bytes: int, allowed: Checked) -> Iterator[FileEntry]:
    """An entry a line; a bad line is one failure."""
    with open(path, "rb") as file:
        number = 0
        while True:
            offset = file.tell()
            line = file.readline(max_bytes + 1)
            if not line:
                return
            number += 1
            if len(line) > max_bytes:
                while line and not line.endswith(b"\n"):
                    line = file.readline(1 << 20)
                yield trouble(path, TooLarge(f"line {number} of the manifest is over the size limit"), key=f"file://{path}#{number}", stat=stat)
            elif line.strip():
                yield _entry(path, stat, line, number, offset, max_bytes, allowed)


def _entry(path: str, stat: os.stat_result, line: bytes, number: int, offset: int, max_bytes: int, allowed: Checked) -> FileEntry:
    place = f"file://{path}#{number}"
    try:
        row = row_of(line)
    except Malformed as error:
        return trouble(path, Malformed(f"line {number} of the manifest: {error.detail}", hint=error.hint, code="bad_manifest"), key=place, stat=stat)
    key = str(row.get("key") or "")
    title, url, kind = str(row.get("title") or ""), str(row.get("url") or ""), str(row.get("media_type") or "")
    metadata = cast(dict[str, Scalar | list[str]], row.get("metadata") or {})
    text = row.get("text")
    if isinstance(text, str):
        size = len(text.encode("utf-8", "replace"))
        media_type = kind or "text/plain"
        return found(path, stat, key=key or place, member=str(offset), size=size, title=title, url=url, media_type=media_type, metadata=metadata)
    target = os.path.realpath(Path(path).parent / str(row["path"]))
    try:
        problem = allowed(target)
        held = os.stat(target)
    except FileNotFoundError:
        problem, held = NotFound(f"line {number} of the manifest names a file that does not exist", hint="Correct the path."), stat
    except OSError as error:
        problem, held = Malformed(f"line {number} of the manifest names a path that cannot be opened ({error.strerror})", code="bad_manifest"), stat
    if problem is None and held.st_size > max_bytes:
        problem = TooLarge(f"{os.path.basename(target)} is over the size limit", hint="Split it, or raise DUJIANG_MAX_FILE_MB.")
    if problem is not None:
        return trouble(target, problem, key=key, stat=held)
    return found(target, held, key=key, title=title, url=url, media_type=kind, metadata=metadata)


def row_of(line: bytes) -> dict[str, object]:
    """One line's fields, checked. Raises Malformed."""
    hint = 'Each line is {"path" or "text", and optionally "key", "title", "url", "metadata"}.'
    try:
        row = orjson.loads(line.lstrip(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError as error:
        raise Malformed("it is not valid JSON", hint=hint) from error
    if not isinstance(row, dict):
        raise Malformed("it is not an object", hint=hint)
    fields = cast(dict[str, object], row)
    unknown = sorted(fields.keys() - FIELDS)
    if unknown:
        raise Malformed(f"unknown field {unknown[0]!r}", hint=hint)
    if isinstance(fields.get("path"), str) == isinstance(fields.get("text"), str):
        raise Malformed("it needs a path or a text, and not both", hint=hint)
    metadata = fields.get("metadata")
    if metadata is not None and not _flat(metadata):
        raise Malformed("metadata must be an object of texts, numbers, booleans and lists of texts", hint=hint)
    return fields


def _flat(metadata: object) -> bool:
    if not isinstance(metadata, dict):
        return False
    for value in cast(dict[str, object], metadata).values():
        if isinstance(value, list):
            if not all(isinstance(item, str) for item in cast(list[object], value)):
                return False
        elif not (value is None or isinstance(value, (str, int, float, bool))):
            return False
    return True


def read(path: str, member: str, max_bytes: int) -> bytes:
    """The text of the line at an offset, as UTF-8. Raises Gone when the manifest has changed meanwhile."""
    if not member.isdigit():
        raise Gone("the manifest has no such line")
    with open(path, "rb") as file:
        file.seek(int(member))
        line = file.readline(max_bytes + 1)
    try:
        text = row_of(line).get("text") if line.endswith((b"\n", b"}")) else None
    except Malformed:
        text = None
    if not isinstance(text, str):
        raise Gone("the manifest has changed since it was listed", hint="Ingest it again.")
    return text.encode("utf-8", "replace")
