"""Books of a user or team: a full listing now and then, changes and deletions in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import cast

from pipeline.contracts import Asset, CrawledDocument, RawDocument, Scalar, SourceItem
from pipeline.contracts.sources import Evidence, Json, Listed, Mark, Presence, ScanEvent, ScopeDone, ScopeFailed, SourceCheck, SourceSpec, Tombstone
from pipeline.errors import BadRequest, Cancelled, Forbidden, Gone, NotFound, PipelineError, QuotaExhausted, RateLimited, TooLarge, Unauthorised
from pipeline.identity import content_hash
from pipeline.load.exchange import kept_bytes
from pipeline.load.yuque import body
from pipeline.load.yuque.client import PAGE, Row, YuqueClient, stamp
from pipeline.protocols import Connector, Surroundings

MEDIA_TYPE = "application/vnd.yuque.document+json"
OVERLAP_S = 600.0
"""Changes are asked for from a little before the last scan: clocks differ, and hashes decide."""
FULL_EVERY_S = 86_400.0
"""After so long everything is listed again: what a listing of changes missed is found, and moves are seen."""
PASSES = 3
"""Times a book is listed again when documents shifted between its pages."""
MOST_BACK = 20
"""Pages that are gone back in one listing for the same reason."""
PREFIX = "yuque:"


def create(spec: SourceSpec, around: Surroundings) -> Connector:
    """Raises BadRequest for options that are no numbers."""
    options = spec.options
    base_url = options.get("base_url") or "https://www.yuque.com"
    client = YuqueClient(
        base_url,
        spec.secrets.get("token", ""),
        around,
        per_hour=_number(options, "requests_per_hour", 5000),
        per_day=_number(options, "requests_per_day", 0),
    )
    books = tuple(part.strip() for part in options.get("books", "").split(",") if part.strip())
    return Yuque(client, around, base_url.rstrip("/"), options.get("user_id", ""), books, max_bytes=spec.max_bytes)


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    given = options.get(name, "").strip()
    if given and not given.isdigit():
        raise BadRequest(f"{name} is {given!r}, not a whole number", hint="Give a number of requests.", pointer=f"/options/{name}")
    return int(given) if given else default


@dataclass(frozen=True, slots=True)
class Book:
    """One scope."""

    id: str
    name: str
    namespace: str


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a scan stands: what a mark holds."""

    started: float
    since: float = 0.0
    """Moment from which on changes are listed; 0: everything is."""
    full_at: float = 0.0
    done: tuple[str, ...] = ()
    book: str = ""
    offset: int = 0

    def mark(self) -> Mark:
        since = {"at": self.since, "full_at": self.full_at}
        return Mark({"started": self.started, "since": since, "done": list(self.done), "book": self.book, "offset": self.offset})

    def last(self) -> Mark:
        """After the end: the next scan lists changes since this one began."""
        return Mark({"since": {"at": self.started, "full_at": self.full_at or self.started}})


@dataclass(slots=True)
class _Pass:
    """What one listing of a book has held so far."""

    seen: set[str] = field(default_factory=set[str])
    total: int = 0


class Yuque:
    """Identity is the document's number: slugs and books change."""

    def __init__(self, client: YuqueClient, around: Surroundings, base_url: str, user: str, books: Sequence[str], *, max_bytes: int) -> None:
        self._client, self._around, self._base_url = client, around, base_url
        self._user, self._wanted, self._max_bytes = user, books, max_bytes

    def validate(self) -> list[SourceCheck]:
        try:
            owner = self._client.user()
        except (Unauthorised, Forbidden) as error:
            return [SourceCheck("token", False, error.detail, error.hint)]
        checks = [SourceCheck("token", True, f"belongs to {owner.get('login') or owner.get('name')}")]
        found = list(self._books())
        names = {book.namespace for book in found} | {book.id for book in found}
        checks.append(SourceCheck("books", bool(found), f"{len(found)} books", "" if found else "Check --user-id and the token's rights."))
        checks += [SourceCheck("books", False, f"there is no book {name}", "Check --books.") for name in self._wanted if name not in names]
        return checks

    def scan(self, checkpoint: Json) -> Iterator[ScanEvent]:
        progress = self._resume(checkpoint)
        try:
            books = list(self._books())
        except (Forbidden, NotFound, BadRequest) as error:
            yield ScopeFailed(self._user or "books", error.code, error.detail, error.hint)
            return
        for book in books:
            if book.id in progress.done:
                continue
            here = progress if progress.book == book.id else replace(progress, book=book.id, offset=0)
            try:
                yield from self._changes(book, here) if here.since else self._everything(book, here)
            except (Unauthorised, Cancelled, RateLimited, QuotaExhausted):
                raise
            except PipelineError as error:
                yield ScopeFailed(book.namespace, error.code, error.detail, error.hint)
            progress = replace(progress, done=(*progress.done, book.id), book="", offset=0)
            yield progress.mark()
        yield progress.last()

    def _resume(self, checkpoint: Json) -> Progress:
        now = self._around.now()
        held = cast("Mapping[str, float]", checkpoint.get("since") or {})
        at, full_at = float(held.get("at", 0.0)), float(held.get("full_at", 0.0))
        if "started" in checkpoint:
            started = float(cast("float", checkpoint["started"]))
            done = tuple(cast("list[str]", checkpoint.get("done") or []))
            return Progress(started, at, full_at, done, str(checkpoint.get("book") or ""), int(cast("int", checkpoint.get("offset") or 0)))
        if not at or now - full_at >= FULL_EVERY_S:
            return Progress(now)
        return Progress(now, at, full_at)

    def _books(self) -> Iterator[Book]:
        owner = self._client.user()
        team = owner.get("type") == "Group"
        login = self._user or str(owner.get("login") or owner.get("id"))
        owners = [(login, team)]
        if not team and not self._user:
            owners += [(str(group.get("login") or group.get("id")), True) for group in self._client.groups(str(owner.get("id")))]
        for name, group in owners:
            for row in self._client.books(name, group=group):
                if row.get("type") not in (None, "Book", "Design"):
                    continue
                book = Book(str(row.get("id")), str(row.get("name") or row.get("slug")), str(row.get("namespace") or row.get("slug")))
                if not self._wanted or book.namespace in self._wanted or book.id in self._wanted:
                    yield book

    def _everything(self, book: Book, progress: Progress) -> Iterator[ScanEvent]:
        places = _places(self._client.contents(book.id))
        listed = _Pass()
        # What was deleted while the scan was away has shifted the rest: begin a page earlier.
        first = max(0, progress.offset - PAGE)
        resumed = progress.offset > 0
        for number in range(PASSES):
            yield from self._pass(book, places, listed, progress, first if number == 0 else 0)
            if resumed or len(listed.seen) >= listed.total:
                break
        if not resumed and len(listed.seen) < listed.total:
            hint = "Nothing of this book is taken for deleted; the next scan lists it again."
            yield ScopeFailed(book.namespace, "shifting_listing", f"{len(listed.seen)} of {listed.total} documents could be listed", hint)
            return
        yield ScopeDone(book.namespace, len(listed.seen))

    def _pass(self, book: Book, places: Mapping[str, tuple[int, str]], listed: _Pass, progress: Progress, offset: int) -> Iterator[ScanEvent]:
        for rows, after, total in _pages(lambda at: self._client.documents(book.id, at), offset, listed.seen):
            listed.total = total
            for row in rows:
                yield self._event(row, book, places)
            if after < total:
                yield replace(progress, offset=after).mark()

    def _changes(self, book: Book, progress: Progress) -> Iterator[ScanEvent]:
        since = stamp(progress.since - OVERLAP_S)
        count = 0
        places: Mapping[str, tuple[int, str]] | None = None
        for row in self._listed(book, since=since):
            if places is None:
                places = _places(self._client.contents(book.id))
            count += 1
            yield self._event(row, book, places)
        try:
            gone = list(self._listed(book, since=since, deleted=True))
        except BadRequest:
            # The filter is not documented for deletions: then all of them are listed.
            gone = list(self._listed(book, deleted=True))
        for row in gone:
            yield Tombstone(_key(row), Evidence.TRASHED)
        yield ScopeDone(book.namespace, count, delta=True)

    def _listed(self, book: Book, *, since: str = "", deleted: bool = False) -> Iterator[Row]:
        for rows, _, _ in _pages(lambda at: self._client.documents(book.id, at, since=since, deleted=deleted), 0, set()):
            yield from rows

    def _event(self, row: Row, book: Book, places: Mapping[str, tuple[int, str]]) -> ScanEvent:
        if str(row.get("status", "1")) == "0":
            return Tombstone(_key(row), Evidence.UNPUBLISHED)
        order, path = places.get(str(row.get("id")), (-1, ""))
        slug = str(row.get("slug") or "")
        title = str(row.get("title") or slug)
        facts: dict[str, Scalar | list[str]] = {"book": book.name, "kind": str(row.get("type") or "Doc")}
        if order >= 0:
            facts |= {"order": order}
        for name, of in (("created_at", "created_at"), ("updated_at", "content_updated_at")):
            if row.get(of):
                facts[name] = str(row[of])
        return Listed(
            SourceItem(
                key=_key(row),
                revision=_revision(row),
                title=title,
                url=f"{self._base_url}/{book.namespace}/{slug}",
                path="/".join(part for part in (book.name, path, title) if part),
                media_type=MEDIA_TYPE,
                metadata=facts,
            ),
            book.namespace,
        )

    def fetch(self, item: SourceItem) -> RawDocument:
        number = item.key.removeprefix(PREFIX)
        try:
            detail = self._client.document(number)
        except NotFound as error:
            raise Gone(f"{item.key} is no longer in Yuque") from error
        if str(detail.get("status", "1")) == "0":
            raise Gone(f"{item.key} is not published any more")
        kept = body.kept(detail)
        if detail.get("type") == "Table":
            kept["body_table"] = body.whole_table(detail, lambda page: self._client.document(number, page))
        data = kept_bytes(item.key, kept)
        if len(data) > self._max_bytes:
            raise TooLarge(f"{item.key} has {len(data):,} bytes", hint="Raise DUJIANG_MAX_FILE_MB, or leave it out.")
        text = data.decode()
        crawled = CrawledDocument(item.url, item.title, text, len(text), datetime.fromtimestamp(self._around.now(), UTC), item.metadata)
        assets = tuple([Asset(name, address, kind, "external") for name, address, kind in body.assets(kept)])
        # Known from the listing, but for what is fetched again without one.
        revision = item.revision or _revision(detail)
        return RawDocument(replace(item, media_type=MEDIA_TYPE, revision=revision), data, content_hash(data), MEDIA_TYPE, "utf-8", crawled, assets)

    def probe(self, keys: Sequence[str]) -> Mapping[str, Presence]:
        """One call each: what a listing lacked is asked for before anything is taken for deleted."""
        found: dict[str, Presence] = {}
        for key in keys:
            try:
                detail = self._client.document(key.removeprefix(PREFIX))
                found[key] = Presence.GONE if str(detail.get("status", "1")) == "0" else Presence.ALIVE
            except NotFound:
                found[key] = Presence.GONE
            except Forbidden:
                found[key] = Presence.FORBIDDEN
            except (RateLimited, QuotaExhausted):
                found[key] = Presence.UNKNOWN
        return found


def _pages(ask: Callable[[int], tuple[list[Row], int]], offset: int, seen: set[str]) -> Iterator[tuple[list[Row], int, int]]:
    """(rows that are not in `seen` yet, offset after them, how many there are) of each page; `seen` grows by them.

    Each page begins with the last row of the one before: when it does not, rows were taken out meanwhile and the rest has moved up.
    """
    begun, back = False, 0
    while True:
        rows, total = ask(offset)
        if begun and offset and back < MOST_BACK and not (rows and _key(rows[0]) in seen):
            offset, back = max(0, offset - PAGE), back + 1
            continue
        begun = True
        fresh = [row for row in rows if _key(row) not in seen]
        seen |= {_key(row) for row in fresh}
        offset += len(rows)
        yield fresh, offset, total
        if len(rows) < 2 or offset >= total:
            return
        offset -= 1


def _key(row: Row) -> str:
    return f"{PREFIX}{row.get('id')}"


def _revision(row: Row) -> str:
    return str(row.get("content_updated_at") or row.get("updated_at") or "")


def _places(contents: Sequence[Row]) -> dict[str, tuple[int, str]]:
    """Document number → (place in the table of contents, titles above it)."""
    found: dict[str, tuple[int, str]] = {}
    above: list[tuple[int, str]] = []
    for order, row in enumerate(contents):
        depth = row.get("level", row.get("depth"))
        level = depth if isinstance(depth, int) else 0
        while above and above[-1][0] >= level:
            above.pop()
        number = row.get("doc_id") or row.get("id")
        if row.get("type") == "DOC" and number:
            found[str(number)] = (order, "/".join(title for _, title in above))
        above.append((level, str(row.get("title") or "")))
    return found
