"""Search and ask."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from api import events, results
from api.answers import answer
from api.auth import need, need_read, visible
from api.guard import GuardedRoute, platform_of, who_of
from api.questions import asked, every_collection, question_of
from api.schemas import AskIn, QuestionIn, SearchIn
from pipeline.errors import NotFound
from pipeline.shapes import answer_json, search_json

router = APIRouter(route_class=GuardedRoute, tags=["questions"])


def _collections(request: Request, body: QuestionIn) -> list[str]:
    """Those asked for, or all that the caller may read."""
    who = who_of(request)
    need(who, "read")
    for name in body.collections:
        need_read(who, name)
    if body.collections:
        return body.collections
    names = [name for name in every_collection(platform_of(request), who.tenant) if visible(who, name)]
    if not names:
        raise NotFound("this key can see no collection yet", hint="Ingest something first.")
    return names


@router.post("/search", response_model=results.Found, summary="Ranked chunks")
def search(request: Request, body: SearchIn) -> Response:
    question = question_of(body, _collections(request, body), who_of(request).tenant)
    return answer(search_json(platform_of(request).search(question), trace=body.trace))


@router.post(
    "/ask",
    response_model=results.AnswerView,
    summary="A cited answer, or a refusal",
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
def ask(request: Request, body: AskIn) -> Response:
    """With `"stream": true` or `Accept: text/event-stream`: `token` events, then `answer` with the whole answer."""
    question = asked(body, _collections(request, body), who_of(request).tenant)
    platform = platform_of(request)
    if body.stream or events.MEDIA_TYPE in request.headers.get("accept", ""):
        return events.stream(events.answer_events(events.started(platform.stream(question)), trace=body.trace))
    return answer(answer_json(platform.ask(question), trace=body.trace))
