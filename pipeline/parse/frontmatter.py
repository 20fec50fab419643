"""Front matter: the small part of YAML that people write above a page, and TOML."""

from __future__ import annotations

import re
import tomllib

from pipeline.contracts import Scalar

Values = dict[str, Scalar | list[str]]

MOST_LINES = 400
_KEY = re.compile(r"([\w.-][\w .-]{0,80}?)\s*:(?:\s+(.*))?$")
_ITEM = re.compile(r"\s*-\s+(.*)$")
_INTEGER = re.compile(r"[-+]?(?:0|[1-9]\d{0,17})$")
_FLOAT = re.compile(r"[-+]?\d+\.\d+$")
_WORDS: dict[str, Scalar] = {"true": True, "false": False, "null": None, "~": None, "": None}
_COMMENT = re.compile(r"\s*<!--.*?-->[ \t]*\n?\s*", re.DOTALL)


def split(text: str) -> tuple[str, Values]:
    """(body, metadata). A licence comment before or after the front matter goes with it.

    What looks like front matter and cannot be read as such stays in the body.
    """
    if text[:1] not in {"-", "+", "<", "\n", " "}:
        return text, {}
    body = _uncommented(text)
    fence = body[:4]
    if fence not in {"---\n", "+++\n"}:
        return body, {}
    end = re.compile(r"^(?:---|\.\.\.)[ \t]*$" if fence[0] == "-" else r"^\+\+\+[ \t]*$", re.MULTILINE).search(body, 4)
    if end is None or body.count("\n", 0, end.start()) > MOST_LINES:
        return body, {}
    source = body[4 : end.start()]
    values = _yaml(source) if fence[0] == "-" else _toml(source)
    if values is None:
        return body, {}
    return _uncommented(body[end.end() :].lstrip("\n")), values


def _uncommented(text: str) -> str:
    found = _COMMENT.match(text) if text.lstrip()[:4] == "<!--" else None
    rest = text[found.end() :] if found else text
    return rest if rest.strip() else text


def _toml(source: str) -> Values | None:
    try:
        table = tomllib.loads(source)
    except tomllib.TOMLDecodeError:
        return None
    values: Values = {}
    for key, value in table.items():
        if isinstance(value, list):
            values[key] = [str(item) for item in value]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        elif isinstance(value, dict):
            values.update({f"{key}.{name}": str(inner) for name, inner in value.items()})  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        else:
            values[key] = value if isinstance(value, (str, int, float, bool)) else str(value)
    return values


def _yaml(source: str) -> Values | None:
    """Keys, scalars, lists, block scalars and one level of nesting ("author.name"); None when no line is a key."""
    values: Values = {}
    key, parent, block = "", "", ""
    for line in source.split("\n"):
        bare = line.strip()
        if block and (not bare or line[0] in " \t"):
            before = values[key]
            values[key] = f"{before}{'' if not before else block}{bare}"
            continue
        block = ""
        if not bare or bare.startswith("#"):
            continue
        item = _ITEM.match(line)
        if item and key and (values[key] is None or isinstance(values[key], list)):
            held = values[key]
            values[key] = [*(held if isinstance(held, list) else []), str(_scalar(item[1]) if item[1] else "")]
            continue
        found = _KEY.match(bare)
        if not found:
            if not values:
                return None
            continue
        nested = line[0] in " \t" and parent
        key = f"{parent}.{found[1]}" if nested else found[1]
        if not nested:
            parent = found[1]
        elif values.get(parent, "") is None:
            del values[parent]
        written = (found[2] or "").strip()
        block = {"|": "\n", ">": " "}.get(written[:1], "") if len(written) < 3 else ""
        values[key] = "" if block else _value(written)
    return values or None


def _value(written: str) -> Scalar | list[str]:
    if written.startswith("[") and written.endswith("]"):
        return [str(_scalar(part.strip())) for part in written[1:-1].split(",") if part.strip()]
    return _scalar(written)


def _scalar(written: str) -> Scalar:
    """Quoted text as it is; numbers, booleans and null by their spelling; everything else is text."""
    if written[:1] in {'"', "'"} and len(written) > 1 and written.rstrip()[-1] == written[0]:
        return written.strip()[1:-1].replace("''", "'") if written[0] == "'" else written.strip()[1:-1].replace('\\"', '"')
    written = written.split(" #", 1)[0].strip()
    if written.lower() in _WORDS:
        return _WORDS[written.lower()]
    if _INTEGER.match(written):
        return int(written)
    return float(written) if _FLOAT.match(written) else written
