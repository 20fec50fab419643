"""One crawl of a site: the loop over the frontier, and what each answer means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from types import MappingProxyType
from urllib.parse import urlsplit, urlunsplit

from pipeline.contracts import CrawledDocument, RawDocument, SourceItem
from pipeline.contracts.sources import Evidence, Listed, Mark, ScanEvent, Tombstone
from pipeline.errors import Forbidden, Malformed, PipelineError, RateLimited, TooLarge, Unavailable
from pipeline.identity import content_hash
from pipeline.load.web import frontier as of
from pipeline.load.web import likeness
from pipeline.load.web.addresses import FILES, NO_PAGE, Site, canonical, name, suffix
from pipeline.load.web.fetch import Reply, conditional
from pipeline.load.web.frontier import Frontier, Known
from pipeline.load.web.page import Page, is_html, read, text_of
from pipeline.load.web.polite import LEFT_ALONE, PAGE_FAILED, PATIENCE_S, TRIES, UNSAID_S, Host, Polite

PAGE_BYTES = 20_000_000
"""Largest page; documents of other formats have the house's own limit."""
ERROR_BYTES = 65_536
MARK_EVERY = 20
"""Requests between two marks: as many are made again after a crash."""
MARK_EVERY_S = 10.0
MOST_FAILURES = 8
"""Requests in a row that nobody answered, after which a host is left alone for this crawl."""
MOST_THROTTLED = 20
MOST_HOPS = 10
REDIRECTS = frozenset({301, 302, 303, 307, 308})
REFUSALS = frozenset({401, 402, 403, 407, 451})
DOCUMENTS = frozenset(
    "application/pdf application/msword application/vnd.ms-excel application/json application/jsonl text/plain text/csv text/markdown "
    "text/x-markdown text/tab-separated-values application/octet-stream application/xhtml+xml text/html".split()
)
_PAGES = frozenset({"", "text/html", "application/xhtml+xml", "text/plain", "application/octet-stream", "application/xml", "text/xml"})


def is_document(media_type: str) -> bool:
    """Whether a media type may be one that is read here; the parser decides by content."""
    return media_type in DOCUMENTS or media_type.startswith(("application/vnd.openxmlformats", "application/vnd.oasis.opendocument"))


def page_bound(status: int, headers: Mapping[str, str]) -> int:
    """Bytes wanted of an answer that may be a page: all of one, a little of an error, nothing of a file."""
    if status != 200:
        return ERROR_BYTES
    return PAGE_BYTES if headers.get("content-type", "").partition(";")[0].strip().lower() in _PAGES else 0


@dataclass(slots=True)
class Tally:
    """What is reported at the end."""

    visits: int = 0
    outside: int = 0
    links_left_out: int = 0
    soft: int = 0
    full: bool = False
    """`max_pages` was reached while there was more."""


class Crawl:
    """Used by one thread, once."""

    def __init__(
        self,
        polite: Polite,
        site: Site,
        frontier: Frontier,
        *,
        max_pages: int,
        max_depth: int,
        renders: bool = False,
        reading: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._polite, self.site, self.frontier = polite, site, frontier
        self._around = polite.around
        self._max_pages, self._max_depth = max_pages, max_depth
        self._renders = renders
        self._reading = reading
        self.tally = Tally()
        self._count = sum(1 for _ in frontier.listed())
        self._by_text = {known.text: known.url for known in frontier.listed() if known.text}
        self.aliases: list[Known] = [known for known in frontier.pages.values() if known.visit == frontier.crawl and known.state in of.ALIASES]

    def mark(self) -> Mark:
        return Mark({"crawl": self.frontier.crawl})

    def pages(self) -> Iterator[ScanEvent]:
        """Ask for everything in reach. Raises RateLimited when nothing can be asked for a long while; all is handed over by then."""
        since, at = 0, self._around.now()
        while (known := self._next()) is not None:
            if isinstance(known, RateLimited):
                yield self.mark()
                self.frontier.save()
                raise known
            self._around.check()
            yield from self._visit(known)
            since += 1
            if since >= MARK_EVERY or self._around.now() - at >= MARK_EVERY_S:
                yield self.mark()
                self.frontier.save()
                since, at = 0, self._around.now()

    def _next(self) -> Known | RateLimited | None:
        """The next address whose host is ready, after waiting for it where need be."""
        while True:
            hosts = [host for host in self.frontier.hosts() if self._polite.at(host).down is None]
            if not hosts:
                return None
            if self._count >= self._max_pages or self.tally.visits >= 3 * self._max_pages + 200:
                self.tally.full = True
                return None
            now = self._around.now()
            first = min(hosts, key=lambda host: self._polite.at(host).ready_at)
            wait_s = self._polite.at(first).ready_at - now
            if wait_s > PATIENCE_S:
                return RateLimited(f"{first} takes our next request in {wait_s:.0f} s", after=wait_s, scope=first)
            if wait_s > 0:
                self._around.sleep(wait_s)
                continue
            known = self.frontier.pop(first)
            if known is not None:
                return known

    def _visit(self, known: Known) -> Iterator[ScanEvent]:
        host = self._polite.host(known.url)
        try:
            if not self._polite.rules(known.url, fresh=True).allows(known.url):
                self._settle(known, of.ROBOTS)
                return
            reply = self._ask(known)
        except RateLimited as error:
            wait_s = error.after if error.after is not None else UNSAID_S
            host.ready_at = self._around.now() + max(0.05, wait_s)
            if host.throttled >= MOST_THROTTLED:
                host.down = error
            self.frontier.queue(known)
        except Unavailable as error:
            yield from self._unanswered(known, host, error)
        except (TooLarge, Malformed, Forbidden) as error:
            if host.robots is None:
                host.down = error
                self.frontier.queue(known)
                return
            self.tally.visits += 1
            yield from self._broken(known, error, f"{error.code}:{known.etag}")
        else:
            self.tally.visits += 1
            yield from self._answered(known, reply)

    def _ask(self, known: Known) -> Reply:
        file = suffix(known.url) in FILES and not known.page
        method = "HEAD" if file else "GET"
        return self._polite.ask(known.url, bound=page_bound, headers=conditional(known.validators), method=method)

    def _unanswered(self, known: Known, host: Host, error: Unavailable) -> Iterator[ScanEvent]:
        """Try again later; after some times it is this page's own failure, and after many in a row the host's."""
        if error.code == LEFT_ALONE:
            host.ready_at = self._around.now() + (error.after or 1.0)
            self.frontier.queue(known)
            return
        host.failures += error.code != PAGE_FAILED
        known.tries += 1
        if host.robots is None or host.failures >= MOST_FAILURES or error.code == "unknown_host":
            host.down = error
            self.frontier.queue(known)
        elif known.tries < TRIES:
            if error.code != PAGE_FAILED:
                host.ready_at = self._around.now() + (error.after or 2.0**known.tries)
            self.frontier.queue(known)
        else:
            self.tally.visits += 1
            yield from self._broken(known, error, "")

    def _broken(self, known: Known, error: PipelineError, mark: str) -> Iterator[ScanEvent]:
        """It is listed all the same: what answered before stays, and of what is new the download tells why there is nothing."""
        if isinstance(error, Unavailable) and known.listed:
            yield from self._again(known)
            return
        known.mark, known.etag, known.modified = mark, "", ""
        self._settle(known, of.BROKEN)
        yield self._listed(known)

    def _again(self, known: Known) -> Iterator[ScanEvent]:
        """It is as it was."""
        state = known.state if known.state in of.DOCUMENTS | of.ALIASES else of.PAGE
        if known.text and state in (of.PAGE, of.SAME):
            known.target = self._by_text.setdefault(known.text, known.url)
            state = of.PAGE if known.target == known.url else of.SAME
        self._settle(known, state)
        if state in of.DOCUMENTS:
            yield self._listed(known)
        else:
            self.aliases.append(known)

    def _answered(self, known: Known, reply: Reply) -> Iterator[ScanEvent]:
        status = reply.status
        if status == 304 and known.mark:
            yield from self._again(known)
        elif status in REDIRECTS:
            yield from self._redirected(known, reply)
        elif status in REFUSALS:
            self._settle(known, of.REFUSED)
        elif status == 404:
            self._settle(known, of.MISSING)
        elif status == 410:
            before = known.listed
            self._settle(known, of.GONE)
            if before:
                yield Tombstone(known.url, Evidence.GONE)
        elif status in (200, 203):
            yield from self._content(known, reply)
        elif suffix(known.url) in FILES and not known.page:
            # It does not like to be asked for the head alone: the download tells.
            known.mark = ""
            self._settle(known, of.FILE)
            yield self._listed(known)
        else:
            yield from self._broken(known, Malformed(f"{name(known.url)} was answered with {status}"), f"status:{status}")

    def _redirected(self, known: Known, reply: Reply) -> Iterator[ScanEvent]:
        target = self.site.twin(canonical(reply.headers.get("location", ""), known.url))
        if not target or not self.site.holds(target):
            self.tally.outside += 1
            self._settle(known, of.OUTSIDE)
        elif target == known.url or known.hops >= MOST_HOPS:
            yield from self._broken(known, Malformed("it redirects in a circle"), "redirect_loop")
        else:
            known.target, known.text, known.mark = target, "", ""
            # A login page or a notice is in the way only for a while.
            self._settle(known, of.MOVED if reply.status in (301, 308) else of.LED)
            self.aliases.append(known)
            self.frontier.add(target, known.depth, hops=known.hops + 1)

    def _content(self, known: Known, reply: Reply) -> Iterator[ScanEvent]:
        html = is_html(reply.body, reply.media_type) if reply.body else reply.media_type in {"text/html", "application/xhtml+xml"}
        if html and not reply.body and not known.page:
            known.page = True
            self.frontier.queue(known)
            return
        if html:
            yield from self._page(known, reply)
        elif is_document(reply.media_type) or suffix(known.url) in FILES:
            self._validate(known, reply)
            known.title = name(known.url)[:200]
            known.media_type = reply.media_type
            mark = reply.headers.get("etag", "") or f"{reply.headers.get('last-modified', '')} {reply.headers.get('content-length', '')}".strip()
            known.mark = f"file:{mark[:200]}" if reply.validators else ""
            self._settle(known, of.FILE)
            yield self._listed(known)
        else:
            self._settle(known, of.NO_DOCUMENT)

    def _page(self, known: Known, reply: Reply) -> Iterator[ScanEvent]:
        markup = text_of(reply.body, reply.charset)
        page = read(markup, known.url)
        self._follow(known, page)
        self._validate(known, reply)
        known.mark, known.title, known.media_type = (
            content_hash(reply.body)[:32],
            page.title or name(known.url)[:200],
            reply.media_type or "text/html",
        )
        known.text, known.likeness = "", 0
        if page.shell:
            # What is drawn changes without the shell: it is drawn in each sync, and compared by its bytes.
            known.mark = "" if self._renders else known.mark
            self._settle(known, of.SHELL)
            yield self._listed(known)
            return
        own = self.site.twin(page.own)
        if own and own != known.url and self.site.holds(own) and urlsplit(own).path != "/":
            known.target = own
            self._settle(known, of.SAME)
            self.aliases.append(known)
            self.frontier.add(own, known.depth + 1)
            return
        if self._says_not_found(known, page):
            self.tally.soft += 1
            self._settle(known, of.MISSING)
            return
        known.text, known.likeness = likeness.exact(page.text), likeness.simhash(page.text)
        if known.text and self._by_text.setdefault(known.text, known.url) != known.url:
            known.target = self._by_text[known.text]
            self._settle(known, of.SAME)
            self.aliases.append(known)
            return
        self._settle(known, of.PAGE)
        yield self._listed(known, self._raw(known, reply, markup))

    def _follow(self, known: Known, page: Page) -> None:
        self.tally.links_left_out += page.left_out
        if known.depth >= self._max_depth:
            return
        for link in page.links:
            self.found(link, known.depth + 1)

    def found(self, link: str, depth: int) -> None:
        """An address that something names."""
        url = self.site.twin(link)
        if not self.site.holds(url):
            self.tally.outside += 1
        elif suffix(url) not in NO_PAGE:
            self.frontier.add(url, depth)

    def _says_not_found(self, known: Known, page: Page) -> bool:
        """Whether a page says what the host says to an address that cannot exist."""
        host = self._polite.host(known.url)
        if known.url in self.site.entries:
            return False
        if not host.probed:
            host.probed = True
            host.soft = self._soft(known.url)
        if host.soft is None or len(page.text) > 20_000:
            return False
        return likeness.same(likeness.groups(page.text, known.url), host.soft)

    def _soft(self, url: str) -> frozenset[str] | None:
        parts = urlsplit(url)
        nowhere = blake2b(f"{parts.netloc} {self.frontier.crawl}".encode(), digest_size=8).hexdigest()
        address = urlunsplit((parts.scheme, parts.netloc, f"{parts.path.rpartition('/')[0]}/{nowhere}", "", ""))
        if not self._polite.rules(url).allows(address):
            return None
        try:
            reply = self._polite.now_or_soon(address, bound=page_bound)
        except PipelineError:
            return None  # it does not answer to that, so it does not say "not found" with 200 either
        if reply.status != 200 or not is_html(reply.body, reply.media_type):
            return None
        return likeness.groups(read(text_of(reply.body, reply.charset), address).text, address)

    def _validate(self, known: Known, reply: Reply) -> None:
        known.etag, known.modified = reply.validators.get("etag", ""), reply.validators.get("last_modified", "")

    def _settle(self, known: Known, state: str) -> None:
        known.state, known.visit, known.tries = state, self.frontier.crawl, 0
        known.misses = known.misses + 1 if state in (of.MISSING, of.GONE) else 0
        self.frontier.change(known)

    def _listed(self, known: Known, raw: RawDocument | None = None) -> Listed:
        if known.listed != self.frontier.crawl:
            self._count += 1
        known.listed = self.frontier.crawl
        return Listed(self._item(known), self.site.scope(known.url), raw)

    def list_after_all(self, known: Known) -> Listed:
        """What was taken for another page's double, and turned out to stand alone."""
        self._settle(known, of.PAGE)
        return self._listed(known)

    def _raw(self, known: Known, reply: Reply, markup: str) -> RawDocument:
        listed = self._item(known)
        crawled = CrawledDocument(known.url, known.title, markup, len(markup), datetime.fromtimestamp(self._around.now(), UTC), reply.validators)
        return RawDocument(listed, reply.body, content_hash(reply.body), known.media_type, reply.charset, crawled)

    def _item(self, known: Known) -> SourceItem:
        """An address as it is listed, with what the parser is to keep of it."""
        title = known.title or name(known.url)[:200]
        return SourceItem(known.url, known.mark, title, known.url, "", known.media_type, metadata=dict(self._reading))
