"""Bytes to text: byte order mark, strict UTF-8, then the charset whose text reads best, declarations as hints. Never mojibake."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence

from pipeline.errors import Malformed
from pipeline.parse import writing

SAMPLE = 16384
"""Bytes that decide about a charset; the whole text is decoded once, afterwards."""

_MARKS: tuple[tuple[bytes, str], ...] = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (b"\x84\x31\x95\x33", "gb18030"),
)

_META = re.compile(rb"<meta[^>]{0,300}?charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
_XML = re.compile(rb"\s*<\?xml[^>]{0,100}?encoding\s*=\s*[\"']([\w.:-]+)")

_SCRIPT = re.compile(rb"<(script|style)\b(?:.*?</\1|.*)|<!--(?:.*?-->|.*)", re.IGNORECASE | re.DOTALL)
_TEXT = re.compile(rb">([^<>]+)")
_BEYOND = re.compile(rb"[\x80-\xff]")

_WIDER = {
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "cp936": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "iso8859-1": "cp1252",
    "ascii": "cp1252",
    "big5": "cp950",
}
"""Charset as named in files → the superset that is really written under that name."""

_LABELS = {"windows-874": "cp874", "tis-620": "cp874", "windows-936": "gbk", "windows-949": "cp949", "windows-950": "cp950"}
"""Names that Python does not know."""

_CONTROL = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f-\x9f]")
_WIDE = ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
_EASTERN: tuple[tuple[str, Callable[[str], float], float], ...] = (
    ("gb18030", writing.chinese, 0.2),
    ("cp950", writing.chinese, 0.2),
    ("big5hkscs", writing.chinese, 0.2),
    ("euc_jp", writing.japanese, 0.5),
    ("cp932", writing.japanese, 0.5),
    ("cp949", writing.korean, 0.4),
)
"""Charsets of several bytes a character: what their text reads like, and the least score that is believed without a hint."""
_CYRILLIC = ("cp1251", "koi8_r", "iso8859-5", "cp866", "mac-cyrillic")
_FEW = 8
"""Bytes beyond ASCII of which there must be that many, for reading to tell more than a declaration."""
_HINTED = 0.1
"""What a declaration is worth between charsets that both make sense."""


def decode(data: bytes, declared: str = "") -> tuple[str, str]:
    """Return (text without its byte order mark, charset name).

    `declared` is what a header or the document itself claims; it is believed only where the bytes agree.
    Isolated undecodable bytes (under one in 500 characters) become U+FFFD.
    Raises Malformed with code ``unknown_charset`` when no charset makes sense of the bytes.
    """
    return _decoded(data, [declared], _telling, 500)


def decode_page(data: bytes, header: str = "") -> tuple[str, str]:
    """The same for HTML: the page's own declaration counts beside `header`, what the content-type header says, and markup tells nothing.

    Undecodable bytes become U+FFFD as long as they are under one in 50 characters.
    """
    found = _META.search(data[:SAMPLE]) or _XML.match(data[:SAMPLE])
    return _decoded(data, [found[1].decode("ascii") if found else "", header], _visible, 50)


def _decoded(data: bytes, declared: Sequence[str], sample: Callable[[bytes], bytes], least: int) -> tuple[str, str]:
    for mark, name in _MARKS:
        if data.startswith(mark):
            return _cut(data[len(mark) :], name, least), name
    if b"\x00" not in data[:SAMPLE] and b"\x1b$" not in data:
        text = _utf8(data, least)
        if text is not None:
            return text, "utf-8"
    name = _guess(sample(data), [known for hint in declared if (known := _known(hint))])
    if not name:
        raise Malformed(
            "the text is in no charset that could be recognised",
            hint="Save the file as UTF-8 and ingest it again.",
            code="unknown_charset",
        )
    return _cut(data, name, least), name


def _telling(data: bytes) -> bytes:
    """A sample that begins where there is something to tell charsets by."""
    head = data[:SAMPLE]
    if not head.isascii() or b"\x1b$" in head or b"\x00" in head:
        return head
    found = _BEYOND.search(data)
    return data[data.rfind(b"\n", 0, found.start()) + 1 :][:SAMPLE] if found else head


def _visible(data: bytes) -> bytes:
    """A sample of the text between tags that is not ASCII; no charset here has ``<`` or ``>`` as part of another character."""
    if b"\x00" in data[:SAMPLE] or b"\x1b$" in data:
        return data[:SAMPLE]
    pieces: list[bytes] = []
    size = 0
    for piece in _TEXT.findall(_SCRIPT.sub(b"", data)):
        if not piece.isascii():
            pieces.append(piece.strip())
            size += len(piece)
            if size > SAMPLE:
                break
    return b"\n".join(pieces) if size >= 8 else _telling(data)


def plausible(data: bytes) -> bool:
    """Whether the bytes can be text at all, in some charset."""
    if any(data.startswith(mark) for mark, _ in _MARKS):
        return True
    sample = data[:SAMPLE]
    if b"\x00" not in sample:
        text = _utf8(sample, 500)
        if text is not None:
            return len(_CONTROL.findall(text)) * 50 <= len(text)
    return bool(_guess(sample, []))


def _utf8(data: bytes, least: int) -> str | None:
    """Strict UTF-8, a last character cut in the middle allowed, isolated bad bytes among many good ones replaced."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start >= len(data) - 3 and error.reason == "unexpected end of data":
            return data[: error.start].decode("utf-8")
    text = data.decode("utf-8", "replace")
    bad = text.count("\ufffd")
    foreign = len(text) - len(text.encode("ascii", "ignore"))
    return text if bad * least <= len(text) and bad * 10 <= foreign - bad else None


def _known(declared: str) -> str:
    """Python's name of a declared charset, widened; empty when unknown or not a text encoding."""
    name = declared.strip().strip("\"'").lower().removeprefix("x-")
    try:
        info = codecs.lookup(_LABELS.get(name, name)) if name else None
    except (LookupError, ValueError):
        return ""
    if info is None or not getattr(info, "_is_text_encoding", True):
        return ""
    return _WIDER.get(info.name, info.name)


def _guess(sample: bytes, hints: Sequence[str]) -> str:
    """The charset that makes most sense of a sample, or an empty string. Hints are names that Python knows, the stronger one first."""
    sample = sample[:SAMPLE]
    if b"\x1b$" in sample and _fits(sample, "iso2022_jp"):
        return "iso2022_jp"
    wide, name = max((_wide(sample, candidate), candidate) for candidate in _WIDE)
    if wide >= 0.2:
        return name
    latin = _western(sample, hints)
    if latin:
        return latin
    declared = _declared(sample, hints)
    if declared and len(_BEYOND.findall(sample)) < _FEW:
        return declared
    return _eastern(sample, hints) or _cyrillic(sample, hints) or declared or _last(sample, hints)


def _eastern(sample: bytes, hints: Sequence[str]) -> str:
    """The charset of several bytes whose text reads best; a hint decides what is nearly even, or a text of rare characters."""
    scores: list[tuple[float, str]] = []
    for name, reads, least in _EASTERN:
        text = _strict(sample, name)
        if text is None:
            text = sample.decode(name, "replace")
            if text.count("\ufffd") * 200 > len(text):
                continue
        score = reads(text)
        hinted = name in hints or (name == "big5hkscs" and "cp950" in hints)
        if score >= (0.05 if hinted else least):
            scores.append((score + (_HINTED if hinted else 0.0), name))
    best = max((score for score, _ in scores), default=0.0)
    return next((name for score, name in scores if score == best), "")


def _western(sample: bytes, hints: Sequence[str]) -> str:
    """Latin letters with an accent here and there: as declared where that is a Latin charset, too, else Windows' own."""
    if writing.western(_strict(sample, "cp1252") or "") < 0.95:
        return ""
    return next((name for name in hints if name in _LATIN and _fits(sample, name)), "cp1252")


def _cyrillic(sample: bytes, hints: Sequence[str]) -> str:
    """The first of the best, since a short text may be the same in two of them."""
    scores = {name: writing.cyrillic(text) + (_HINTED if name in hints else 0.0) for name in _CYRILLIC if (text := _strict(sample, name))}
    best = max(scores.values(), default=0.0)
    return next((name for name, score in scores.items() if score == best), "") if best >= 0.65 else ""


def _declared(sample: bytes, hints: Sequence[str]) -> str:
    """What a declaration says, where reading tells nothing; not those that servers send by themselves."""
    return next((name for name in hints if name not in _UNTOLD and _fits(sample, name)), "")


def _last(sample: bytes, hints: Sequence[str]) -> str:
    """Statistics, then what servers send by themselves, then a word or two of Chinese."""
    known = _statistics(sample)
    if not known and "cp1252" in hints and _fits(sample, "cp1252"):
        return "cp1252"
    return known or next((name for name, pairs in _PLAIN_PAIRS if pairs.fullmatch(sample)), "")


def _strict(sample: bytes, name: str) -> str | None:
    """Decode a sample whose last character may be cut; None when the bytes do not fit."""
    decoder = codecs.getincrementaldecoder(name)()
    try:
        return decoder.decode(sample, final=len(sample) < 8)
    except UnicodeDecodeError:
        return None


def _fits(sample: bytes, name: str) -> bool:
    text = _strict(sample, name)
    return bool(text) and writing.odd(text or "") * 100 <= len(text or "")


def _wide(sample: bytes, name: str) -> float:
    """Share of ASCII and common Chinese characters, minus three times that of impossible ones, when read two or four bytes at a time."""
    if len(sample) % 2 or (name.startswith("utf-32") and b"\x00\x00" not in sample):
        return -1.0
    text = _strict(sample, name)
    if text is None:
        text = sample.decode(name, "replace")
        if text.count("\ufffd") * 200 > len(text):
            return -1.0
    found = writing.foreign(text)
    plain = len(text) - len(found)
    good = sum(map(writing.COMMON.__contains__, found))
    return (good + plain - 3 * writing.odd(text)) / max(1, len(text)) if found or b"\x00" in sample else -1.0


def _statistics(sample: bytes) -> str:
    """What chardet makes of it, where decoding then shows letters rather than noise."""
    if _CONTROL.search(sample.decode("latin-1").translate(_HIGH)):
        return ""
    import chardet

    found = chardet.detect(sample)
    name = _known(found["encoding"] or "")
    least = 0.02 if name in _MULTIBYTE else 0.2
    if not name or name == "utf-8" or found["confidence"] < least:
        return ""
    text = _strict(sample, name)
    if text is None:
        return ""
    foreign = [c for c in text if c > "\x7f"]
    letters = sum(map(str.isalpha, foreign))
    if not foreign or writing.ODD.search(text) or letters * 10 < len(foreign) * 6:
        return ""
    if len(foreign) * 3 > len(text) and name.startswith(("cp125", "iso8859", "mac")) and not _one_script(foreign):
        return ""
    return name


_LATIN = frozenset({"cp1250", "cp1252", "cp1254", "cp1257", "cp1258", *(f"iso8859-{part}" for part in (2, 3, 4, 9, 10, 13, 14, 15, 16))})
_UNTOLD = frozenset({"utf-8", "cp1252"})
_MULTIBYTE = frozenset({"cp932", "euc_jp", "cp949", "gb18030", "cp950", "johab"})
"""Bytes that decode strictly in one of these are evidence by themselves, however short the text."""
_PLAIN_PAIRS = (
    ("gb18030", re.compile(rb"(?:[\t\n\v\f\r -~]|[\xb0-\xd7][\xa1-\xfe]|[\xa1\xa3][\xa1-\xfe])+")),
    ("cp950", re.compile(rb"(?:[\t\n\v\f\r -~]|[\xa4-\xc6][\x40-\x7e\xa1-\xfe]|\xa1[\x40-\x7e\xa1-\xfe])+")),
)
"""The last guess for a word or two: nothing but the commoner half of one Chinese character set."""
_HIGH = dict.fromkeys(range(0x80, 0x100), 32)


def _one_script(foreign: list[str]) -> bool:
    """Whether most letters lie in one alphabet: in real Cyrillic or Greek they do, in misread bytes they do not."""
    blocks = [ord(c) >> 8 for c in foreign if c.isalpha()]
    return bool(blocks) and max(map(blocks.count, set(blocks))) * 10 >= len(blocks) * 8 and max(set(blocks), key=blocks.count) >= 3


def _cut(data: bytes, name: str, least: int) -> str:
    """Decode; a cut last character is dropped, isolated bad bytes become U+FFFD, more than that is refused."""
    try:
        return codecs.getincrementaldecoder(name)().decode(data)
    except UnicodeDecodeError:
        text = data.decode(name, "replace")
    if text.count("\ufffd") * least > len(text):
        raise Malformed(f"the text is not valid {name}", hint="Save the file as UTF-8 and ingest it again.", code="unknown_charset")
    return text
