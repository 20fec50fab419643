"""Sources: where documents come from again and again."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from api import results
from api.answers import LEFT, After, Limit, answer, deletion, link, seen
from api.auth import need, need_read, need_write, visible
from api.guard import GuardedRoute, platform_of, who_of
from api.schemas import PruneIn, SourceChangeIn, SourceIn, SyncIn
from api.sourcing import SourceChange, SourcesHere
from pipeline.errors import BadRequest
from workers.source_views import AbsentView, SourceKindView, SourceStatusView, SourceView
from workers.views import CheckView, Page, RunView

router = APIRouter(route_class=GuardedRoute, tags=["sources"])


def _verbs(request: Request) -> SourcesHere:
    return SourcesHere(platform_of(request), who_of(request).tenant)


def _readable(request: Request, name: str) -> SourceView:
    """A source whose collection the caller may see. Raises NotFound."""
    who = who_of(request)
    need(who, "read")
    view = _verbs(request).show(name)
    need_read(who, view.collection)
    return view


def _own(request: Request, name: str) -> SourcesHere:
    """The verbs, when the caller may change the source. Raises NotFound, Forbidden."""
    who = who_of(request)
    need(who, "write")
    need_write(who, _readable(request, name).collection)
    return _verbs(request)


def _allowed(request: Request, kind: str, options: dict[str, str]) -> None:
    """What reads this machine's folders or environment takes an administrator. Raises Forbidden, Unsupported."""
    if platform_of(request).sources.needs_administrator(kind, options):
        need(who_of(request), "admin")


@router.get("/source-kinds", response_model=list[SourceKindView], summary="Kinds of sources, and what each needs to be told")
def kinds(request: Request) -> Response:
    need(who_of(request), "read")
    return answer(_verbs(request).kinds())


@router.get("/sources", response_model=Page[SourceView], summary="List sources")
def list_sources(request: Request, limit: Limit = 100, after: After = "") -> Response:
    who, verbs = who_of(request), _verbs(request)
    need(who, "read")
    return answer(
        seen(
            lambda count, start: verbs.list(limit=count, after=start),
            lambda item: visible(who, item.collection),
            lambda item: item.name,
            limit,
            after,
        )
    )


@router.post("/sources", response_model=SourceView, status_code=201, summary="Create a source")
def create_source(request: Request, body: SourceIn) -> Response:
    """Secrets are sealed and never shown again. The collection is made when it is missing."""
    need_write(who_of(request), body.collection)
    options = {**body.options, **body.secrets}
    _allowed(request, body.kind, options)
    view = _verbs(request).create(body.name, body.kind, body.collection, SourceChange(options, body.cron, body.timezone, body.jitter_s))
    return answer(view, status=201, headers={"Location": link(request, f"/sources/{view.name}")})


@router.get("/sources/{name}", response_model=SourceView, summary="Show a source")
def show_source(request: Request, name: str) -> Response:
    return answer(_readable(request, name))


@router.patch("/sources/{name}", response_model=SourceView, summary="Change a source")
def update_source(request: Request, name: str, body: SourceChangeIn) -> Response:
    """What is left out stays as it is. New credentials let a source that was stopped go on."""
    verbs = _own(request, name)
    options = {**body.options, **body.secrets}
    if options:
        _allowed(request, verbs.show(name).kind, options)
    return answer(verbs.update(name, SourceChange(options, body.cron, body.timezone, body.jitter_s, body.forget_deleted)))


@router.delete("/sources/{name}", response_model=results.Deleted, responses=LEFT, summary="Delete a source with its documents")
def delete_source(
    request: Request, name: str, keep_documents: Annotated[bool, Query(description="The documents stay, and belong to no source.")] = False
) -> Response:
    found = _own(request, name).delete(name, keep_documents=keep_documents)
    return deletion(request, found, found.outstanding)


@router.post("/sources/{name}/validate", response_model=list[CheckView], summary="Try the credentials, and name what is missing")
def validate_source(request: Request, name: str) -> Response:
    return answer(_own(request, name).validate(name))


@router.post("/sources/{name}/sync", response_model=RunView, status_code=202, summary="List what the source holds now")
def sync_source(request: Request, name: str, body: SyncIn | None = None) -> Response:
    """Answers with the run; while one is under way, with that one. Follow it at `Location`."""
    run = _own(request, name).sync(name, full=body is not None and body.full)
    return answer(run, status=202, headers={"Location": link(request, f"/runs/{run.run_id}")})


@router.get("/sources/{name}/status", response_model=SourceStatusView, summary="A source with its last run")
def source_status(request: Request, name: str) -> Response:
    _readable(request, name)
    return answer(_verbs(request).status(name))


@router.post("/sources/{name}/pause", response_model=SourceView, summary="Stop listing and downloading")
def pause_source(request: Request, name: str) -> Response:
    return answer(_own(request, name).pause(name))


@router.post("/sources/{name}/resume", response_model=SourceView, summary="Go on from where it stood")
def resume_source(request: Request, name: str) -> Response:
    return answer(_own(request, name).resume(name))


@router.get("/sources/{name}/prune", response_model=Page[AbsentView], summary="Documents that the source no longer has")
def absent_documents(request: Request, name: str, limit: Limit = 100, after: After = "") -> Response:
    _readable(request, name)
    return answer(_verbs(request).absent(name, limit=limit, after=after))


@router.post("/sources/{name}/prune", response_model=results.Deleted, summary="Delete what a mass disappearance held back")
def prune_source(request: Request, name: str, body: PruneIn) -> Response:
    verbs = _own(request, name)
    if not body.approve:
        raise BadRequest("nothing is deleted without approval", hint='Look at the list first, then send {"approve": true}.', pointer="/approve")
    return answer(results.Deleted(True, name, verbs.prune(name)))
