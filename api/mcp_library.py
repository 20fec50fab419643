"""What the tools of the MCP server read from, and the façade of this process as such, within a key's scope."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from api.asking import Asking, body
from api.auth import need, need_read, visible
from api.questions import asked, every_collection, question_of
from api.schemas import AskIn, SearchIn
from pipeline.contracts import Answer
from pipeline.errors import NotFound
from pipeline.shapes import answer_json, search_json
from workers.views import CollectionView, DocumentView, ExcerptView, Principal

if TYPE_CHECKING:
    from datetime import datetime

    from workers.dispatch import Platform

Json = dict[str, Any]
PAGE = 100


class Library(Protocol):
    """Reading only, and only what the caller may read. Blocking, safe for threads. Every failure is a PipelineError."""

    def collections(self) -> Sequence[CollectionView]:
        """All that may be read, by name."""
        ...

    def search(self, text: str, options: Asking) -> Json:
        """The published shape of a search."""
        ...

    def ask(self, text: str, options: Asking) -> Generator[str | Json]:
        """Pieces of text as they are written, then the published shape of the answer. Closing it stops the reader."""
        ...

    def document(self, collection: str, document_id: str) -> DocumentView:
        """Raises NotFound."""
        ...

    def excerpt(self, collection: str, document_id: str, start: int, end: int | None, *, most: int, as_of: datetime | None) -> ExcerptView:
        """At most `most` code points, and nothing that is later than `as_of`. Raises NotFound, BadRequest."""
        ...


def unknown(collection: str) -> NotFound:
    """The failure of a collection that is not there, or not for this caller: the two cannot be told apart."""
    return NotFound(f"there is no collection {collection!r}", hint="The tool list_collections names those there are.", code="collection_not_found")


class Here:
    """Over the façade of this process. The platform stays its owner's to close."""

    def __init__(self, platform: Platform, who: Principal) -> None:
        self._platform, self._who = platform, who

    def collections(self) -> Sequence[CollectionView]:
        need(self._who, "read")
        found, after = list[CollectionView](), ""
        while True:
            page = self._platform.collections(tenant=self._who.tenant, limit=PAGE, after=after)
            found += [view for view in page.data if visible(self._who, view.name)]
            if not page.has_more or not page.last_id:
                return found
            after = page.last_id

    def _names(self, options: Asking) -> Sequence[str]:
        need(self._who, "read")
        for name in options.collections:
            self._need(name)
        if options.collections:
            return options.collections
        names = [name for name in every_collection(self._platform, self._who.tenant) if visible(self._who, name)]
        if not names:
            raise NotFound("this key can see no collection yet", hint="Ingest something first, or use another key.")
        return names

    def _need(self, name: str) -> None:
        need(self._who, "read")
        try:
            need_read(self._who, name)
            self._platform.collection(name, tenant=self._who.tenant)
        except NotFound as error:
            raise unknown(name) from error

    def search(self, text: str, options: Asking) -> Json:
        names = self._names(options)
        asked_for = SearchIn.model_validate(body(text, options, ask=False))
        return search_json(self._platform.search(question_of(asked_for, names, self._who.tenant)), trace=True)

    def ask(self, text: str, options: Asking) -> Generator[str | Json]:
        names = self._names(options)
        asked_for = AskIn.model_validate(body(text, options, ask=True))
        for piece in self._platform.stream(asked(asked_for, names, self._who.tenant)):
            yield answer_json(piece) if isinstance(piece, Answer) else piece

    def document(self, collection: str, document_id: str) -> DocumentView:
        self._need(collection)
        return self._platform.document(collection, document_id, tenant=self._who.tenant)

    def excerpt(self, collection: str, document_id: str, start: int, end: int | None, *, most: int, as_of: datetime | None) -> ExcerptView:
        self._need(collection)
        return self._platform.excerpt(collection, document_id, start, end, most=most, as_of=as_of, tenant=self._who.tenant)
