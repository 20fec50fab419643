"""OpenAI's chat completions over collections: a collection is the model ``dujiang/NAME``, several are ``dujiang/A,B``.

Unknown fields are accepted, as clients send what their own versions know. A field ``dujiang`` of the request may hold `mode`, `k`,
`score_threshold`, `filters` and `as_of`; the same field of an answer holds citations, grounding and whether it was refused.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, ClassVar

from fastapi import APIRouter
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from api import events
from api.answers import link
from api.encoding import dumps
from api.foreign import ForeignRoute, Json, all_readable, body_json, list_of, object_of, readable, text_of
from api.guard import platform_of, who_of
from api.problems import Problem, fields, problem
from api.questions import asked
from api.schemas import AskIn
from pipeline.contracts import Answer, Citation, Usage
from pipeline.errors import BadRequest, NotFound, PipelineError, Unauthorised
from pipeline.shapes import citation_json

PREFIX = "dujiang/"
OURS = ("mode", "k", "score_threshold", "filters", "as_of")
KINDS = {400: "invalid_request_error", 401: "invalid_request_error", 403: "invalid_request_error", 404: "invalid_request_error", 429: "requests"}
CODES = {"unauthorised": "invalid_api_key", "rate_limited": "rate_limit_exceeded"}


def error_json(told: Problem, error: PipelineError) -> Json:
    """The error object; `param` is the field's name."""
    kind = KINDS.get(told.status, "server_error" if told.status >= 500 else "invalid_request_error")
    param = told.errors[0].pointer.strip("/").replace("/", ".") if told.errors else None
    code = "invalid_api_key" if isinstance(error, Unauthorised) else CODES.get(told.code, told.code)
    return {"error": {"message": f"{told.detail} {told.hint}".strip(), "type": kind, "param": param or None, "code": code}}


class OpenAIRoute(ForeignRoute):
    shape: ClassVar[Callable[[Problem, PipelineError], Json]] = staticmethod(error_json)


router = APIRouter(prefix="/v1", route_class=OpenAIRoute, tags=["openai"])


@router.get("/models", summary="Collections as models")
def models(request: Request) -> Response:
    try:
        names = all_readable(request)
    except NotFound:
        names = []
    return Response(dumps({"object": "list", "data": [_model(request, name) for name in names]}), media_type="application/json")


@router.get("/models/{model:path}", summary="One collection as a model")
def model(request: Request, model: str) -> Response:
    (name, *_) = _collections(request, model)
    return Response(dumps(_model(request, name)), media_type="application/json")


@router.post(
    "/chat/completions",
    summary="A cited answer as a chat completion",
    openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}},
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
def completions(request: Request) -> Response:
    """The last user message is the question, earlier turns are its history, system and developer messages its instructions.

    `temperature`, `top_p`, `max_tokens` (`max_completion_tokens`), `stream` and `stream_options.include_usage` are honoured; `n` may be 1
    only; `stop`, `tools` and whatever else there is have no effect.
    """
    body = body_json(request)
    name = text_of(body, "model")
    question = asked(_ask_in(body), _collections(request, name), who_of(request).tenant)
    reply = _Reply(request, name)
    platform = platform_of(request)
    if body.get("stream"):
        with_usage = bool((object_of(body.get("stream_options")) or {}).get("include_usage"))
        return events.stream(reply.stream(events.started(platform.stream(question)), with_usage=with_usage))
    return Response(dumps(reply.whole(platform.ask(question))), media_type="application/json")


@router.api_route("/{rest:path}", methods=["GET", "POST", "DELETE"], include_in_schema=False)
def nothing(rest: str) -> Response:
    raise NotFound(f"there is nothing at /v1/{rest}", hint="There are /v1/models and /v1/chat/completions.", code="unknown_url")


class _Reply:
    """One answer on its way out."""

    def __init__(self, request: Request, model: str) -> None:
        self._request = request
        self._head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}

    def whole(self, answer: Answer) -> Json:
        text = answer.reason if answer.refused else answer.text
        message: Json = {"role": "assistant", "content": text, "refusal": answer.reason if answer.refused else None}
        message["annotations"] = self._annotations(answer, text)
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish(answer)}
        more = {"usage": usage_json(answer.usage.get("reader", Usage())), "dujiang": self._ours(answer)}
        return {**self._head, "object": "chat.completion", "choices": [choice], **more}

    async def stream(self, pieces: Iterator[str | Answer], *, with_usage: bool) -> AsyncIterator[bytes]:
        """Chunks: the role, the text as it comes, annotations with the end, and usage where it was asked for."""
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
                    end = {"annotations": self._annotations(piece, "".join(shown))}
                    yield self._chunk(end, finish=finish(piece), dujiang=self._ours(piece))
                    if with_usage:
                        spent = usage_json(piece.usage.get("reader", Usage()))
                        yield self._line({**self._head, "object": "chat.completion.chunk", "choices": [], "usage": spent})
        except PipelineError as error:
            yield self._line(error_json(problem(error), error))
            return
        yield b"data: [DONE]\n\n"

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
        return {"refused": answer.refused, "citations": cited, "grounding": grounding, "cache": answer.cache, "degraded": lost}


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


def _model(request: Request, name: str) -> Json:
    view = platform_of(request).collection(name, tenant=who_of(request).tenant)
    return {"id": f"{PREFIX}{name}", "object": "model", "created": int(view.created_at.timestamp()), "owned_by": "dujiang"}


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


def _ask_in(body: Json) -> AskIn:
    """The request as a question of ours. Raises BadRequest naming the field as OpenAI calls it."""
    messages = list_of(body.get("messages"))
    if not messages:
        raise BadRequest("messages is missing or empty", pointer="/messages", hint="Send at least one message of a user.", code="bad_field")
    if body.get("n") not in (None, 1):
        raise BadRequest("n must be 1", pointer="/n", hint="Ask once for each answer.", code="bad_field")
    turns = [_turn(one, place) for place, one in enumerate(messages)]
    last = max((place for place, (role, _) in enumerate(turns) if role == "user"), default=-1)
    if last < 0:
        raise BadRequest("no message is a user's", pointer="/messages", hint="The last message of a user is the question.", code="bad_field")
    ours = object_of(body.get("dujiang")) or {}
    given: Json = {name: ours[name] for name in OURS if name in ours}
    given |= {"query": turns[last][1], "system": "\n\n".join(text for role, text in turns if role == "system" and text.strip())}
    given["history"] = [{"role": role, "content": text} for role, text in turns[:last] if role in {"user", "assistant"}]
    most = body.get("max_completion_tokens", body.get("max_tokens"))
    given |= {name: value for name, value in {**_numbers(body), "max_tokens": most}.items() if value is not None}
    try:
        return AskIn.model_validate(given)
    except ValidationError as error:
        wrong = fields([dict(one) for one in error.errors(include_url=False, include_input=False)])[0]
        pointer = wrong.pointer.replace("/query", "/messages")
        raise BadRequest(f"{pointer.strip('/')}: {wrong.detail}", pointer=pointer, hint="Correct this field.", code="bad_field") from error


def _numbers(body: Json) -> Json:
    return {name: body.get(name) for name in ("temperature", "top_p")}


def _turn(message: object, place: int) -> tuple[str, str]:
    """(role, text); developer counts as system."""
    where = f"/messages/{place}"
    given = object_of(message) or {}
    role, content = given.get("role"), given.get("content")
    if not isinstance(role, str):
        raise BadRequest(f"messages.{place} has no role", pointer=where, hint="A message is an object with role and content.", code="bad_field")
    text = content or "" if isinstance(content, str) or content is None else "\n".join(_parts(list_of(content) or [content], where))
    return ("system" if role == "developer" else role), text


def _parts(content: list[Any], where: str) -> Iterator[str]:
    for number, part in enumerate(content):
        given = object_of(part) or {}
        if given.get("type") not in {"text", "input_text"}:
            hint = "Questions are text: send parts of type text only."
            raise BadRequest(f"{where.strip('/')}/content/{number} is no text", pointer=f"{where}/content/{number}", hint=hint, code="bad_field")
        yield str(given.get("text", ""))
