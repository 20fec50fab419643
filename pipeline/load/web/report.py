"""What a person is told after a crawl: why it is incomplete, and what was left out of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pipeline.errors import Forbidden, PipelineError, TooLarge, Unavailable
from pipeline.load.web import frontier as of
from pipeline.load.web.crawl import Crawl
from pipeline.load.web.frontier import likenesses
from pipeline.load.web.likeness import near
from pipeline.load.web.polite import Polite

MOST_PAIRS = 50
SHOWN = 3


def failure(crawl: Crawl, polite: Polite, entry: str, max_pages: int, *, wall: int) -> PipelineError | None:
    """Why an entry was not listed to its end; None when it was."""
    down = polite.host(entry).down
    if down is not None:
        return down
    if wall:
        return Forbidden(
            f"the site refuses {wall} pages that it gave before", code="refused", hint="It may take us for a robot of the bad kind: ask less often."
        )
    if crawl.tally.full:
        return TooLarge(f"there are more than {max_pages} pages", code="max_pages", hint="Raise --max-pages, or narrow the source with --exclude.")
    away = [host for host in crawl.frontier.hosts() if polite.at(host).down is not None]
    if away and crawl.site.entries[0] == entry:
        return Unavailable(f"{', '.join(away[:SHOWN])} did not answer", code="unreachable", hint="The next sync tries again.")
    return None


def lines(crawl: Crawl, polite: Polite) -> Iterator[str]:
    """One line for each thing that is worth knowing."""
    visited = [known for known in crawl.frontier.pages.values() if known.visit == crawl.frontier.crawl]
    states: dict[str, list[str]] = {}
    for known in visited:
        states.setdefault(known.state, []).append(known.url)
    told: Mapping[str, str] = {
        of.SHELL: "drawn by scripts, so that they need a browser",
        of.ROBOTS: "closed to us by robots.txt",
        of.REFUSED: "refused",
        of.NO_DOCUMENT: "no document",
    }
    for state, text in told.items():
        if state in states:
            yield f"{text}: {_some(states[state])}"
    if crawl.tally.soft:
        yield f"say that they do not exist, although the site answers 200: {crawl.tally.soft}"
    for why, count in sorted(crawl.frontier.left_out.items()):
        yield f"left out, {why}: {count}"
    if crawl.tally.links_left_out:
        yield f"left out, too many links on one page: {crawl.tally.links_left_out}"
    listed = sum(1 for _ in crawl.frontier.listed())
    if crawl.tally.outside and listed <= 1:
        yield f"links that lead out of the site: {crawl.tally.outside}; widen it with --scope if they belong to it"
    doubles = [f"{known.url} = {known.target}" for known in visited if known.state == of.SAME]
    if doubles:
        yield f"not listed, since another address shows the same: {_some(doubles)}"
    pairs = [f"{later} ~ {first}" for first, later in near(likenesses(crawl.frontier.listed()), MOST_PAIRS)]
    if pairs:
        yield f"nearly the same as another page: {_some(pairs)}"


def _some(found: Iterable[str]) -> str:
    shown = list(found)
    return f"{len(shown)} ({', '.join(shown[:SHOWN])}{', …' if len(shown) > SHOWN else ''})"
