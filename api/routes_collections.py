"""Collections and their documents."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import AwareDatetime
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from api import results
from api.answers import LEFT, After, Limit, answer, deletion, link, seen
from api.auth import need, need_read, need_write, visible
from api.guard import GuardedRoute, platform_of, who_of
from api.schemas import CollectionIn, DocumentsIn
from api.uploads import received
from pipeline.errors import NotFound
from workers.views import CollectionView, DocumentView, ExcerptView, Page, RunView

router = APIRouter(route_class=GuardedRoute, prefix="/collections", tags=["collections"])

_DOCUMENT_BODIES = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/DocumentsIn"}},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {
                        "file": {"type": "array", "items": {"type": "string", "format": "binary"}, "description": "One part per document."},
                        "metadata": {"type": "string", "description": "JSON object given to every document."},
                        "documents": {"type": "string", "description": "JSON list in the files' order: key, title, url, media_type, metadata."},
                        "options": {"type": "string", "description": 'Parse options as a JSON object, e.g. {"pages": "1-3"}.'},
                        "lane": {"type": "string", "enum": ["interactive", "bulk"]},
                        "source": {"type": "string"},
                    },
                }
            },
        },
    }
}


@router.get("", response_model=Page[CollectionView], summary="List collections")
def list_collections(request: Request, limit: Limit = 100, after: After = "") -> Response:
    who = who_of(request)
    need(who, "read")
    platform = platform_of(request)
    return answer(
        seen(
            lambda count, start: platform.collections(tenant=who.tenant, limit=count, after=start),
            lambda item: visible(who, item.name),
            lambda item: item.name,
            limit,
            after,
        )
    )


@router.post("", response_model=CollectionView, status_code=201, summary="Create a collection")
def create_collection(request: Request, body: CollectionIn) -> Response:
    """201 for a new one; 200 when it is there already with the same options, 409 with others."""
    who, platform = who_of(request), platform_of(request)
    need_write(who, body.name)
    status = 200
    try:
        platform.collection(body.name, tenant=who.tenant)
    except NotFound:
        status = 201
    view = platform.create_collection(body.name, chunker=body.chunker, embedder=body.embedder, tenant=who.tenant, options=body.options)
    if body.search is not None:
        platform.tunings.tune(body.name, body.search.model_dump(exclude_unset=True), tenant=who.tenant)
        view = platform.collection(body.name, tenant=who.tenant)
    return answer(view, status=status, headers={"Location": link(request, f"/collections/{view.name}")})


@router.get("/{name}", response_model=CollectionView, summary="Show a collection")
def show_collection(request: Request, name: str) -> Response:
    who = who_of(request)
    need_read(who, name)
    return answer(platform_of(request).collection(name, tenant=who.tenant))


@router.delete("/{name}", response_model=results.Deleted, responses=LEFT, summary="Delete a collection with all its documents")
def delete_collection(request: Request, name: str) -> Response:
    who = who_of(request)
    need_write(who, name)
    view = platform_of(request).deleting.collection(name, tenant=who.tenant)
    return deletion(request, results.deleted(name, view), view.outstanding)


@router.get("/{name}/documents", response_model=Page[DocumentView], summary="List documents")
def list_documents(
    request: Request, name: str, status: Annotated[str, Query(description="Only those with this status.")] = "", limit: Limit = 100, after: After = ""
) -> Response:
    who = who_of(request)
    need_read(who, name)
    return answer(platform_of(request).documents(name, tenant=who.tenant, status=status, limit=limit, after=after))


@router.post("/{name}/documents", response_model=RunView, status_code=202, summary="Ingest documents", openapi_extra=_DOCUMENT_BODIES)
def add_documents(request: Request, name: str) -> Response:
    """Files as multipart/form-data, or texts as JSON. Answers with the run that was started; follow it at `Location`."""
    who, platform = who_of(request), platform_of(request)
    need_write(who, name)
    batch = received(request)
    run = platform.ingest(name, batch.items, lane=batch.lane, metadata=batch.metadata, source=batch.source, tenant=who.tenant, options=batch.options)
    return answer(run, status=202, headers={"Location": link(request, f"/runs/{run.run_id}")})


@router.get("/{name}/documents/{document_id}", response_model=DocumentView, summary="Show a document")
def show_document(
    request: Request, name: str, document_id: str, text: Annotated[bool, Query(description="With the parsed text.")] = False
) -> Response:
    who = who_of(request)
    need_read(who, name)
    return answer(platform_of(request).document(name, document_id, tenant=who.tenant, text=text))


@router.delete("/{name}/documents/{document_id}", response_model=results.Deleted, responses=LEFT, summary="Delete a document")
def delete_document(request: Request, name: str, document_id: str) -> Response:
    who = who_of(request)
    need_write(who, name)
    view = platform_of(request).deleting.documents(name, [document_id], tenant=who.tenant)
    return deletion(request, results.deleted(document_id, view), view.outstanding)


@router.get("/{name}/documents/{document_id}/text", response_model=ExcerptView, summary="Parsed text between two offsets")
def document_text(
    request: Request,
    name: str,
    document_id: str,
    start_char: Annotated[int, Query(ge=0, description="First code point, from 0.")] = 0,
    end_char: Annotated[int | None, Query(ge=0, description="End, excluded; the end of the text when left out.")] = None,
    max_chars: Annotated[int | None, Query(ge=1, description="Cut after so many code points.")] = None,
    as_of: Annotated[AwareDatetime | None, Query(description="Only what was known then; with a time zone.")] = None,
) -> Response:
    """JSON, or the bare text for `Accept: text/plain`."""
    who = who_of(request)
    need_read(who, name)
    found = platform_of(request).excerpt(name, document_id, start_char, end_char, most=max_chars, as_of=as_of, tenant=who.tenant)
    return PlainTextResponse(found.text) if _wants(request) == "text" else answer(found)


def _wants(request: Request) -> Literal["text", "json"]:
    accept = request.headers.get("accept", "")
    return "text" if accept.startswith("text/plain") else "json"


MODELS = (DocumentsIn,)
"""Bodies that are read by hand, and so have to be added to the OpenAPI page."""
