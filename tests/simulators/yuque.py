"""Yuque's API v2 over a model that tests change: users, teams, books, documents in every format, quotas and their refusals.

python -m tests.simulators.yuque --port 0        a small library, its address and token printed
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.simulators.served import Answer, Call, Clock, Simulator

TOKEN = "yq-token"
Handler = Callable[[Call, re.Match[str]], Answer]


@dataclass(slots=True)
class Doc:
    """One document; `detail` are the fields that only the detail call shows."""

    id: int
    title: str
    slug: str = ""
    kind: str = "Doc"
    status: int | str = 1
    changed: float = 0.0
    deleted: float = 0.0
    forbidden: bool = False
    detail: dict[str, Any] = field(default_factory=dict[str, Any])

    def slim(self, book: int, stamp: Callable[[float], str]) -> dict[str, Any]:
        row: dict[str, Any] = {
            "id": self.id,
            "type": self.kind,
            "slug": self.slug or f"doc-{self.id}",
            "title": self.title,
            "book_id": book,
            "status": self.status,
            "created_at": stamp(self.changed),
            "updated_at": stamp(self.changed),
            "content_updated_at": stamp(self.changed),
            "hits": 7,
        }
        if self.deleted:
            row |= {"deleted_at": stamp(self.deleted), "deleted_slug": f"{row['slug']}-deleted"}
        return row


@dataclass(slots=True)
class BookModel:
    id: int
    slug: str
    name: str
    docs: dict[int, Doc] = field(default_factory=dict[int, Doc])
    contents: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    forbidden: bool = False


class Yuque(Simulator):
    """One user (or team) with books. `quota_day` refuses from that many calls in one day of China on."""

    def __init__(self, clock: Clock | None = None, *, login: str = "shui", team: bool = False) -> None:
        super().__init__(clock)
        self.login, self.team = login, team
        self.books: dict[int, BookModel] = {}
        self.teams: dict[str, list[int]] = {}
        """Team's login → its books; the others are the user's own."""
        self.token = TOKEN
        self.quota_day = 0
        self.deleted_filter = True
        """Whether `changed_at_gte` may be combined with `deleted`."""
        self._routes: list[tuple[re.Pattern[str], Handler]] = [
            (re.compile(r"/api/v2/user$"), self._user),
            (re.compile(r"/api/v2/users/(?P<id>[^/]+)/groups$"), self._groups),
            (re.compile(r"/api/v2/(?P<of>users|groups)/(?P<login>[^/]+)/repos$"), self._repos),
            (re.compile(r"/api/v2/repos/docs/(?P<doc>\d+)$"), self._detail),
            (re.compile(r"/api/v2/repos/(?P<book>\d+)/docs$"), self._docs),
            (re.compile(r"/api/v2/repos/(?P<book>\d+)/toc$"), self._toc),
        ]

    def book(self, number: int, name: str, slug: str = "", *, team: str = "") -> BookModel:
        made = self.books[number] = BookModel(number, slug or f"book-{number}", name)
        if team:
            self.teams.setdefault(team, []).append(number)
        return made

    def write(self, book: int, number: int, title: str, text: str = "", **fields: Any) -> Doc:
        """Add or change a Markdown document, or one of another kind by `kind` and `detail`."""
        detail = fields.pop("detail", None) or {"format": "markdown", "body": text, "body_html": f"<p>{text}</p>"}
        doc = Doc(number, title, detail=detail, changed=self.clock.now(), **fields)
        self.books[book].docs[number] = doc
        return doc

    def delete(self, book: int, number: int) -> None:
        self.books[book].docs[number].deleted = self.clock.now()

    def stamp(self, seconds: float) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(seconds))

    def answer(self, call: Call) -> Answer:
        if call.headers.get("x-auth-token") != self.token:
            return _refused(401, "Unauthorized")
        if self.quota_day and self._today() >= self.quota_day:
            return _refused(429, "Too Many Requests")
        for pattern, handler in self._routes:
            found = pattern.match(call.path)
            if found:
                return handler(call, found)
        return _refused(404, "Not Found")

    def _today(self) -> int:
        def day(at: float) -> int:
            return int((at + 8 * 3600) // 86400)

        return sum(day(call.at) == day(self.clock.now()) and call.status != 429 for call in self.calls)

    def _user(self, _call: Call, _found: re.Match[str]) -> Answer:
        return Answer.json({"data": {"id": 11, "type": "Group" if self.team else "User", "login": self.login, "name": "水文站"}})

    def _groups(self, call: Call, _found: re.Match[str]) -> Answer:
        if not self.teams:
            return _refused(404, "Not Found")
        return _page(call, [{"id": number, "login": login, "name": login} for number, login in enumerate(sorted(self.teams), 500)])

    def _repos(self, call: Call, found: re.Match[str]) -> Answer:
        theirs = {number for numbers in self.teams.values() for number in numbers}
        login = found["login"]
        if found["of"] == "groups" and not (self.team and login == self.login):
            if login not in self.teams:
                return _refused(404, "Not Found")
            mine = [self.books[number] for number in self.teams[login]]
        else:
            if login not in (self.login, "11"):
                return _refused(404, "Not Found")
            mine = [book for book in self.books.values() if book.id not in theirs]
        rows = [{"id": b.id, "type": "Book", "slug": b.slug, "name": b.name, "namespace": f"{login}/{b.slug}"} for b in mine]
        return _page(call, rows)

    def _docs(self, call: Call, found: re.Match[str]) -> Answer:
        book = self.books.get(int(found["book"]))
        if book is None:
            return _refused(404, "Not Found")
        if book.forbidden:
            return _refused(403, "Forbidden")
        gone, since = call.query.get("deleted") == "true", call.query.get("changed_at_gte", "")
        if gone and since and not self.deleted_filter:
            return _refused(400, "Bad Request")
        rows = [doc for doc in sorted(book.docs.values(), key=lambda doc: doc.id) if bool(doc.deleted) == gone]
        if since:
            rows = [doc for doc in rows if self.stamp(doc.deleted or doc.changed) >= since]
        return _page(call, [doc.slim(book.id, self.stamp) for doc in rows])

    def _toc(self, _call: Call, found: re.Match[str]) -> Answer:
        book = self.books.get(int(found["book"]))
        if book is None:
            return _refused(404, "Not Found")
        return _refused(403, "Forbidden") if book.forbidden else Answer.json({"data": book.contents})

    def _detail(self, call: Call, found: re.Match[str]) -> Answer:
        for book in self.books.values():
            doc = book.docs.get(int(found["doc"]))
            if doc is None or doc.deleted:
                continue
            if doc.forbidden or book.forbidden:
                return _refused(403, "Forbidden")
            return Answer.json({"data": {**doc.slim(book.id, self.stamp), **self._paged(doc, call), "hits": len(self.calls)}})
        return _refused(404, "Not Found")

    def _paged(self, doc: Doc, call: Call) -> dict[str, Any]:
        table = doc.detail.get("body_table")
        if not isinstance(table, dict):
            return doc.detail
        page, size = int(call.query.get("page", 1)), min(200, int(call.query.get("page_size", 200)))
        rows = table["records"]
        return {**doc.detail, "body_table": {**table, "totalCount": len(rows), "records": rows[(page - 1) * size : page * size], "page": page}}


def _page(call: Call, rows: list[dict[str, Any]]) -> Answer:
    offset, limit = int(call.query.get("offset", 0)), min(100, int(call.query.get("limit", 100)))
    return Answer.json({"meta": {"total": len(rows)}, "data": rows[offset : offset + limit]})


def _refused(status: int, message: str) -> Answer:
    return Answer.json({"status": status, "message": message}, status)


def library(simulator: Yuque) -> Yuque:
    """A small library for a demonstration: two books of a gauging station, in several formats."""
    from tests.simulators.yuque_library import fill

    fill(simulator)
    return simulator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    simulator = library(Yuque(Clock(real=True))).start(parser.parse_args().port)
    print(f"{simulator.url} {simulator.token}", flush=True)
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        simulator.stop()


if __name__ == "__main__":
    main()
