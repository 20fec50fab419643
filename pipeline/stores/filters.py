"""Conditions on metadata: what they mean, and how people and programs write them.

Values have three types, text, number and truth, and a value only ever matches one of its own type; 3 and 3.0 are
the same number. A list matches when one of its items does. A missing field, an entry that is None, and an empty
row field match only NE, and EXISTS with value False.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from pipeline.contracts import Filter, Metadata, Op, Scalar
from pipeline.errors import BadRequest

ROW_FIELDS = frozenset({"document_id", "key", "title", "url"})
"""Names that stand for fields of the document itself, whatever its metadata say."""

_SIGNS = {"=": Op.EQ, "==": Op.EQ, "!=": Op.NE, ">": Op.GT, ">=": Op.GTE, "<": Op.LT, "<=": Op.LTE}
_SIGN = re.compile(r"^\s*(?P<name>[^\s=!<>][^=!<>]*?)\s*(?P<sign>==|!=|>=|<=|=|>|<)\s*(?P<value>.*?)\s*$", re.DOTALL)
_IN = re.compile(r"^\s*(?P<name>[^\s=!<>]+)\s+in\s+(?P<values>.+?)\s*$", re.DOTALL | re.IGNORECASE)
_EXISTS = re.compile(r"^\s*(?P<name>[^\s=!<>]+)\s+(?P<no>not\s+)?exists\s*$", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_TRUTHS = {"true": True, "false": False}
_HINT = 'Write key=value, key!=value, key>=3, key in a,b, key exists or key not exists; put text that looks like a number in quotes: year="2024".'


def parse(text: str) -> Filter:
    """A condition as people type it. Numbers, true and false are read as such unless they are quoted.

    Raises: BadRequest with the forms there are.
    """
    if found := _EXISTS.match(text):
        return Filter(found["name"], Op.EXISTS, not found["no"])
    if (found := _IN.match(text)) and not (_SIGN.match(text) and _SIGN.match(text.split()[0])):
        return Filter(found["name"], Op.IN, tuple(_value(item) for item in _items(found["values"])))
    if found := _SIGN.match(text):
        return Filter(found["name"], _SIGNS[found["sign"]], _value(found["value"]))
    raise BadRequest(f"{text!r} is no filter", pointer="/filters", hint=_HINT, code="bad_filter")


def from_json(value: object) -> tuple[Filter, ...]:
    """Conditions from JSON: a list of ``{"name", "op", "value"}``, or an object of names and values (a list of values means IN).

    Raises: BadRequest naming the field by its JSON pointer.
    """
    if isinstance(value, Mapping):
        return tuple(_pair(str(name), item) for name, item in cast("Mapping[object, object]", value).items())
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise BadRequest("filters must be a list of conditions or an object", pointer="/filters", hint=_HINT, code="bad_filter")
    return tuple(_condition(item, f"/filters/{place}") for place, item in enumerate(cast("Sequence[object]", value)))


def matches(filters: Iterable[Filter], metadata: Metadata, fields: Mapping[str, str]) -> bool:
    """Whether all conditions hold.

    Args:
        fields: document_id, key, title and url.
    """
    return all(_holds(condition, metadata, fields) for condition in filters)


def kind(value: Scalar) -> str:
    """s for text, n for a number, b for a truth value, empty for None: only equal kinds compare."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "b"
    return "s" if isinstance(value, str) else "n"


def values(metadata: Metadata, name: str) -> list[Scalar]:
    """An entry's values without None: one, or the items of a list."""
    value = metadata.get(name)
    found: list[Scalar] = list(value) if isinstance(value, list) else [value]
    return [item for item in found if item is not None]


def wanted(condition: Filter) -> tuple[Scalar, ...]:
    """What a condition compares with, as a tuple."""
    return condition.value if isinstance(condition.value, tuple) else (condition.value,)


def _holds(condition: Filter, metadata: Metadata, fields: Mapping[str, str]) -> bool:
    if condition.name in ROW_FIELDS:
        text = fields.get(condition.name, "")
        held: list[Scalar] = [text] if text else []
        present = bool(text)
    else:
        held = values(metadata, condition.name)
        present = metadata.get(condition.name) is not None
    match condition.op:
        case Op.EXISTS:
            return present is (condition.value is not False)
        case Op.EQ | Op.IN:
            return _any_equal(held, wanted(condition))
        case Op.NE:
            return not _any_equal(held, wanted(condition))
        case Op.GT | Op.GTE | Op.LT | Op.LTE:
            return any(_compares(condition.op, item, bound) for item in held for bound in wanted(condition))


def _any_equal(held: Sequence[Scalar], asked: Sequence[Scalar]) -> bool:
    return any(kind(item) == kind(other) and item == other for item in held for other in asked if other is not None)


def _compares(op: Op, item: Scalar, bound: Scalar) -> bool:
    if kind(item) != kind(bound) or isinstance(item, bool) or item is None:
        return False
    if isinstance(item, str):
        return _ordered(op, item > cast("str", bound), item == bound)
    return _ordered(op, item > cast("float", bound), item == bound)


def _ordered(op: Op, above: bool, equal: bool) -> bool:
    match op:
        case Op.GT:
            return above
        case Op.GTE:
            return above or equal
        case Op.LT:
            return not above and not equal
        case _:
            return not above


def _value(text: str) -> Scalar:
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    if text.lower() in _TRUTHS:
        return _TRUTHS[text.lower()]
    if _NUMBER.fullmatch(text):
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    return text


def _items(text: str) -> list[str]:
    """Split at commas outside quotes."""
    return [item for item in re.findall(r"""\s*("[^"]*"|'[^']*'|[^,]+)""", text) if item.strip()]


def _pair(name: str, value: object) -> Filter:
    if isinstance(value, Mapping):
        condition = cast("Mapping[object, object]", value)
        return _condition({"name": name, "op": condition.get("op", "eq"), "value": condition.get("value")}, f"/filters/{name}")
    plain: dict[str, object] = {"name": name, "op": "in" if isinstance(value, list) else "eq", "value": value}
    return _condition(plain, f"/filters/{name}")


def _condition(item: object, pointer: str) -> Filter:
    if isinstance(item, str):
        return parse(item)
    if not isinstance(item, Mapping):
        raise BadRequest("a filter must be an object with name, op and value", pointer=pointer, hint=_HINT, code="bad_filter")
    fields = cast("Mapping[object, object]", item)
    name, op, value = fields.get("name"), fields.get("op", "eq"), fields.get("value")
    if not isinstance(name, str) or not name:
        raise BadRequest("a filter has no name", pointer=f"{pointer}/name", hint=_HINT, code="bad_filter")
    try:
        compare = Op(str(op))
    except ValueError:
        known = ", ".join(one.value for one in Op)
        raise BadRequest(f"{op!r} is no comparison", pointer=f"{pointer}/op", hint=f"Use one of: {known}.", code="bad_filter") from None
    if compare is Op.EXISTS:
        return Filter(name, compare, value is not False)
    if isinstance(value, list | tuple):
        if compare is not Op.IN:
            raise BadRequest(f"the filter on {name} compares with a list", pointer=f"{pointer}/value", hint="Use the op in.", code="bad_filter")
        return Filter(name, compare, tuple(_scalar(one, name, pointer) for one in cast("Sequence[object]", value)))
    scalar = _scalar(value, name, pointer)
    return Filter(name, compare, (scalar,) if compare is Op.IN else scalar)


def _scalar(value: object, name: str, pointer: str) -> Scalar:
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise BadRequest(f"the filter on {name} needs text, a number, true, false or null", pointer=f"{pointer}/value", hint=_HINT, code="bad_filter")
