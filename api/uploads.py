"""Documents that came with a request: multipart files or JSON texts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request

from api.guard import body_of
from api.lanes import lane_for
from api.schemas import DocumentIn, DocumentsIn, FileIn, Meta
from pipeline.contracts import Lane
from pipeline.errors import BadRequest, Unsupported
from workers.views import Incoming

T = TypeVar("T")

_FIELDS = ("metadata", "documents", "options", "lane", "source")


@dataclass(frozen=True, slots=True)
class Received:
    """What to ingest. `items` reads one file at a time, so that a large upload is never in memory whole."""

    items: Iterator[Incoming]
    lane: Lane
    metadata: Meta
    options: Mapping[str, str]
    source: str


def received(request: Request) -> Received:
    """The documents of a request. Raises BadRequest, Unsupported, RequestValidationError."""
    body = body_of(request)
    if body.form is not None:
        return _of_form(body.form)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in {"", "application/json"} and not kind.endswith("+json"):
        raise Unsupported(f"documents cannot be sent as {kind!r}", hint="Send multipart/form-data with files, or application/json.")
    return _of_json(_parsed(DocumentsIn, body.raw, ()))


def _of_json(body: DocumentsIn) -> Received:
    items = (_incoming(document) for document in body.documents)
    return Received(items, lane_for(len(body.documents), body.lane), body.metadata, body.options, body.source or "http")


def _incoming(document: DocumentIn) -> Incoming:
    key = document.key or document.url
    suffixed = "." in key.rsplit("/", 1)[-1]
    return Incoming(
        key=key,
        title=document.title,
        url=document.url,
        data=document.text.encode("utf-8", "replace"),
        media_type=document.media_type or ("" if document.key and suffixed else "text/plain"),
        metadata=document.metadata,
    )


def _of_form(form: FormData) -> Received:
    files = [(name, value) for name, value in form.multi_items() if isinstance(value, UploadFile)]
    given = {name: value for name, value in form.multi_items() if isinstance(value, str)}
    unknown = [name for name in given if name not in _FIELDS] + [name for name, _ in files if name not in {"file", "files"}]
    if unknown:
        raise BadRequest(f"unknown field {unknown[0]!r}", pointer=f"/{unknown[0]}", hint=f"Known: file, {', '.join(_FIELDS)}.")
    uploads = [file for _, file in files]
    if not uploads:
        raise BadRequest("the form holds no file", pointer="/file", hint="Send each document as a part named `file` with a file name.")
    lane = given.get("lane") or None
    if lane not in {None, "interactive", "bulk"}:
        raise BadRequest(f"there is no lane {lane!r}", pointer="/lane", hint="Use interactive or bulk.")
    known = _parsed(list[FileIn], given["documents"], ("documents",)) if "documents" in given else list[FileIn]()
    if known and len(known) != len(uploads):
        raise BadRequest(f"`documents` describes {len(known)} files, but {len(uploads)} were sent", pointer="/documents")
    metadata = _parsed(Meta, given["metadata"], ("metadata",)) if "metadata" in given else Meta()
    options = _parsed(dict[str, str], given["options"], ("options",)) if "options" in given else dict[str, str]()
    return Received(_files(uploads, known), lane_for(len(uploads), lane), metadata, options, given.get("source") or "http")


def _files(uploads: Sequence[UploadFile], known: Sequence[FileIn]) -> Iterator[Incoming]:
    nothing = FileIn.model_validate({})
    for position, upload in enumerate(uploads):
        about = known[position] if known else nothing
        name = upload.filename or f"upload-{position + 1}"
        upload.file.seek(0)
        yield Incoming(
            key=about.key or name,
            title=about.title,
            url=about.url,
            data=upload.file.read(),
            media_type=about.media_type or _declared(upload),
            metadata=about.metadata,
        )
        upload.file.close()


def _declared(upload: UploadFile) -> str:
    """The part's content type; browsers and HTTP clients say octet-stream when they do not know."""
    kind = (upload.content_type or "").partition(";")[0].strip().lower()
    return "" if kind == "application/octet-stream" else kind


def _parsed(kind: type[T], text: str | bytes, place: tuple[str, ...]) -> T:
    try:
        return TypeAdapter(kind).validate_python(json.loads(text))
    except ValidationError as error:
        found = [{**item, "loc": ("body", *place, *item["loc"])} for item in error.errors(include_input=False, include_url=False)]
        raise RequestValidationError(found) from error
    except (ValueError, RecursionError) as error:
        where = "".join(f"/{part}" for part in place)
        raise BadRequest(f"{where or 'the body'} is not valid JSON", pointer=where, hint="Send valid JSON in UTF-8.") from error
