"""Addresses of pages: one spelling for each, what belongs to a site, and patterns in which crawlers get lost."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlencode, urljoin, urlsplit, urlunsplit

import idna

from pipeline.errors import BadRequest

MOST_CHARACTERS = 2000
MOST_DEPTH_OF_PATH = 30
MOST_REPEATS = 3
"""Times that one segment may stand in a path."""

_TRACKING = re.compile(
    r"(?i)utm_\w+|gclid|dclid|fbclid|msclkid|yclid|mc_cid|mc_eid|_ga|_gl|spm|scm|igshid|vero_id|wickedid"
    r"|phpsessid|jsessionid|aspsessionid\w*|sid|sessid|session_?id|cfid|cftoken|zenid|oscsid"
)
"""Parameters that say where a reader comes from or who he is: the page is the same without them."""
_PATH_SESSION = re.compile(r"(?i);(?:jsessionid|phpsessid|sid)=[^/?#]*|/\(S\([a-z0-9]{10,}\)\)")
_DATE = re.compile(r"(?:^|\D)(?:19|20|21)\d\d(?:[-/_.](?:0?[1-9]|1[0-2])(?:[-/_.][0-3]?\d)?|(?:0[1-9]|1[0-2])[0-3]\d)(?:$|\D)")
_DATE_NAMES = frozenset("year month day date week y m d from to start end mon yr tribe-bar-date".split())
_SAFE = "/:@!$&'()*+,;=-._~%"
_PORTS = {"http": 80, "https": 443}
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")

NO_PAGE = frozenset(
    ".css .js .mjs .map .json5 .wasm .png .jpg .jpeg .gif .bmp .tif .tiff .webp .svg .ico .avif .heic .mp3 .wav .m4a .flac .ogg .aac .mp4 .m4v .mov "
    ".avi .mkv .webm .wmv .woff .woff2 .ttf .otf .eot .zip .gz .tgz .bz2 .xz .7z .rar .tar .dmg .iso .exe .msi .apk .deb .rpm .jar .class .so .dll "
    ".torrent .rss .atom .ics .vcf .asc .sig .swf .psd .ai".split()
)
"""Suffixes of what is no document."""
FILES = frozenset(".pdf .docx .docm .xlsx .xlsm .xls .ods .csv .tsv .md .markdown .txt .json .jsonl .ndjson .doc .ppt .pptx .odt .rtf .epub".split())
"""Suffixes of documents that are no pages: looked at by their head, downloaded by the load stage."""


def canonical(url: str, inside: str = "") -> str:
    """One spelling of an address, seen from the page `inside`; empty for what is no address of the web, or too long.

    Host in lower case and ASCII; no default port, fragment, session or tracking parameters; dot segments resolved, parameters in order.
    A slash at the end stays.
    """
    try:
        parts = urlsplit(urljoin(inside, url.strip()) if inside else url.strip())
        port = parts.port
    except ValueError:
        return ""
    scheme, host = parts.scheme.lower(), _host(parts.hostname or "")
    if scheme not in _PORTS or not host or parts.username or parts.password:
        return ""
    where = host if port in (None, _PORTS[scheme]) else f"{host}:{port}"
    path = _dots(_escapes(_PATH_SESSION.sub("", parts.path))) or "/"
    found = urlunsplit((scheme, where, path, _query(parts.query), ""))
    return found if len(found) <= MOST_CHARACTERS else ""


def _host(host: str) -> str:
    host = host.lower().rstrip(".")
    if ":" in host:
        return f"[{host}]"
    if host.isascii():
        return host if re.fullmatch(r"[a-z0-9_.-]+", host) else ""
    try:
        return idna.encode(host, uts46=True).decode()
    except idna.IDNAError:
        return ""


def _escapes(path: str) -> str:
    def one(found: re.Match[str]) -> str:
        letter = chr(int(found[1], 16))
        return letter if letter in _PLAIN else found[0].upper()

    return quote(_ESCAPE.sub(one, path), safe=_SAFE)


def _dots(path: str) -> str:
    kept: list[str] = []
    pieces = path.split("/")
    for piece in pieces:
        if piece == "..":
            if len(kept) > 1:
                kept.pop()
        elif piece != ".":
            kept.append(piece)
    if pieces[-1] in {".", ".."}:
        kept.append("")
    return "/".join(kept)


def _query(query: str) -> str:
    if not query:
        return ""
    pairs = [(name, value) for name, value in parse_qsl(query, keep_blank_values=True, errors="surrogateescape") if not _TRACKING.fullmatch(name)]
    return urlencode(sorted(pairs, key=lambda pair: pair[0]), errors="surrogateescape")


def suffix(url: str) -> str:
    """Lower-case suffix of an address's path, with its dot."""
    last = urlsplit(url).path.rsplit("/", 1)[-1]
    dot = last.rfind(".")
    return last[dot:].lower() if dot > 0 else ""


def name(url: str) -> str:
    """What a file without a title is called: the last part of its path, readable."""
    parts = urlsplit(url)
    return unquote(parts.path.rstrip("/").rsplit("/", 1)[-1], errors="replace") or parts.netloc


def shape(url: str) -> str:
    """What addresses have in common that one program makes without end: digits as 0, parameters by their names."""
    parts = urlsplit(url)
    names = ",".join(sorted({pair[0] for pair in parse_qsl(parts.query, keep_blank_values=True)}))
    return f"{parts.netloc}{re.sub(r'[0-9]+', '0', parts.path)}?{names}"


def dated(url: str) -> bool:
    """True where an address names a month or a day, as the pages of a calendar do."""
    parts = urlsplit(url)
    names = {pair[0].lower() for pair in parse_qsl(parts.query, keep_blank_values=True)}
    return bool(names & _DATE_NAMES) or bool(_DATE.search(parts.path)) or bool(_DATE.search(parts.query))


def winding(url: str) -> bool:
    """True where a path repeats itself or is deeper than any sensible one."""
    pieces = [piece for piece in urlsplit(url).path.split("/") if piece]
    return len(pieces) > MOST_DEPTH_OF_PATH or any(pieces.count(piece) > MOST_REPEATS for piece in set(pieces))


@dataclass(frozen=True, slots=True)
class Area:
    """A host with a part of its paths."""

    host: str
    """With its port where that is not the scheme's own; ``*.`` in front: the host and all below it."""
    prefix: str

    def holds(self, url: str) -> bool:
        """At boundaries of labels and segments: ``/docs`` does not hold ``/docs-old``."""
        parts = urlsplit(url)
        if self.host.startswith("*."):
            if parts.netloc != self.host[2:] and not parts.netloc.endswith(self.host[1:]):
                return False
        elif parts.netloc != self.host:
            return False
        return self.prefix == "/" or parts.path == self.prefix.rstrip("/") or parts.path.startswith(f"{self.prefix.rstrip('/')}/")


@dataclass(frozen=True, slots=True)
class Site:
    """What one source is made of. `entries` are canonical and in their own form of host and scheme."""

    entries: tuple[str, ...]
    include: tuple[Area, ...]
    exclude: tuple[Area, ...]

    def twin(self, url: str) -> str:
        """The address in the form that the entries have: http or https, with www or without, are one site."""
        parts = urlsplit(url)
        if ":" in parts.netloc:
            return url
        for entry in self.entries:
            own = urlsplit(entry)
            if ":" not in own.netloc and _apex(own.netloc) == _apex(parts.netloc):
                return urlunsplit((own.scheme, own.netloc, parts.path, parts.query, ""))
        return url

    def holds(self, url: str) -> bool:
        """Whether an address belongs to the source."""
        return any(area.holds(url) for area in self.include) and not any(area.holds(url) for area in self.exclude)

    def scope(self, url: str) -> str:
        """The entry whose area holds an address; the first one's otherwise."""
        own = (entry for entry in self.entries if area_of(entry).holds(url))
        return next(own, next((entry for entry in self.entries if urlsplit(entry).netloc == urlsplit(url).netloc), self.entries[0]))

    def moved(self, entry: str, now: str) -> Site | None:
        """The same site after its entry turned out to live under a twin of its host; None when `now` is another site."""
        old, new = urlsplit(entry), urlsplit(now)
        if old.netloc != new.netloc and (":" in old.netloc + new.netloc or _apex(old.netloc) != _apex(new.netloc)):
            return None
        areas = tuple(Area(new.netloc, area.prefix) if area.host == old.netloc else area for area in self.include)
        outside = tuple(Area(new.netloc, area.prefix) if area.host == old.netloc else area for area in self.exclude)
        changed = urlunsplit((new.scheme, new.netloc, old.path, old.query, ""))
        return Site(tuple(changed if each == entry else each for each in self.entries), areas, outside)


def _apex(host: str) -> str:
    return host.removeprefix("www.")


def area_of(entry: str) -> Area:
    """An entry's own area: its path, or the folder of its file."""
    parts = urlsplit(entry)
    head, _, last = parts.path.rpartition("/")
    return Area(parts.netloc, (f"{head}/" if "." in last else parts.path) or "/")


def site_of(entries: Sequence[str], include: Iterable[str], exclude: Iterable[str]) -> Site:
    """Raises BadRequest for what is no address."""
    found = tuple(dict.fromkeys(_entry(entry) for entry in entries))
    if not found:
        raise BadRequest("entry_url names no address", hint="Give the address of the site's first page.", pointer="/options/entry_url")
    areas = [area_of(entry) for entry in found]
    areas += [_area(text, found[0], "scope") for text in include]
    return Site(found, tuple(areas), tuple(_area(text, found[0], "exclude") for text in exclude))


def _entry(text: str) -> str:
    found = canonical(text if "://" in text else f"https://{text}")
    if not found:
        raise BadRequest(
            "entry_url holds something that is no address of the web",
            hint="Give it as https://host/path, without user and password.",
            pointer="/options/entry_url",
        )
    return found


def _area(text: str, entry: str, option: str) -> Area:
    """``/path``, ``host``, ``host/path``, ``*.host`` or a whole address."""
    if text.startswith("/"):
        return Area(urlsplit(entry).netloc, canonical(text, entry) and urlsplit(canonical(text, entry)).path)
    wild = text.startswith("*.")
    plain = text[2:] if wild else text
    found = canonical(plain if "://" in plain else f"{urlsplit(entry).scheme}://{plain}")
    if not found:
        raise BadRequest(f"{option} holds something that is no address", hint="Give host, host/path, *.host or /path.", pointer=f"/options/{option}")
    parts = urlsplit(found)
    return Area(f"*.{parts.netloc}" if wild else parts.netloc, parts.path or "/")
