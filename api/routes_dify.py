"""Dify's external knowledge: a collection is the knowledge id, a search is a retrieval.

A condition on metadata that no filter of ours can say is refused: one that was left out would give away more than was asked for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import ClassVar

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api.encoding import dumps
from api.foreign import BEARER, ForeignRoute, Json, body_json, in_words, list_of, object_of, readable, text_of
from api.guard import platform_of, who_of
from api.problems import Problem
from pipeline.contracts import Filter, Hit, Op, Question, Scalar
from pipeline.errors import BadRequest, Forbidden, NotFound, PipelineError, Unauthorised

BAD_HEADER, REFUSED, NO_SUCH_KNOWLEDGE = 1001, 1002, 2001
MOST, LONGEST = 100, 20_000
OPERATORS: Mapping[str, tuple[Op, ...]] = {
    "is": (Op.EQ,),
    "is not": (Op.NE,),
    "=": (Op.EQ,),
    "≠": (Op.NE,),
    ">": (Op.GT,),
    "<": (Op.LT,),
    "≥": (Op.GTE,),
    "≤": (Op.LTE,),
    "in": (Op.IN,),
    "before": (Op.LT,),
    "after": (Op.GT,),
}
"""Dify's comparisons that a filter of ours is, too. `not in` becomes one NE for each value; the others are refused, not left out."""
NUMERIC = frozenset({"=", "≠", ">", "<", "≥", "≤"})
_DAY_OR_TIME = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}.*)?")


def error_json(told: Problem, error: PipelineError) -> Json:
    """Dify's codes where it has one, else the HTTP status."""
    code = told.status
    if isinstance(error, Unauthorised):
        code = BAD_HEADER if "bearer" in told.detail else REFUSED
    elif isinstance(error, Forbidden):
        code = REFUSED
    elif isinstance(error, NotFound):
        code = NO_SUCH_KNOWLEDGE
    return {"error_code": code, "error_msg": in_words(told)}


class DifyRoute(ForeignRoute):
    shape: ClassVar[Callable[[Problem, PipelineError], Json]] = staticmethod(error_json)


router = APIRouter(prefix="/dify", route_class=DifyRoute, tags=["dify"], dependencies=[BEARER])


@router.post(
    "/retrieval",
    summary="Chunks as Dify's external knowledge",
    openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}},
)
def retrieval(request: Request) -> Response:
    body = body_json(request)
    name, text = text_of(body, "knowledge_id"), text_of(body, "query")
    if len(text) > LONGEST:
        raise BadRequest(f"query is longer than {LONGEST} characters", pointer="/query", hint="Ask a shorter question.", code="bad_field")
    readable(request, [name])
    limits = object_of(body.get("retrieval_setting") or {})
    if limits is None:
        raise BadRequest("retrieval_setting is no object", pointer="/retrieval_setting", code="bad_field")
    question = Question(
        text,
        (name,),
        tenant=who_of(request).tenant,
        k=_whole(limits.get("top_k", 10)),
        score_threshold=_share(limits.get("score_threshold")),
        filters=_filters(body.get("metadata_condition")),
    )
    found = platform_of(request).search(question)
    lost = [step.degraded for step in found.steps if step.degraded]
    told: Json = {"records": [_record(hit) for hit in found.hits]} | ({"degraded": lost} if lost else {})
    return Response(dumps(told), media_type="application/json")


def _record(hit: Hit) -> Json:
    """`metadata` is never null: Dify breaks on it."""
    place: Json = {"document_id": hit.document_id, "chunk_id": hit.chunk_id, "start_char": hit.start, "end_char": hit.end, "path": hit.url or hit.key}
    if hit.page is not None:
        place["page"] = hit.page
    content = f"{hit.lead}\n{hit.text}" if hit.lead else hit.text
    return {"content": content, "score": round(hit.score, 6), "title": hit.title or hit.key, "metadata": {**dict(hit.metadata), **place}}


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        hint = f"Give a whole number from 1 to {MOST}."
        raise BadRequest("retrieval_setting.top_k is no number of records", pointer="/retrieval_setting/top_k", hint=hint, code="bad_field")
    return value


def _share(value: object) -> float | None:
    """0, which Dify sends where the threshold is switched off, is none."""
    if value is None or value == 0:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        where = "/retrieval_setting/score_threshold"
        raise BadRequest("retrieval_setting.score_threshold is no number from 0 to 1", pointer=where, code="bad_field")
    return float(value)


def _filters(condition: object) -> tuple[Filter, ...]:
    """Raises BadRequest for what no filter of ours says."""
    if not condition:
        return ()
    where = "/metadata_condition"
    given = object_of(condition)
    if given is None:
        raise BadRequest("metadata_condition is no object", pointer=where, code="bad_field")
    items = list_of(given.get("conditions") or [])
    if items is None:
        raise BadRequest("metadata_condition.conditions is no list", pointer=f"{where}/conditions", code="bad_field")
    joined = given.get("logical_operator") or "and"
    if joined not in ("and", "or"):
        raise BadRequest("conditions are joined by and, or by or", pointer=f"{where}/logical_operator", code="bad_filter")
    said = [_one(item, f"{where}/conditions/{place}") for place, item in enumerate(items)]
    return tuple(one for several in said for one in several) if joined == "and" or len(said) < 2 else (_any_of(said, where),)


def _any_of(said: Sequence[list[Filter]], where: str) -> Filter:
    """Alternatives, as far as one filter says them: the same field equals one of several values."""
    parts = [one for several in said for one in several]
    if len({one.name for one in parts}) > 1 or not {one.op for one in parts} <= {Op.EQ, Op.IN}:
        hint = "Join conditions by and, or ask once for each."
        told = "or joins only what one field may be equal to (is, =, in)"
        raise BadRequest(told, pointer=f"{where}/logical_operator", hint=hint, code="bad_filter")
    values = [value for one in parts for value in (one.value if isinstance(one.value, tuple) else (one.value,))]
    return Filter(parts[0].name, Op.IN, tuple(values))


def _one(item: object, where: str) -> list[Filter]:
    given = object_of(item) or {}
    names: object = given.get("name")
    several = list_of(names) or []
    names = several[0] if len(several) == 1 else names
    if not isinstance(names, str) or not names:
        raise BadRequest("a condition names one field", pointer=f"{where}/name", hint="Give its name as text.", code="bad_filter")
    operator, value = str(given.get("comparison_operator", "")), given.get("value")
    if operator in {"empty", "not empty"}:
        return [Filter(names, Op.EXISTS, operator == "not empty")]
    if operator == "not in":
        return [Filter(names, Op.NE, one) for one in _several(value, where)]
    if operator == "in":
        return [Filter(names, Op.IN, tuple(_several(value, where)))]
    if operator not in OPERATORS:
        known = ", ".join((*OPERATORS, "not in", "empty", "not empty"))
        raise BadRequest(
            f"{operator!r} is no comparison here", pointer=f"{where}/comparison_operator", hint=f"Use one of: {known}.", code="bad_filter"
        )
    if not isinstance(value, str | int | float):
        raise BadRequest(f"{operator} compares with one value", pointer=f"{where}/value", code="bad_filter")
    return [Filter(names, OPERATORS[operator][0], _value(operator, value, where))]


def _several(value: object, where: str) -> list[Scalar]:
    """Values of a list, or of a text with commas."""
    found = [part.strip() for part in value.split(",")] if isinstance(value, str) else list_of(value) or []
    several = [one for one in found if isinstance(one, str | int | float) and one != ""]
    if not several or len(several) != len(found):
        raise BadRequest("in and not in compare with a list of texts or numbers", pointer=f"{where}/value", code="bad_filter")
    return list(several)


def _value(operator: str, value: str | float, where: str) -> Scalar:
    """A number for the comparisons of numbers, also where Dify sends it as text; days and times as ISO 8601 text, or as the number sent."""
    if operator in NUMERIC and isinstance(value, str):
        try:
            number = float(value) if "." in value or "e" in value.lower() else int(value)
            if not math.isfinite(number):
                raise ValueError
            return number
        except ValueError:
            raise BadRequest(f"{operator} compares numbers", pointer=f"{where}/value", hint="Send a number.", code="bad_filter") from None
    if operator in {"before", "after"} and (isinstance(value, bool) or not isinstance(value, int | float)):
        try:
            if not _DAY_OR_TIME.fullmatch(str(value)):
                raise ValueError
            datetime.fromisoformat(str(value))
        except ValueError:
            hint = "Write it as 2026-11-30 or 2026-11-30T09:00:00+08:00, as the metadata have it."
            raise BadRequest(f"{operator} compares days or times", pointer=f"{where}/value", hint=hint, code="bad_filter") from None
        return str(value)
    return value
