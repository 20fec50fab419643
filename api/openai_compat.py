"""OpenAI's chat completions over collections: a collection is the model ``dujiang/NAME``, several are ``dujiang/A,B``.

Unknown fields are accepted, as clients send what their own versions know, and named in the answer as `ignored`. A field ``dujiang`` of
the request may hold what `OURS` names; the same field of an answer holds citations, grounding and whether it was refused.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from fastapi import APIRouter
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from api import events
from api.answers import link
from api.encoding import dumps
from api.foreign import BEARER, ForeignRoute, Json, all_readable, body_json, in_words, list_of, object_of, readable, text_of
from api.guard import platform_of, who_of
from api.problems import Problem, fields, problem
from api.questions import asked
from api.schemas import AskIn
from pipeline.contracts import Answer, Citation, Usage
from pipeline.errors import BadRequest, NotFound, PipelineError, Unauthorised
from pipeline.shapes import citation_json

PREFIX = "dujiang/"
OURS = ("mode", "k", "score_threshold", "filters", "as_of", "merge", "lexical_weight", "widen")
HEEDED = frozenset({"model", "messages", "n", "stream", "stream_options", "temperature", "top_p", "max_tokens", "max_completion_tokens", "dujiang"})
TOOLS = frozenset({"tool", "function"})
"""Roles of what was said to a model that calls tools, which none of ours does."""
ROLES = frozenset({"system", "developer", "user", "assistant"}) | TOOLS
MOST_IGNORED = 50
KINDS = {400: "invalid_request_error", 401: "invalid_request_error", 403: "invalid_request_error", 404: "invalid_request_error", 429: "requests"}
CODES = {"rate_limited": "rate_limit_exceeded", "quota_exhausted": "insufficient_quota"}


def error_json(told: Problem, error: PipelineError) -> Json:
    """The error object; `param` is the field's name."""
    kind = KINDS.get(told.status, "server_error" if told.status >= 500 else "invalid_request_error")
    param = told.errors[0].pointer.strip("/").replace("/", ".") if told.errors else None
    code = "invalid_api_key" if isinstance(error, Unauthorised) else CODES.get(told.code, told.code)
    kind = code if code == "insufficient_quota" else kind
    return {"error": {"message": in_words(told), "type": kind, "param": param or None, "code": code}}


class OpenAIRoute(ForeignRoute):
    shape: ClassVar[Callable[[Problem, PipelineError], Json]] = staticmethod(error_json)
    # what is wrong in a request is 400 there, whatever it is
    statuses: ClassVar[Mapping[int, int]] = MappingProxyType({422: 400})


router = APIRouter(prefix="/v1", route_class=OpenAIRoute, tags=["openai"], dependencies=[BEARER])


@router.get("/models", summary="Collections as models")
def models(request: Request) -> Response:
    try:
        names = all_readable(request)
    except NotFound:
        names = []
    return Response(dumps({"object": "list", "data": [_model(request, [name]) for name in names]}), media_type="application/json")


@router.get("/models/{model:path}", summary="One collection as a model")
def model(request: Request, model: str) -> Response:
    return Response(dumps(_model(request, _collections(request, model))), media_type="application/json")


@router.post(
    "/chat/completions",
    summary="A cited answer as a chat completion",
    openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}},
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
def completions(request: Request) -> Response:
    """The last user message is the question, earlier turns are its history, system and developer messages its instructions.

    `temperature`, `top_p`, `max_tokens` (`max_completion_tokens`), `stream` and `stream_options.include_usage` are honoured; `n` may be 1
    only. `stop`, `tools` and whatever else there is have no effect, and stand in the answer under `dujiang.ignored`.
    """
    body = body_json(request)
    name = text_of(body, "model")
    collections = _collections(request, name)
    turns = _turns(body)
    question = asked(_ask_in(body, turns), collections, who_of(request).tenant)
    reply = _Reply(request, name, _ignored(body, turns))
    platform = platform_of(request)
    if _streams(body):
        with_usage = bool((object_of(body.get("stream_options")) or {}).get("include_usage"))
        return events.stream(reply.stream(events.started(platform.stream(question)), with_usage=with_usage))
    return Response(dumps(reply.whole(platform.ask(question))), media_type="application/json")


@router.api_route("/{rest:path}", methods=["GET", "POST", "DELETE"], include_in_schema=False)
def nothing(rest: str) -> Response:
    raise NotFound(f"there is nothing at /v1/{rest}", hint="There are /v1/models and /v1/chat/completions.", code="unknown_url")


class _Reply:
    """One answer on its way out."""

    def __init__(self, request: Request, model: str, ignored: list[str]) -> None:
        self._request, self._ignored = request, ignored
        self._head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}

    def whole(self, answer: Answer) -> Json:
        text = answer.reason if answer.refused else answer.text
        message: Json = {"role": "assistant", "content": text, "refusal": answer.reason if answer.refused else None}
        message["annotations"] = self._annotations(answer, text)
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish(answer)}
        more = {"usage": usage_json(answer.usage.get("reader", Usage())), "dujiang": self._ours(answer)}
        return {**self._head, "object": "chat.completion", "choices": [choice], **more}

    async def stream(self, pieces: Iterator[str | Answer], *, with_usage: bool) -> AsyncIterator[bytes]:
        """Chunks: the role, the text as it comes, annotations and a refusal with the end, and usage where it was asked for."""
        shown: list[str] = []
        yield self._chunk({"role": "assistant", "content": ""})
        try:
            async for piece in events.unhurried(pieces):
                if piece is None:
                    yield events.BEAT
                elif isinstance(piece, str):
                    shown.append(piece)
                    yield self._chunk({"content": piece})
                else:
                    if piece.refused and not shown:
                        yield self._chunk({"content": piece.reason})
                    yield self._end(piece, "".join(shown))
                    if with_usage:
                        spent = usage_json(piece.usage.get("reader", Usage()))
                        yield self._line({**self._head, "object": "chat.completion.chunk", "choices": [], "usage": spent})
        except PipelineError as error:
            # named, so that a stream which broke off is not kept for a repeated request
            yield b"event: error\n" + self._line(error_json(problem(error), error))
            return
        yield b"data: [DONE]\n\n"

    def _end(self, answer: Answer, shown: str) -> bytes:
        delta: Json = {"annotations": self._annotations(answer, shown)}
        if answer.refused:
            delta["refusal"] = answer.reason
        # citations count the characters of this text, which may have got its markers after it was shown
        whole = {"text": answer.text} if not answer.refused and answer.text != shown else {}
        return self._chunk(delta, finish=finish(answer), dujiang=self._ours(answer) | whole)

    def _chunk(self, delta: Json, *, finish: str | None = None, **more: object) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return self._line({**self._head, "object": "chat.completion.chunk", "choices": [choice], **more})

    @staticmethod
    def _line(value: Json) -> bytes:
        return b"data: " + dumps(value) + b"\n\n"

    def _annotations(self, answer: Answer, shown: str) -> list[Json]:
        """Citations at their places in the text that was shown, which may lack the markers that were put in afterwards."""
        places = _places(answer.text, shown)
        found: list[Json] = []
        for one in answer.citations:
            span = {"start_index": places[one.answer_start], "end_index": places[one.answer_end]}
            found.append({"type": "url_citation", "url_citation": {**span, "title": one.title or one.document_id, "url": self._address(one)}})
        return found

    def _address(self, one: Citation) -> str:
        """Of the source, else of the cited text here."""
        path = f"/collections/{one.collection}/documents/{one.document_id}/text?start_char={one.start_char}&end_char={one.end_char}"
        return one.url or link(self._request, path)

    def _ours(self, answer: Answer) -> Json:
        grounding = {"score": round(answer.grounding.score, 6), "unsupported": list(answer.grounding.unsupported)}
        lost = [step.degraded for step in answer.steps if step.degraded]
        cited = [citation_json(one) for one in answer.citations]
        return {"refused": answer.refused, "citations": cited, "grounding": grounding, "cache": answer.cache, "degraded": lost} | self._left_out()

    def _left_out(self) -> Json:
        return {"ignored": self._ignored} if self._ignored else {}


def finish(answer: Answer) -> str:
    """`length` where the model was cut off, else `stop`."""
    told = next((str(step.detail.get("finish", "")) for step in reversed(answer.steps) if step.stage == "llm"), "")
    return "length" if told == "length" else "stop"


def usage_json(usage: Usage) -> Json | None:
    """Null where the reader did not say what it used; never 0 in its place."""
    if usage.prompt_tokens is None or usage.completion_tokens is None:
        return None
    total = usage.prompt_tokens + usage.completion_tokens if usage.total_tokens is None else usage.total_tokens
    return {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens, "total_tokens": total}


def _places(whole: str, shown: str) -> list[int]:
    """For each offset of the whole text its offset in what was shown, which is the same with parts left out."""
    places: list[int] = []
    at = 0
    for letter in whole:
        places.append(at)
        if at < len(shown) and shown[at] == letter:
            at += 1
    return [*places, at]


def _model(request: Request, names: Sequence[str]) -> Json:
    """As old as the youngest of its collections."""
    platform, tenant = platform_of(request), who_of(request).tenant
    made = max(platform.collection(name, tenant=tenant).created_at for name in names)
    return {"id": PREFIX + ",".join(names), "object": "model", "created": int(made.timestamp()), "owned_by": "dujiang"}


def _collections(request: Request, model: str) -> list[str]:
    """Those of a model's name. Raises NotFound, as OpenAI's clients expect it."""
    names = [part.strip() for part in model.removeprefix(PREFIX).split(",") if part.strip()]
    try:
        readable(request, names)
        for name in names:
            platform_of(request).collection(name, tenant=who_of(request).tenant)
    except NotFound as error:
        names = []
        raise _unknown(model) from error
    if not names:
        raise _unknown(model)
    return names


def _unknown(model: str) -> NotFound:
    return NotFound(f"there is no model {model!r}", hint="`GET /v1/models` lists those there are: one for each collection.", code="model_not_found")


def _streams(body: Json) -> bool:
    given = body.get("stream")
    if given is not None and not isinstance(given, bool):
        raise BadRequest("stream is neither true nor false", pointer="/stream", hint="Send true or false.", code="bad_field")
    return bool(given)


def _ignored(body: Json, turns: Sequence[tuple[str, str]]) -> list[str]:
    """What was sent and has no effect, by name, that nobody believes otherwise; messages by their place."""
    named = [name for name, value in body.items() if name not in HEEDED and value is not None]
    return [*sorted(named), *(f"messages.{place}" for place, (role, _) in enumerate(turns) if role in TOOLS)][:MOST_IGNORED]


def _turns(body: Json) -> list[tuple[str, str]]:
    """(role, text) of each message; developer counts as system. Raises BadRequest."""
    messages = list_of(body.get("messages"))
    if not messages:
        raise BadRequest("messages is missing or empty", pointer="/messages", hint="Send at least one message of a user.", code="bad_field")
    return [_turn(one, place) for place, one in enumerate(messages)]


def _ask_in(body: Json, turns: Sequence[tuple[str, str]]) -> AskIn:
    """The request as a question of ours. Raises BadRequest naming the field as OpenAI calls it."""
    if body.get("n") not in (None, 1):
        raise BadRequest("n must be 1", pointer="/n", hint="Ask once for each answer.", code="bad_field")
    last = max((place for place, (role, _) in enumerate(turns) if role == "user"), default=-1)
    if last < 0:
        raise BadRequest("no message is a user's", pointer="/messages", hint="The last message of a user is the question.", code="bad_field")
    given = _ours_of(body) | {"query": turns[last][1]}
    given["system"] = "\n\n".join(text for role, text in turns if role == "system" and text.strip())
    given["history"] = [{"role": role, "content": text} for role, text in turns[:last] if role in {"user", "assistant"} and text.strip()]
    given |= {name: body[name] for name in ("temperature", "top_p", "max_tokens") if body.get(name) is not None}
    if body.get("max_completion_tokens") is not None:
        given["max_tokens"] = body["max_completion_tokens"]
    try:
        return AskIn.model_validate(given)
    except ValidationError as error:
        wrong = fields([dict(one) for one in error.errors(include_url=False, include_input=False)])[0]
        pointer = _pointer(wrong.pointer)
        named = pointer.strip("/").replace("/", ".")
        raise BadRequest(f"{named}: {wrong.detail}", pointer=pointer, hint="Correct this field.", code="bad_field") from error


def _ours_of(body: Json) -> Json:
    """Our own settings. A misspelt filter that had no effect would give away more than was asked for, so it is refused."""
    given = object_of(body.get("dujiang") or {})
    unknown = None if given is None else next((name for name in given if name not in OURS), "")
    if given is None or unknown:
        where = f"/dujiang/{unknown}" if unknown else "/dujiang"
        known = ", ".join(OURS)
        raise BadRequest(f"{where.strip('/')} is no setting here", pointer=where, hint=f"An object may hold: {known}.", code="bad_field")
    return given


def _pointer(pointer: str) -> str:
    """Where the field stands in the request, from where it stands in ours."""
    first = pointer.strip("/").partition("/")[0]
    if first in {"query", "history"}:
        return "/messages"
    return f"/dujiang{pointer}" if first in OURS else pointer


def _turn(message: object, place: int) -> tuple[str, str]:
    where = f"/messages/{place}"
    given = object_of(message) or {}
    role, content = given.get("role"), given.get("content")
    if not isinstance(role, str) or role not in ROLES:
        known = "system, developer, user and assistant"
        raise BadRequest(f"messages.{place} has no role that is known", pointer=f"{where}/role", hint=f"Roles are {known}.", code="bad_field")
    if role in TOOLS:
        return role, ""
    text = content or "" if isinstance(content, str) or content is None else "\n".join(_parts(list_of(content) or [content], where))
    return ("system" if role == "developer" else role), text


def _parts(content: list[Any], where: str) -> Iterator[str]:
    for number, part in enumerate(content):
        given = object_of(part) or {}
        text = given.get("refusal") if given.get("type") == "refusal" else given.get("text")
        if given.get("type") not in {"text", "input_text", "output_text", "refusal"} or not isinstance(text, str):
            hint = "Questions are text: send parts of type text only."
            named = f"{where.strip('/')}/content/{number}".replace("/", ".")
            raise BadRequest(f"{named} is no text", pointer=f"{where}/content/{number}", hint=hint, code="bad_field")
        yield text
