"""A Dujiang behind HTTP, as the tools of the MCP server read it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import quote

from api.asking import Asking
from api.mcp_library import PAGE, Json, unknown
from api.remote import Remote
from api.results import decode
from workers.views import CollectionView, DocumentView, ExcerptView, Page

if TYPE_CHECKING:
    from datetime import datetime


class There:
    """Behind a URL: its key decides what may be read, `only` narrows it further.

    A connection serves one call at a time; as many are kept as calls were made at once.
    """

    def __init__(self, url: str, *, api_key: str = "", only: Sequence[str] = ()) -> None:
        self._url, self._api_key, self._only = url, api_key, tuple(only)
        self._idle: list[Remote] = [self._connect()]

    def _connect(self) -> Remote:
        return Remote(self._url, api_key=self._api_key)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    @contextmanager
    def _remote(self) -> Generator[Remote]:
        try:
            remote = self._idle.pop()
        except IndexError:
            remote = self._connect()
        try:
            yield remote
        finally:
            self._idle.append(remote)

    def _may(self, name: str) -> bool:
        return not self._only or name in self._only

    def _within(self, options: Asking) -> Asking:
        for name in options.collections:
            if not self._may(name):
                raise unknown(name)
        return options if options.collections else replace(options, collections=self._only)

    def collections(self) -> Sequence[CollectionView]:
        found, after = list[CollectionView](), ""
        with self._remote() as remote:
            while True:
                page: Page[CollectionView] = remote.collections(limit=PAGE, after=after)
                found += [view for view in page.data if self._may(view.name)]
                if not page.has_more or not page.last_id:
                    return found
                after = page.last_id

    def search(self, text: str, options: Asking) -> Json:
        with self._remote() as remote:
            return remote.search(text, replace(self._within(options), trace=True))

    def ask(self, text: str, options: Asking) -> Generator[str | Json]:
        with self._remote() as remote:
            yield from remote.stream(text, self._within(options))

    def document(self, collection: str, document_id: str) -> DocumentView:
        if not self._may(collection):
            raise unknown(collection)
        with self._remote() as remote:
            return remote.document(collection, document_id, text=False)

    def excerpt(self, collection: str, document_id: str, start: int, end: int | None, *, most: int, as_of: datetime | None) -> ExcerptView:
        if not self._may(collection):
            raise unknown(collection)
        asked_for = {"start_char": start, "end_char": end, "max_chars": most, "as_of": as_of.isoformat() if as_of else None}
        path = f"/collections/{quote(collection, safe='')}/documents/{quote(document_id, safe='')}/text"
        with self._remote() as remote:
            found = remote.send("GET", path, params={name: value for name, value in asked_for.items() if value is not None})
        return decode(ExcerptView, found)
