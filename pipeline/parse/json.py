"""JSON and JSON Lines as lines of "key / path: value", so that every leaf says whose it is, in the text that is searched.

Numbers keep their spelling (1.10 stays 1.10). Elements of lists are named by their own name or id where they have one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import NoReturn, TypeGuard, cast

from pipeline.contracts import ParsedDocument, RawDocument
from pipeline.errors import Malformed
from pipeline.parse import charset
from pipeline.parse.layout import Layout, clean, flat, replaced

Value = object
_LABELS = ("name", "title", "label", "id", "key", "名称", "姓名", "名稱", "标题", "標題", "編號", "编号")
_SPEAKERS = ("speaker", "role", "author", "from", "sender")
_CONTENTS = ("text", "content", "message", "value")
_TIMES = ("at", "ts", "timestamp", "time", "date", "created_at")
_LONG = 300
"""Characters from which a text value becomes a block of its own under its key path."""
MOST_WARNED = 20


def parse(raw: RawDocument, options: Mapping[str, str]) -> ParsedDocument:
    """One section an object, its key path as heading path. A file of JSON lines under the wrong name is read as such."""
    text, name = charset.decode(raw.data, raw.charset)
    text = clean(text)
    try:
        value = _loads(text)
    except ValueError as error:
        if text.count("\n") and _first_line_is_json(text):
            return _lines(text, name, ("the content is JSON Lines, although the name says JSON",))
        where = f" at line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise Malformed(f"the file is not valid JSON{where}", hint="Correct it at the place named, and ingest it again.") from error
    layout = Layout()
    turns = _conversation(value)
    if turns is not None:
        for number, turn in enumerate(turns, 1):
            _turn(layout, turn, number, None)
    else:
        flatten(layout, value, (), None)
    return layout.document(title=_title(value), media_type="application/json", parser="json", charset=name, warnings=replaced(text))


def parse_lines(raw: RawDocument, options: Mapping[str, str]) -> ParsedDocument:
    """One record a line: a bad line is a warning, and Malformed is raised when none is good. Turns of conversations keep speaker and time."""
    text, name = charset.decode(raw.data, raw.charset)
    return _lines(clean(text), name, ())


def _lines(text: str, name: str, warnings: tuple[str, ...]) -> ParsedDocument:
    layout = Layout()
    noted = list(warnings)
    good = bad = 0
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = _loads(line)
        except (ValueError, Malformed):
            bad += 1
            if bad <= MOST_WARNED:
                noted.append(f"line {number} is not valid JSON and was left out")
            continue
        good += 1
        _record(layout, value, good, number)
    if bad and not good:
        raise Malformed("no line of the file is valid JSON", hint="Each line must be one JSON value.")
    if bad > MOST_WARNED:
        noted.append(f"{bad} lines in all are not valid JSON and were left out")
    return layout.document(media_type="application/jsonl", parser="json", charset=name, warnings=(*noted, *replaced(text)))


def _record(layout: Layout, value: Value, number: int, line: int) -> None:
    if _is_object(value) and _speaker(value) and _content(value) is not None:
        _turn(layout, value, number, line)
        return
    name = _label(value)
    identity = str(value.get("id", value.get("key", ""))) if _is_object(value) else ""
    flatten(layout, value, (f"#{number} {name}" if name else f"#{number}",), line, shown=1, key=identity if len(identity) < 200 else "")


def _turn(layout: Layout, value: Mapping[str, Value], number: int, line: int | None) -> None:
    """One utterance, its speaker in front."""
    speaker, content = _speaker(value), _content(value) or ""
    key = str(value.get("id", value.get("key", "")) or number)
    layout.block(
        f"{speaker}: {content.strip()}", "Turn", path=(), lines=(line, line) if line else None, key=key[:200], speaker=speaker, at=_time(value)
    )


def flatten(layout: Layout, value: Value, path: tuple[str, ...], line: int | None, *, shown: int = 0, key: str = "") -> None:
    """Write one value's leaves in document order.

    Args:
        path: key path of the value.
        shown: how many leading parts of the path are left out of the lines (they stand in the heading path all the same).
    """
    lines = (line, line) if line else None
    held: list[str] = []
    held_path: tuple[str, ...] = path

    def release() -> None:
        if held:
            layout.block("\n".join(held), path=held_path, lines=lines, key=key)
            held.clear()

    for owner, leaf in _leaves(value, path):
        name = " / ".join((*owner[shown:], leaf[0])) if leaf[0] else " / ".join(owner[shown:])
        if owner != held_path:
            release()
            held_path = owner
        content = leaf[1]
        if len(content) > _LONG or "\n" in content:
            release()
            where = (*owner, leaf[0]) if leaf[0] else owner
            layout.block(f"{name}:\n{content.strip()}" if name else content.strip(), path=where, lines=lines, key=key)
        else:
            held.append(f"{name}: {content}" if name else content)
    release()


def _leaves(value: Value, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], tuple[str, str]]]:
    """(path of the owning object, (last key, text of the value)) in document order, without recursion."""
    stack: list[tuple[tuple[str, ...], str, Value]] = [(path, "", value)]
    while stack:
        owner, name, item = stack.pop()
        inner = (*owner, name) if name else owner
        if _is_object(item) and item:
            stack.extend((inner, flat(key) or '""', child) for key, child in reversed(item.items()))
        elif _is_array(item) and item:
            if all(not isinstance(child, (dict, list)) for child in item) and sum(len(_text(child)) for child in item) <= _LONG:
                yield owner, (name, ", ".join(_text(child) for child in item))
            else:
                stack.extend((inner, _numbered(child, index), child) for index, child in reversed(list(enumerate(item, 1))))
        else:
            yield owner, (name, _text(item))


def _numbered(value: Value, index: int) -> str:
    name = _label(value)
    return f"#{index} {name}" if name else f"#{index}"


def _label(value: Value) -> str:
    """What an object calls itself; empty when it has no short name."""
    if _is_object(value):
        for key in _LABELS:
            held = value.get(key)
            if isinstance(held, str) and 0 < len(held) <= 80:
                return flat(held)
    return ""


def _title(value: Value) -> str:
    held = value.get("title") if _is_object(value) else None
    return flat(held) if isinstance(held, str) and len(held) <= 200 else ""


def _text(value: Value) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return clean(value)
    return "{}" if isinstance(value, dict) else "[]"


def _loads(text: str) -> Value:
    """Numbers stay as written. Raises ValueError, or Malformed when nested too deep."""
    try:
        return cast(Value, json.loads(text, parse_float=str, parse_int=str, parse_constant=str))
    except RecursionError:
        _too_deep()


def _too_deep() -> NoReturn:
    raise Malformed("the JSON is nested too deep", hint="Flatten it to under some hundred levels.", code="too_deep")


def _first_line_is_json(text: str) -> bool:
    line = next((line for line in text.split("\n") if line.strip()), "")
    try:
        return isinstance(_loads(line), (dict, list))
    except (ValueError, Malformed):
        return False


def _is_object(value: Value) -> TypeGuard[dict[str, Value]]:
    return isinstance(value, dict)


def _is_array(value: Value) -> TypeGuard[list[Value]]:
    return isinstance(value, list)


def _conversation(value: Value) -> list[dict[str, Value]] | None:
    """The turns, when the value is a list of them, or an object whose "messages" are."""
    held = value.get("messages") if _is_object(value) and len(value) <= 3 else value
    if not _is_array(held) or not held:
        return None
    turns = [turn for turn in held if _is_object(turn) and _speaker(turn) and _content(turn) is not None]
    return turns if len(turns) == len(held) else None


def _speaker(value: Mapping[str, Value]) -> str:
    for key in _SPEAKERS:
        held = value.get(key)
        if isinstance(held, str) and 0 < len(held) <= 100:
            return flat(held)
    return ""


def _content(value: Mapping[str, Value]) -> str | None:
    for key in _CONTENTS:
        held = value.get(key)
        if isinstance(held, str) and held.strip():
            return clean(held)
    return None


def _time(value: Mapping[str, Value]) -> datetime | None:
    """An aware time; None for one without an offset, which could be off by a day."""
    for key in _TIMES:
        held = value.get(key)
        if not isinstance(held, str):
            continue
        try:
            at = datetime.fromisoformat(held)
        except ValueError:
            continue
        if at.tzinfo is not None:
            return at
    return None
