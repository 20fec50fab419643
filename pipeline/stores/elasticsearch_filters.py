"""Metadata as exact terms of one keyword field, and conditions on it.

Each entry becomes a term such as ``4:year=n...`` beside ``4:year?``: the name's length and the name, then
the type's letter and the value, written so that terms sort as their values do. So any number of metadata names
costs one field, numbers compare as numbers and strings as strings, and a range is a range of terms.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from datetime import UTC, datetime

from pipeline.contracts import Filter, Metadata, Op, Scalar
from pipeline.identity import text_hash
from pipeline.stores import filters
from pipeline.stores.elasticsearch_client import Json

LONGEST = 7900
"""Characters of a term that are kept, below Lucene's 32,766 bytes; longer values end in a hash."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SIGN = 1 << 63
_RANGES = {Op.GT: "gt", Op.GTE: "gte", Op.LT: "lt", Op.LTE: "lte"}


def terms(metadata: Metadata) -> list[str]:
    """Every entry's terms. An entry that is None counts as missing."""
    found: list[str] = []
    for name, value in metadata.items():
        if value is None:
            continue
        found.append(_exists(name))
        found += (_term(name, item) for item in filters.values(metadata, name) if item == item)
    return found


def microseconds(moment: datetime) -> int:
    """Of an aware time since 1970 in UTC, exact over the whole calendar."""
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def clauses(asked: tuple[Filter, ...], as_of: datetime | None) -> list[Json]:
    """Conditions for the filter part of a query, to be joined by AND. A chunk without a time is not shown under a time limit."""
    found = [_clause(condition) for condition in asked]
    if as_of is not None:
        moment = microseconds(as_of)
        found.append({"bool": {"filter": [{"range": {"valid_from": {"lte": moment}}}], "must_not": [{"range": {"valid_to": {"lte": moment}}}]}})
    return found


def _clause(condition: Filter) -> Json:
    values = filters.wanted(condition)
    match condition.op:
        case Op.EQ | Op.IN:
            return _any(condition.name, values)
        case Op.NE:
            return {"bool": {"must_not": [_any(condition.name, values)]}}
        case Op.EXISTS:
            present = _present(condition.name)
            return {"bool": {"must_not": [present]}} if condition.value is False else present
        case Op.GT | Op.GTE | Op.LT | Op.LTE:
            return {"bool": {"should": [clause for value in values for clause in _range(condition.name, condition.op, value)] or [_NOTHING]}}


_NOTHING: Json = {"match_none": {}}


def _any(name: str, values: tuple[Scalar, ...]) -> Json:
    if name in filters.ROW_FIELDS:
        return {"terms": {name: [value for value in values if isinstance(value, str) and value]}}
    return {"terms": {"meta": [_term(name, value) for value in values if value is not None]}}


def _present(name: str) -> Json:
    if name in filters.ROW_FIELDS:
        return {"bool": {"filter": [{"exists": {"field": name}}], "must_not": [{"term": {name: ""}}]}}
    return {"term": {"meta": _exists(name)}}


def _range(name: str, op: Op, value: Scalar) -> Iterator[Json]:
    kind = filters.kind(value)
    if kind not in {"s", "n"}:
        return
    if name in filters.ROW_FIELDS:
        if kind == "s":
            yield {"bool": {"filter": [{"range": {name: {_RANGES[op]: value}}}], "must_not": [{"term": {name: ""}}]}}
        return
    first, last = f"{len(name)}:{name}={kind}", f"{len(name)}:{name}={chr(ord(kind) + 1)}"
    bound = {_RANGES[op]: _term(name, value)}
    yield {"range": {"meta": bound | ({"lt": last} if op in {Op.GT, Op.GTE} else {"gte": first})}}


def _term(name: str, value: Scalar) -> str:
    """Of a value that is not None. The letter of its kind comes first, so that only equal kinds meet."""
    written = value if isinstance(value, str) else f"{value:d}" if isinstance(value, bool) else _sortable(value or 0)
    return _fit(f"{len(name)}:{name}={filters.kind(value)}{written}")


def _exists(name: str) -> str:
    return _fit(f"{len(name)}:{name}?")


def _fit(term: str) -> str:
    return term if len(term) <= LONGEST else term[:LONGEST] + text_hash(term)


def _sortable(value: int | float) -> str:
    """Hex that sorts like the number: the bits of the nearest double, then how far an integer lies from it."""
    try:
        near = float(value) + 0.0
    except OverflowError:
        near = math.copysign(math.inf, value)
    (bits,) = struct.unpack(">Q", struct.pack(">d", near))
    rest = value - int(near) if isinstance(value, int) and math.isfinite(near) else 0
    rest = max(-0x7FFF, min(0x7FFF, rest))
    return f"{bits ^ (2 * _SIGN - 1) if bits & _SIGN else bits | _SIGN:016x}{rest + 0x8000:04x}"
