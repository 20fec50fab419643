"""JSON from a model: asked for by schema, repaired as far as that invents nothing, checked, asked for once more, then refused.

A schema is a JSON schema of objects, arrays, strings, numbers, integers and booleans with `required`, `enum`, `maxItems` and `maxLength`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

from pipeline import pricing
from pipeline.contracts import Usage
from pipeline.errors import BrokenContract
from pipeline.protocols import LLM, Generation

Schema: TypeAlias = Mapping[str, Any]
Json: TypeAlias = dict[str, Any]

ASKS = 2
"""The first time, and once more with what was wrong."""
LONGEST_COMPLAINT = 300


@dataclass(frozen=True, slots=True)
class Structured:
    """An object that fits its schema."""

    value: Json
    usage: Usage
    asked: int
    """Calls it took."""
    repaired: bool
    """The answer was no JSON as it came, or had values of another type."""
    truncated: bool
    """The model was cut off: what is missing at the end is missing here."""


def ask_json(llm: LLM, messages: Sequence[tuple[str, str]], schema: Schema, *, options: Generation = Generation()) -> Structured:
    """An object by schema. Raises what the model raises, and BrokenContract for an answer that does not fit twice."""
    said: list[tuple[str, str]] = list(messages)
    spent: list[Usage] = []
    for number in range(1, ASKS + 1):
        completion = llm.complete(said, replace(options, schema=dict(schema)))
        spent.append(completion.usage)
        try:
            value, repaired = read(completion.text, schema)
        except BrokenContract as error:
            if number == ASKS:
                detail = f"{llm.name} gave no object of the form that was asked for, {ASKS} times: {error.detail}"
                raise BrokenContract(detail, hint="Use a model that can write JSON.", code="bad_json") from error
            complaint = f"That is not the JSON that was asked for: {error.detail[:LONGEST_COMPLAINT]}. Reply with the corrected JSON object alone."
            said = [*messages, ("assistant", completion.text), ("user", complaint)]
            continue
        return Structured(value, pricing.added(spent), number, repaired, completion.finish_reason == "length")
    raise BrokenContract(f"{llm.name} was not asked")


def read(text: str, schema: Schema) -> tuple[Json, bool]:
    """(the object, whether something had to be mended). What is valid comes back as it is. Raises BrokenContract naming the place."""
    try:
        found, mended = _parsed(text)
    except RecursionError:
        raise BrokenContract("the answer is nested too deeply", code="bad_json") from None
    fitted = _fit(found, schema, "")
    if not isinstance(fitted, dict):
        raise BrokenContract("the answer is no JSON object", code="bad_json")
    return cast("Json", fitted), mended or fitted != found


def _parsed(text: str) -> tuple[object, bool]:
    try:
        return json.loads(text), False
    except ValueError:
        return _mended(text), True


def _mended(text: str) -> object:
    """The first object in a text: fences, quotes, commas and missing brackets put right."""
    import json_repair

    start = text.find("{")
    if start < 0:
        raise BrokenContract("the answer holds no JSON object", code="bad_json")
    return cast("object", json_repair.loads(text[start:]))


def _fit(value: object, schema: Schema, where: str) -> object:
    """The value in the types of the schema. Fields that it does not know go, nothing is added. Raises BrokenContract."""
    kind = schema.get("type")
    if kind == "object":
        return _object(value, schema, where)
    if kind == "array":
        return _array(value, schema, where)
    fitted = _scalar(value, str(kind), where)
    allowed = schema.get("enum")
    if allowed is not None and fitted not in allowed:
        word = fitted.strip().casefold() if isinstance(fitted, str) else None
        fitted = next((one for one in allowed if isinstance(one, str) and one.casefold() == word), None)
        if fitted is None:
            raise BrokenContract(f"{where or '/'} is none of {', '.join(map(str, allowed))}", code="bad_json")
    most = schema.get("maxLength")
    return fitted[:most] if isinstance(fitted, str) and most is not None else fitted


def _object(value: object, schema: Schema, where: str) -> Json:
    if not isinstance(value, dict):
        raise BrokenContract(f"{where or '/'} is no object", code="bad_json")
    given = cast("Json", value)
    known = cast("Mapping[str, Schema]", schema.get("properties") or {})
    missing = [name for name in schema.get("required") or () if given.get(name) is None]
    if missing:
        raise BrokenContract(f"{where or '/'} lacks {', '.join(missing)}", code="bad_json")
    return {name: _fit(given[name], known[name], f"{where}/{name}") for name in given if name in known and given[name] is not None}


def _array(value: object, schema: Schema, where: str) -> list[object]:
    items = cast("list[object]", value) if isinstance(value, list) else [value]
    inner = cast("Schema", schema.get("items") or {"type": "string"})
    found = [_fit(item, inner, f"{where}/{place}") for place, item in enumerate(items)]
    most = schema.get("maxItems")
    return found if most is None else found[:most]


def _scalar(value: object, kind: str, where: str) -> object:
    if kind == "boolean":
        word = value.strip().lower() if isinstance(value, str) else value
        fitted = {"true": True, "false": False}.get(word) if isinstance(word, str) else word
        if isinstance(fitted, bool):
            return fitted
    elif kind == "string" and isinstance(value, str | int | float) and not isinstance(value, bool):
        return value if isinstance(value, str) else str(value)
    elif kind in {"number", "integer"} and isinstance(value, str | int | float) and not isinstance(value, bool):
        number = _number(value)
        if number is not None and (kind == "number" or number == int(number)):
            return number if kind == "number" else int(number)
    raise BrokenContract(f"{where or '/'} is no {kind}", code="bad_json")


def _number(value: str | float) -> int | float | None:
    if not isinstance(value, str):
        return value if value == value and abs(value) != float("inf") else None
    word = value.strip()
    try:
        if word.lstrip("+-").isdecimal():
            return int(word)
        number = float(word)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
