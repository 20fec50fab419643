"""What a crawl must know of a page: where it leads, its title, which address it calls its own, and its text for comparison."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.errors import Malformed
from pipeline.load.web.addresses import canonical
from pipeline.parse import charset

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser

MOST_LINKS = 5000
SHELL_CHARACTERS = 200
"""A page with less text than that, with scripts and a place where they draw, is a shell."""
_HTML = re.compile(
    rb"\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html|head|body|title|meta|div|p|h1)[\s>]", re.IGNORECASE | re.DOTALL
)
_MOUNT = "#root, #app, #__next, #__nuxt, #___gatsby, #main-app, app-root, [data-reactroot], [ng-app], [ng-version], [data-server-rendered]"
_ENABLE = re.compile(r"(?i)(enable|activate|turn on|requires?)\s+javascript|javascript\s+(is\s+)?(required|disabled|to run)|(启用|开启)\s*javascript")
_NO_TEXT = ["script", "style", "noscript", "template", "svg", "iframe", "nav", "header", "footer", "aside", "form", "button", "select"]
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Page:
    """One page as the crawl sees it."""

    title: str
    links: tuple[str, ...]
    """As they stand, made whole; not judged."""
    own: str
    """What it calls its canonical address; empty when it says nothing."""
    text: str
    """Everything a reader sees but navigation, white space folded."""
    shell: bool
    """Its content is drawn by scripts."""
    left_out: int = 0
    """Links beyond `MOST_LINKS`."""


def is_html(data: bytes, media_type: str) -> bool:
    """By the first kilobyte, then by what the header says."""
    head = data[:1024].lstrip(b"\xef\xbb\xbf")
    if head.startswith((b"%PDF", b"PK\x03\x04", b"\xd0\xcf\x11\xe0", b"\x89PNG", b"GIF8", b"\xff\xd8\xff")):
        return False
    if media_type in {"text/html", "application/xhtml+xml"}:
        return True
    return media_type in {"", "text/plain", "application/octet-stream", "application/xml", "text/xml"} and bool(_HTML.match(head))


def text_of(data: bytes, declared: str) -> str:
    """The page's text, its charset found by the bytes, with the document's own declaration and the header's as hints."""
    try:
        return charset.decode_page(data, declared)[0]
    except Malformed:
        return data.decode("utf-8", "replace")


def read(markup: str, url: str) -> Page:
    """Read a decoded page that was found at `url`."""
    from selectolax.lexbor import LexborHTMLParser

    tree = LexborHTMLParser(markup)
    base_node = tree.css_first("base[href]")
    base = canonical((base_node.attributes.get("href") or "") if base_node else "", url) or url
    title_node = tree.css_first("head > title") or tree.css_first("title")
    title = _SPACE.sub(" ", title_node.text()).strip()[:500] if title_node else ""
    links, left_out = _links(tree, base)
    own_node = tree.css_first('link[rel="canonical"][href]')
    own = canonical((own_node.attributes.get("href") or ""), base) if own_node and (own_node.attributes.get("href") or "").strip() else ""
    scripts = tree.css_first("script") is not None
    says = any(_ENABLE.search(node.text() or "") for node in tree.css("noscript"))
    mount = tree.css_first(_MOUNT) is not None
    tree.strip_tags(_NO_TEXT)
    text = _SPACE.sub(" ", tree.body.text(separator=" ") if tree.body else "").strip()
    return Page(title, links, own, text, scripts and len(text) < SHELL_CHARACTERS and (mount or says), left_out)


def _links(tree: LexborHTMLParser, base: str) -> tuple[tuple[str, ...], int]:
    found: dict[str, None] = {}
    left_out = 0
    for node in tree.css("a[href], area[href], frame[src], iframe[src]"):
        href = (node.attributes.get("href") or node.attributes.get("src") or "").strip()
        if not href or href[0] == "#" or href[:11].lower() in {"javascript:"} or href[:7].lower() in {"mailto:"} or href[:4].lower() == "tel:":
            continue
        if len(found) >= MOST_LINKS:
            left_out += 1
            continue
        whole = canonical(href, base)
        if whole:
            found[whole] = None
    return tuple(found), left_out
