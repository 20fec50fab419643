"""Web sites: a crawl that keeps to scope, robots and pace, and knows each page again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from urllib.parse import urlsplit

from pipeline.contracts import CrawledDocument, RawDocument, SourceItem
from pipeline.contracts.sources import (
    AccessLost,
    Evidence,
    Json,
    Note,
    Presence,
    ScanEvent,
    ScopeDone,
    ScopeFailed,
    SourceCheck,
    SourceSpec,
    Tombstone,
)
from pipeline.errors import BadRequest, Cancelled, Forbidden, Gone, Malformed, PipelineError, Unchanged, Unsupported
from pipeline.identity import content_hash, fingerprint
from pipeline.load.web import frontier as of
from pipeline.load.web import render, report, sitemap
from pipeline.load.web.addresses import Site, canonical, site_of
from pipeline.load.web.crawl import ERROR_BYTES, PAGE_BYTES, REDIRECTS, REFUSALS, Crawl, page_bound
from pipeline.load.web.fetch import AGENT, Fetcher, Reply, conditional, origin
from pipeline.load.web.frontier import Frontier, Known
from pipeline.load.web.guard import Guard, Resolve, resolve
from pipeline.load.web.page import is_html, read, text_of
from pipeline.load.web.polite import Polite
from pipeline.protocols import Connector, Surroundings

VERSION = 1
"""Rises when what is known of pages must be learnt anew."""
MAX_PAGES, DELAY_S, MAX_DEPTH = 2000, 0.5, 30
FILE_S = 600.0
"""Longest download of a document that is no page."""
MOST_SITEMAPS = 1000


def create(spec: SourceSpec, around: Surroundings) -> Connector:
    """Raises BadRequest for options that make no sense."""
    return connect(spec, around)


def connect(spec: SourceSpec, around: Surroundings, *, resolve: Resolve = resolve) -> Web:
    """As `create`, with a resolver of one's own."""
    options = spec.options
    entries = options.get("entry_url", "").replace(",", " ").split()
    site = site_of(entries, _parts(options, "scope"), _parts(options, "exclude"))
    agent = options.get("user_agent") or AGENT
    secret = {name: spec.secrets[name] for name in ("authorization", "cookie") if spec.secrets.get(name)}
    fetcher = Fetcher(Guard(spec.private, resolve=resolve), agent=agent, headers={origin(entry): secret for entry in site.entries} if secret else {})
    return Web(
        Polite(fetcher, around, agent, _number(options, "delay_s", DELAY_S)),
        site,
        sitemaps=options.get("sitemap", ""),
        max_pages=int(_number(options, "max_pages", MAX_PAGES)),
        max_depth=int(_number(options, "max_depth", MAX_DEPTH)),
        max_bytes=spec.max_bytes,
        renders=_choice(options, "render", ("none", "auto")) == "auto",
        reading=_reading(options),
    )


def _reading(options: Mapping[str, str]) -> Mapping[str, str]:
    """What the parser is to keep of pages; with each item, so that another wish reads them anew."""
    links = _choice(options, "links", ("none", "inline"))
    return {"content": _choice(options, "content", ("article", "auto", "full"))} | ({"links": links} if links == "inline" else {})


def _parts(options: Mapping[str, str], name: str) -> list[str]:
    return options.get(name, "").replace(",", " ").split()


def _choice(options: Mapping[str, str], name: str, known: Sequence[str]) -> str:
    """One of `known`, the first when nothing is given."""
    given = options.get(name, "").strip() or known[0]
    if given not in known:
        raise BadRequest(f"{name} is {given!r}", hint=f"Use one of: {', '.join(known)}.", pointer=f"/options/{name}")
    return given


def _number(options: Mapping[str, str], name: str, default: float) -> float:
    given = options.get(name, "").strip()
    if not given:
        return default
    try:
        value = float(given)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise BadRequest(f"{name} is {given!r}, not a number", hint="Give a number that is not negative.", pointer=f"/options/{name}")
    return value


class Web:
    """Identity is the canonical address. Scopes are the entries."""

    def __init__(
        self, polite: Polite, site: Site, *, sitemaps: str, max_pages: int, max_depth: int, max_bytes: int, renders: bool, reading: Mapping[str, str]
    ) -> None:
        self._polite, self._site = polite, site
        self._around = polite.around
        self._sitemaps, self._max_pages, self._max_depth, self._max_bytes = sitemaps, max_pages, max_depth, max_bytes
        self._renders, self._reading = renders, reading
        self._pages: Mapping[str, Known] = {}
        self._crawl = 0.0

    # ------------------------------------------------------------ looking

    def validate(self) -> list[SourceCheck]:
        checks: list[SourceCheck] = []
        for entry in self._site.entries:
            try:
                if not self._polite.rules(entry, fresh=True).allows(entry):
                    checks.append(SourceCheck("robots", False, f"robots.txt does not let us ask for {entry}", "Ask whoever runs the site."))
                    continue
                site, problem = self._located(self._site, entry)
                hint = problem.hint if problem else ""
                checks.append(SourceCheck("entry_url", problem is None, problem.detail if problem else ", ".join(site.entries), hint))
            except Cancelled:
                raise
            except PipelineError as error:
                checks.append(SourceCheck("entry_url", False, error.detail, error.hint))
        return checks

    def _located(self, site: Site, entry: str) -> tuple[Site, PipelineError | None]:
        """The site in the form under which it is served, and why its entry cannot be used. Raises what `Polite.ask` raises."""
        where = entry
        for _ in range(5):
            reply = self._polite.now_or_soon(where, bound=_nothing)
            if reply.status in REFUSALS:
                return site, Forbidden(
                    f"{entry} may not be read ({reply.status})", code="refused", hint="Give the source --authorization or --cookie."
                )
            if reply.status in (404, 410):
                return site, Malformed(f"{entry} does not exist ({reply.status})", code="not_found", hint="Check --entry-url.")
            if reply.status not in REDIRECTS:
                return site, None
            target = canonical(reply.headers.get("location", ""), where)
            moved = site.moved(entry, target) if target else None
            if moved is None or not moved.holds(target):
                shown = target or "something that is no address of the web"
                return site, Malformed(f"{entry} leads to {shown}", code="entry_moved", hint="Give that address as --entry-url, or widen --scope.")
            if origin(target) == origin(where):
                return site, None
            site, entry, where = moved, moved.entries[site.entries.index(entry)], target
        return site, Malformed(f"{entry} redirects in a circle", code="redirect_loop", hint="Check --entry-url.")

    def scan(self, checkpoint: Json) -> Iterator[ScanEvent]:
        """Everything within reach of the entries and the sitemaps, in pages that are asked for once."""
        site, failed = self._site, dict[str, PipelineError]()
        for entry in self._site.entries:
            try:
                self._polite.rules(entry, fresh=True)
                site, problem = self._located(site, entry)
            except Cancelled:
                raise
            except PipelineError as error:
                problem = error
            if problem is not None:
                failed[entry] = problem
        frontier = Frontier(self._around, self._config(site))
        began = checkpoint.get("crawl")
        frontier.open(float(began) if isinstance(began, int | float) else None)
        for url in [url for url in frontier.pages if not site.holds(url)]:
            frontier.drop(url)
        bounds = {"max_pages": self._max_pages, "max_depth": self._max_depth}
        crawl = Crawl(self._polite, site, frontier, **bounds, renders=self._renders, reading=self._reading)
        self._pages, self._crawl = frontier.pages, frontier.crawl
        sound = [entry for entry, was in zip(site.entries, self._site.entries, strict=True) if was not in failed]
        if sound:
            yield from self._everything(crawl, sound, resumed=began is not None and bool(frontier.pages))
        yield from self._ending(crawl, {new: failed[old] for new, old in zip(site.entries, self._site.entries, strict=True) if old in failed})

    def _everything(self, crawl: Crawl, entries: Sequence[str], *, resumed: bool) -> Iterator[ScanEvent]:
        for entry in entries:
            crawl.frontier.add(entry, 0)
        if not resumed:
            self._from_sitemaps(crawl, entries)
            crawl.frontier.save()
            yield crawl.mark()
        yield from crawl.pages()

    def _config(self, site: Site) -> str:
        areas = [f"{area.host}{area.prefix}" for area in (*site.include, *site.exclude)]
        return fingerprint({"version": VERSION, "entries": list(site.entries), "areas": areas, "excluded": len(site.exclude)})

    def _from_sitemaps(self, crawl: Crawl, entries: Sequence[str]) -> None:
        """Addresses out of the sitemaps that robots.txt names, or of the usual place. One that cannot be read is as none: links lead there, too."""
        if self._sitemaps == "none":
            return
        waiting: list[tuple[str, int]] = [(url, 0) for url in self._sitemaps.replace(",", " ").split()]
        for host in dict.fromkeys(origin(entry) for entry in entries):
            named = self._polite.rules(host).sitemaps
            waiting += [(canonical(url, host), 0) for url in named] if named else [(canonical("/sitemap.xml", host), 0)]
        seen: set[str] = set()
        while waiting and len(seen) < MOST_SITEMAPS:
            url, level = waiting.pop(0)
            if not url or url in seen or not self._polite.rules(url).allows(url):
                continue
            seen.add(url)
            self._around.check()
            found, index = self._sitemap(url)
            if index:
                waiting += [(canonical(one, url), level + 1) for one in found if level < sitemap.MOST_LEVELS]
            else:
                for one in found:
                    crawl.found(canonical(one, url), 1)

    def _sitemap(self, url: str) -> tuple[list[str], bool]:
        try:
            for _ in range(5):
                reply = self._polite.now_or_soon(url, bound=_sitemap_bytes)
                if reply.status not in REDIRECTS:
                    return sitemap.read(reply.body) if reply.status == 200 else ([], False)
                url = canonical(reply.headers.get("location", ""), url)
                if not url:
                    break
        except Cancelled:
            raise
        except PipelineError:
            return [], False
        return [], False

    def _ending(self, crawl: Crawl, failed: Mapping[str, PipelineError]) -> Iterator[ScanEvent]:
        frontier = crawl.frontier
        for known in crawl.aliases:
            stands = frontier.stands_for(known.target)
            before = known.listed
            if not stands and known.state == of.SAME:
                yield crawl.list_after_all(known)
            elif stands and known.state != of.LED and before and before != frontier.crawl:
                yield Tombstone(known.url, Evidence.GONE)
                known.listed = 0.0
                frontier.change(known)
        refused = [known for known in frontier.pages.values() if known.state == of.REFUSED and known.visit == frontier.crawl and known.listed]
        wall = len(refused) > max(20, len(frontier.pages) // 10)
        if not wall and not failed:
            yield from (AccessLost(known.url, "the site refuses it") for known in refused)
        yield from map(Note, report.lines(crawl, self._polite))
        counts: dict[str, int] = {}
        for known in frontier.listed():
            counts[crawl.site.scope(known.url)] = counts.get(crawl.site.scope(known.url), 0) + 1
        for entry in crawl.site.entries:
            problem = failed.get(entry) or report.failure(crawl, self._polite, entry, self._max_pages, wall=len(refused) if wall else 0)
            if problem is not None:
                yield ScopeFailed(entry, problem.code, problem.detail, problem.hint)
            else:
                yield ScopeDone(entry, counts.get(entry, 0))
        yield crawl.mark()
        frontier.save()

    def probe(self, keys: Sequence[str]) -> Mapping[str, Presence]:
        """What this connector's own scan saw of single pages."""
        return {key: self._presence(self._pages.get(key)) for key in keys}

    def _presence(self, known: Known | None) -> Presence:
        if known is None or known.visit != self._crawl:
            return Presence.UNKNOWN
        if known.state == of.REFUSED:
            return Presence.FORBIDDEN
        if known.state == of.GONE:
            return Presence.GONE
        return Presence.ALIVE if known.state in of.DOCUMENTS else Presence.UNKNOWN

    # ------------------------------------------------------------ downloading

    def fetch(self, item: SourceItem) -> RawDocument:
        url = canonical(item.url or item.key)
        if not url:
            raise Malformed(f"{item.key} is no address of the web", code="bad_address", hint="Sync the source again.")
        reply, where = self._followed(url, conditional(item.metadata))
        if not reply.body:
            raise Malformed(f"{where} is empty", code="empty", hint="Fill it, or leave it out with --exclude.")
        html = is_html(reply.body, reply.media_type)
        markup = text_of(reply.body, reply.charset) if html else ""
        title = item.title
        if html:
            page = read(markup, where)
            title = page.title or title
            if page.shell:
                return self._drawn(item, where)
        crawled = CrawledDocument(url, title, markup, len(markup), datetime.fromtimestamp(self._around.now(), UTC), reply.validators)
        media_type = "text/html" if html and not reply.media_type else reply.media_type
        return RawDocument(replace(item, title=title), reply.body, content_hash(reply.body), media_type, reply.charset, crawled)

    def _followed(self, url: str, headers: Mapping[str, str]) -> tuple[Reply, str]:
        """The answer behind redirects within the site. Raises by what was answered."""
        where = url
        for _ in range(6):
            reply = self._polite.ask(where, bound=self._file_bytes, headers=headers, deadline_s=FILE_S)
            if reply.status == 304 and headers:
                raise Unchanged(f"{where} has not changed")
            if reply.status in REDIRECTS:
                target = canonical(reply.headers.get("location", ""), where)
                inside = target and (self._site.holds(self._site.twin(target)) or urlsplit(target).netloc == urlsplit(url).netloc)
                if not inside:
                    raise Unsupported(f"{url} leads out of the site", code="outside", hint="Widen the source's --scope if that belongs to it.")
                where = target
                continue
            if reply.status in (404, 410):
                raise Gone(f"{where} does not exist any more")
            if reply.status in REFUSALS:
                raise Forbidden(f"{where} may not be read ({reply.status})")
            if reply.status not in (200, 203):
                raise Malformed(f"{where} was answered with {reply.status}", code="refused", hint="Look at the page in a browser, or leave it out.")
            return reply, where
        raise Malformed(f"{url} redirects in a circle", code="redirect_loop", hint="Look at the page in a browser, or leave it out with --exclude.")

    def _file_bytes(self, status: int, headers: Mapping[str, str]) -> int:
        if status not in (200, 203):
            return ERROR_BYTES
        html = headers.get("content-type", "").strip().lower().startswith(("text/html", "application/xhtml"))
        return min(PAGE_BYTES, self._max_bytes) if html else self._max_bytes

    def _drawn(self, item: SourceItem, where: str) -> RawDocument:
        """A page as scripts draw it. Raises Unsupported with the code ``needs_browser`` where that is not wanted, not possible or of no use."""
        if not self._renders:
            hint = "Let it be drawn: `dujiang sources update NAME --render auto`; that needs the extra dujiang[browser]."
            raise Unsupported(f"{where} is drawn by scripts and holds no text by itself", code="needs_browser", hint=hint)
        data = render.draw(where, self._part)
        markup = text_of(data, "utf-8")
        page = read(markup, where)
        if not page.text:
            hint = "Give the source an address that serves the text: an export, a print view, or the site's own API."
            raise Unsupported(f"{where} holds no text even when it is drawn", code="needs_browser", hint=hint)
        title = page.title or item.title
        crawled = CrawledDocument(where, title, markup, len(markup), datetime.fromtimestamp(self._around.now(), UTC))
        return RawDocument(replace(item, title=title), data, content_hash(data), "text/html", "utf-8", crawled)

    def _part(self, url: str) -> Reply:
        """What a drawing page asks for: under the guard, with no pause of its own. Raises what `Fetcher.ask` raises."""
        for _ in range(5):
            reply = self._polite.fetcher.ask(url, bound=_part_bytes)
            target = canonical(reply.headers.get("location", ""), url) if reply.status in REDIRECTS else ""
            if not target:
                return reply
            url = target
        raise Malformed(f"{url} redirects in a circle", code="redirect_loop", hint="Look at the page in a browser.")


def _nothing(status: int, headers: Mapping[str, str]) -> int:
    return 0 if status == 200 else page_bound(status, headers)


def _part_bytes(_status: int, _headers: Mapping[str, str]) -> int:
    return PAGE_BYTES


def _sitemap_bytes(status: int, _headers: Mapping[str, str]) -> int:
    return sitemap.MOST_BYTES if status == 200 else ERROR_BYTES
