"""Which part of a page is its content: the subtree that holds the running text, freed of what surrounds and interrupts it.

Three facts about an element count: how much running text lies in it, how much of its text is links, and the words of its names (class, id, role).
Amounts of text are UTF-8 bytes, so that a Chinese character weighs as much as a short syllable. Names of sites are unknown here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode

BLOCKS = frozenset(
    "address article aside blockquote body center dd details div dl dt fieldset figcaption figure footer form header hgroup hr html legend li main "
    "menu ol p pre search section summary table tbody td tfoot th thead tr ul caption h1 h2 h3 h4 h5 h6".split()
)
MOST_DEPTH = 150
"""Levels of nesting that are told apart; deeper text counts for the element at that level."""

_HEADINGS = frozenset({"h1", "h2", "h3", "h4", "h5", "h6"})
_KEPT = _HEADINGS | {"html", "body", "main", "article", "table", "thead", "tbody", "tfoot", "tr", "td", "th", "pre"}
_ASIDE = frozenset({"aside", "footer", "nav", "form", "search"})
_CELLS = frozenset({"li", "td", "th", "tr", "dt", "dd", "thead", "tbody", "tfoot"})
_LISTS = frozenset({"ul", "ol", "dl", "menu", "table"})
_NEVER = frozenset("cookie cookies gdpr consent modal popup dialog overlay lightbox newsletter comments disqus complementary".split())
_RARELY = frozenset(
    "comment sidebar sidebars rightrail share sharing sharer shares social socials related relateds recirc recirculation recommend recommended "
    "recommendation recommendations subscribe subscription foot footer breadcrumb breadcrumbs navbar navigation nav menu advert advertisement "
    "advertising sponsored outbrain taboola trending popular signup login respond toolbar copyright pagination pager widget widgets skip".split()
)
_SMALL = frozenset(
    "ad ads adsense promo promos promoted promotion author authors bio byline meta metadata credit credits rail tag tags print hidden feedback reply "
    "disclaimer timestamp dateline date gallery carousel slider slideshow next prev previous aside banner header sponsor register rating ratings "
    "vote more readmore topics category categories labels follow tools embed player video teaser teasers pullquote caption captions".split()
)
"""Words in names: of what is content only if nearly all text is in it, only if much is in it, only if there is more than a little in it."""
_CONTENT = re.compile(
    r"article[-_]*(?:body|content|text)|(?:post|entry|story|content|news)[-_]*(?:body|content|text|article)|main-?content|markdown-body|rich-?text",
    re.IGNORECASE,
)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_SENTENCE = re.compile("[.!?。！？…,，、;；]")
_ENDS = re.compile("[.!?。！？…:：”\"'）)]\\s*$")
_PHRASE = re.compile(
    r"(?:advert(?:isement|isements|ising)?|sponsored|loading|copyright|subscribe|sign up|trending|most read|don't miss|see also|also read|read more|"
    r"share(?: this)?(?: article| story| post)?|related(?: (?:articles?|stories|posts?|content|topics?|news|links?|videos?|coverage))?|"
    r"相关(?:阅读|新闻|推荐|文章|链接)|推荐阅读|延伸阅读|延伸閱讀|分享|打印|打印本页|关闭窗口|加载更多|正在加载|点击加载更多|版权所有|版權所有)[:：….\]】]*"
    r"|(?:(?:see also|also read|read more|read also|related|more|don't miss|photo|image|credit|相关(?:阅读|新闻|推荐|文章|链接)|推荐阅读|"
    r"延伸阅读|上一篇|下一篇|(?:责任)?编辑|責任編輯)[:：]|share (?:this|on) |follow us|follow .{2,60} on (?:twitter|facebook|instagram)|"
    r"\(?(?:image|photo)(?: credit)?:|skip to |click here to |copyright (?:©|\d)|©|all rights reserved|"
    r"分享到|分享至|扫一扫|掃一掃|版权声明|转载请注明|【打印).*"
    r"|版[权權]所有[:：© ].*|.*(?:all rights reserved|ICP备|sign up (?:for|to) .{0,60}newsletter).*",
    re.IGNORECASE | re.DOTALL,
)
"""What short blocks say that are none of the text."""
_TOKENS = re.compile(r"\w+")
_BETWEEN = re.compile(r"\s*[|_·—–»]+\s*|\s+[-:]\s+")
"""What stands between the parts of a page's title."""
LEAST = 60
"""Bytes of unlinked text that make a block running text."""
_SHORT = 150
_LITTLE = 4 * LEAST
_MOST_LINKS = 1800


@dataclass(slots=True, eq=False)
class Part:
    """A block element, or an inline one whose name says that it is none of the text."""

    node: LexborNode
    tag: str
    name: str
    words: frozenset[str]
    up: Part | None
    parts: list[Part] = field(default_factory=list["Part"])
    own: str = ""
    """Text that lies directly in it."""
    own_size: int = 0
    own_linked: int = 0
    size: int = 0
    linked: int = 0
    running: int = 0
    """Bytes of running text, its parts included."""
    dropped: bool = False
    marked: bool = False
    """It, or a part of it that holds running text, calls itself the content."""

    def line(self) -> Iterator[Part]:
        """Itself and what encloses it, outwards."""
        part: Part | None = self
        while part is not None:
            yield part
            part = part.up

    def text(self) -> str:
        """All text below, for headings."""
        return " ".join([self.own, *(part.text() for part in self.parts)]).strip()

    def drop(self) -> None:
        """Take it out of the page."""
        if self.up is not None:
            for part in self.up.line():
                part.size -= self.size
                part.linked -= self.linked
                part.running -= self.running
            self.up.parts.remove(self)
            self.dropped = True
            self.node.decompose()


@dataclass(frozen=True, slots=True)
class Article:
    """What was chosen; the tree is pruned."""

    node: LexborNode
    heading: str
    """The page's own headline where it lies outside of the node, else empty."""
    share: float
    """Part of the page's running text that is kept, in [0, 1]."""
    short: bool
    """A short page: what lies around its headline, however little it is."""


def select(tree: LexborHTMLParser, titles: list[str]) -> Article | None:
    """Choose the content and prune the tree; None when no running text is found.

    Scripts and other noise are out of the tree already. `titles` are what the page calls itself, by which its headline is recognised.
    """
    body = tree.body
    if body is None:
        return None
    root = _Reader().read(body)
    _weigh(root)
    whole = root.running
    headline = _headline(root, titles)
    _prune(root, max(whole, 1))
    _mark(root)
    chosen = _choose(root, headline) if root.running else root
    near = None
    if headline is not None and chosen.running < _LITTLE:
        _tidy(root)
        near = _near(headline, root)
        chosen = near or (_choose(root, headline) if root.running else root)
    if near is None and not chosen.running:
        return None
    _tidy(chosen)
    _trim(chosen, headline)
    outside = headline is not None and all(part is not chosen for part in headline.line())
    return Article(chosen.node, headline.text() if outside and headline else "", chosen.running / max(whole, 1), near is not None)


class _Reader:
    """Builds parts; names repeat a lot within a page, so that their words are kept."""

    def __init__(self) -> None:
        self._words: dict[str, frozenset[str]] = {}

    def read(self, body: LexborNode) -> Part:
        root = Part(body, "body", "", frozenset(), None)
        self._children(body, root, False, 0)
        return root

    def _part(self, node: LexborNode, tag: str, up: Part) -> Part:
        found = node.attributes
        name = " ".join(value for key in ("class", "id", "itemprop", "role") if found and (value := found.get(key)))
        words = self._words.get(name)
        if words is None:
            words = self._words[name] = frozenset(word.lower() for word in _WORD.findall(name))
        return Part(node, tag, name, words, up)

    def _children(self, node: LexborNode, part: Part, linked: bool, depth: int) -> None:
        child = node.first_child
        while child is not None:
            tag = child.tag or ""
            if tag == "-text":
                self._text(part, child.text_content or "", linked)
            elif depth > MOST_DEPTH:
                self._text(part, child.text() if tag[:1] not in {"-", "_", "!"} else "", linked)
            elif tag in BLOCKS:
                inner = self._part(child, tag, part)
                part.parts.append(inner)
                self._children(child, inner, linked, depth + 1)
            elif tag and tag[0] not in "-_!":
                address = (child.attributes.get("href") or "#") if tag == "a" else "#"
                self._children(child, part, linked or address[0] != "#", depth + 1)
            child = child.next

    def _text(self, part: Part, text: str, linked: bool) -> None:
        text = text.strip()
        if text:
            size = len(text.encode())
            part.own = f"{part.own} {text}" if part.own else text
            part.own_size += size
            if linked:
                part.own_linked += size


def _weigh(part: Part) -> None:
    """Sum up sizes from below."""
    part.size, part.linked = part.own_size, part.own_linked
    free = part.own_size - part.own_linked
    part.running = free if free * 2 > part.own_size and part.own_size >= LEAST and (part.tag == "pre" or _SENTENCE.search(part.own)) else 0
    for inner in part.parts:
        _weigh(inner)
        part.size += inner.size
        part.linked += inner.linked
        part.running += inner.running
    if part.tag == "table" and part.linked * 3 < part.size * 2 and _grid(part):
        part.running = max(part.running, part.size - part.linked)
    elif part.tag in _LISTS and not part.running and part.size >= _LITTLE and part.linked * 3 < part.size:
        part.running = (part.size - part.linked) // 2


def _grid(table: Part) -> bool:
    """Rows and columns, and no table inside: data rather than a frame for the page."""
    rows = [row for body in table.parts for row in ([body] if body.tag == "tr" else body.parts) if row.tag == "tr"]
    wide = sum(1 for row in rows if sum(1 for cell in row.parts if cell.size) > 1)
    return wide >= 2 and wide * 2 >= len(rows) and table.node.css_first("table table") is None


def _plain(text: str) -> str:
    return " ".join(_TOKENS.findall(text.lower()))


def _headline(root: Part, titles: list[str]) -> Part | None:
    """The first heading that the page's title repeats: word for word a part of it, or, where it is long enough, anywhere in it."""
    plain = [_plain(title) for title in titles]
    exact = {_plain(part) for title in titles for part in _BETWEEN.split(title)} - {""}
    for heading in _headings(root, frozenset({"h1", "h2", "h3"})):
        text = _plain(heading.text())
        if text in exact or (len(text.encode()) >= 9 and any(text in title or (len(title.encode()) >= 9 and title in text) for title in plain)):
            return heading
    return None


def _headings(part: Part, tags: frozenset[str]) -> Iterator[Part]:
    for inner in part.parts:
        if inner.tag in tags:
            yield inner
        else:
            yield from _headings(inner, tags)


def _prune(part: Part, whole: int) -> None:
    """Take out what its name or its tag calls something else, as long as not too much of the running text is in it."""
    for inner in list(part.parts):
        if _foreign(inner, whole):
            inner.drop()
        else:
            _prune(inner, whole)


def _foreign(part: Part, whole: int) -> bool:
    if part.tag in _ASIDE and part.running < 0.4 * whole:
        return True
    if not part.words or part.tag in _KEPT:
        return False
    if part.words & _NEVER:
        return part.running < 0.8 * whole
    if part.words & _RARELY and part.running < 0.4 * whole:
        return not ("embed" in part.words and _quotes(part)) and not _titled(part)
    if part.words & _SMALL and part.running < 0.1 * whole and part.size - part.linked < 600:
        return not _quotes(part) and next(_headings(part, _HEADINGS), None) is None
    return False


def _quotes(part: Part) -> bool:
    """Holds a quotation, code or a table: names of their frames say little."""
    return part.node.css_first("blockquote, pre, table") is not None


def _titled(part: Part) -> bool:
    """A section that is named after its own heading, as generators of documentation do."""
    if part.tag not in {"section", "div", "article"} or not part.running:
        return False
    names = {word.lower() for word in _WORD.findall(part.node.attributes.get("id") or "")}
    first = next(_headings(part, _HEADINGS), None)
    return first is not None and (part.words & names != frozenset()) and names <= set(_plain(first.text()).split())


def _mark(part: Part) -> None:
    for inner in part.parts:
        _mark(inner)
    named = part.tag in {"article", "main"} or bool(part.name and _CONTENT.search(part.name))
    part.marked = part.running > 0 and (named or any(inner.marked for inner in part.parts))


def _choose(root: Part, headline: Part | None) -> Part:
    """Go down as long as one part holds nearly all running text, or calls itself the content and holds the headline."""
    above = set(map(id, headline.line())) if headline is not None else set[int]()
    part = root
    while part.parts:
        following = _next(part, next((inner for inner in part.parts if id(inner) in above), None))
        if following is None:
            break
        part = following
    while part.up is not None and part.tag in {"p", "pre", "blockquote", "ul", "ol", "dl", "li", *_KEPT} - {"article", "main", "body"}:
        part = part.up
    return part


def _near(headline: Part, root: Part) -> Part | None:
    """The smallest part around the headline with a line of text beside it; None where most of the page's text lies elsewhere."""
    if any(part.dropped for part in headline.line()):
        return None
    for part in headline.line():
        free = part.size - part.linked
        if part is not headline and free - headline.size >= LEAST // 2:
            return part if free * 2 >= root.size - root.linked else None
    return None


def _next(part: Part, mine: Part | None) -> Part | None:
    """The part to go down into; `mine` is the one with the headline in it."""
    largest = max(part.parts, key=lambda inner: inner.running)
    if not largest.running:
        return None
    enough = _LITTLE
    if mine is not None and mine is not largest and mine.marked and mine.running >= max(enough, 0.12 * part.running):
        return mine
    named = largest.tag in {"article", "main"} or bool(_CONTENT.search(largest.name))
    if largest.running >= (0.5 if named else 0.7) * part.running:
        return largest
    if mine is not None and mine.running >= enough and any(_like(mine, other) for other in part.parts if other is not mine):
        return mine
    marked = [inner for inner in part.parts if inner.marked]
    return marked[0] if len(marked) == 1 and marked[0].running >= max(enough, 0.25 * part.running) else None


def _like(mine: Part, other: Part) -> bool:
    """Another article of the same page: same element, headings and text of its own."""
    return other.tag == mine.tag and other.running >= 2 * LEAST and next(_headings(other, frozenset({"h1", "h2", "h3"})), None) is not None


def _tidy(part: Part) -> None:
    """Take out blocks that are mostly links, and short ones that say what they are."""
    for inner in list(part.parts):
        _tidy(inner)
        if inner.tag in _CELLS:
            continue
        most = 0.8 if inner.tag in {"p", "table"} else 0.5
        if inner.size and most * inner.size < inner.linked < _MOST_LINKS:
            inner.drop()
        elif inner.size < 200 and not inner.parts and inner.tag not in _KEPT and _PHRASE.fullmatch(inner.own):
            inner.drop()


def _leaves(part: Part) -> Iterator[Part]:
    """Blocks with text of their own in order, lists and tables whole."""
    if part.tag in _LISTS or part.tag in _HEADINGS or (part.own and not part.parts):
        yield part
    else:
        if part.own:
            yield part
        for inner in part.parts:
            yield from _leaves(inner)


def _trim(chosen: Part, headline: Part | None) -> None:
    """Take out what stands before the headline, and short lines without an end between it and the text, and after the text.

    Paragraphs after the text stay: signatures, dates.
    """
    leaves = list(_leaves(chosen))
    running = [
        place for place, leaf in enumerate(leaves) if leaf.running or leaf.tag == "pre" or (leaf.tag in _LISTS and leaf.linked * 2 < leaf.size)
    ]
    if not running:
        return
    top = next((place for place, leaf in enumerate(leaves) if leaf is headline), -1)
    for place, leaf in enumerate(leaves[: running[0]]):
        if place < top or (leaf is not headline and leaf.tag not in _HEADINGS and _loose(leaf)):
            _drop_leaf(leaf)
    for leaf in reversed(leaves[running[-1] + 1 :]):
        if not _drop_leaf(leaf, only=leaf.tag in _HEADINGS or (leaf.tag != "p" and _loose(leaf))):
            break


def _loose(leaf: Part) -> bool:
    return leaf.size < _SHORT and not _ENDS.search(leaf.own) and (leaf.size < 60 or any(map(str.isdigit, leaf.own)))


def _drop_leaf(leaf: Part, *, only: bool = True) -> bool:
    """Whether the leaf was taken out; one that encloses others is not."""
    if not only or leaf.up is None or (leaf.parts and leaf.tag not in _LISTS and leaf.tag not in _HEADINGS):
        return False
    leaf.drop()
    return True
