"""Bytes to text: byte order mark, strict UTF-8, the declared charset, then scored candidates. Never mojibake."""

from __future__ import annotations

import codecs
import re

from pipeline.errors import Malformed

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

# The commonest characters of running Chinese text; characters that the two scripts write differently stand in both strings.
_SIMPLIFIED = (
    "的一是不了人我在有他这中大来上国个到说们为子和你地出道也时年得就那要下以生会自着去之过家学对可她里后小么心多天而能好都然没日于起还发成事只作当想看文"
    "无开手十用主行方又如前所本见经头面公同三已老从动两长知民样现分将外但身些与高意进把法此实回二理美点月明其种声全工己话儿者向情部正名定女问力机给等几很业"
    "最间新什打便位因重被走电四第门相次东政海口使教西再平真听世气信北少关并内加化由却代军产入先山五太水万市眼体别处总才场师书比住员九笑性通目华报立马命张活"
    "难神数件安表原车白应路期叫死常提感金何更反合放做系计或司利受光王果亲界及今京务制解各任至清物台象记边共风战干接它许八特觉望直服毛林题建南度统色字请交爱"
    "让认算论百吃义科怎元社术结六功指思非流每青管夫连远资队跟带花快条院变联言权往展该领传近留红治决周保达办运武半候七必城父强步完革深区即求品士转量空众技轻"
    "程告语英派满式李息写呢识极令收脸钱党倒未持取设始版双历越史商千片容研像找友孩站广改议形委早房音火际则首单据导影失拿网香似斯专石若兵弟谁校读志飞观争究包组"
    "造视济喜离坏兴投试用户数据文件系统任务流程查询配置节点服务状态信息类型使用支持执行默认参数返回错误请求接口代码项目"
)
_TRADITIONAL = (
    "這來國個說們為時過學對裡後麼沒於還發當無開見經頭從動兩長樣現將與進實點種聲話兒問機給幾業間電門東聽氣關並產萬體別處總場師書員報馬張難數車應親務記邊風"
    "戰許覺題統請愛讓認論義術結連遠資隊帶條變聯權該領傳決達辦運強轉眾輕語滿寫識極臉錢黨歷廣議際單據導網專誰讀飛觀爭組視濟離壞興試戶檔案系統設定節點伺服狀"
    "態資訊類預設參執行環境專案錯誤請求畫面檢視擇並選項會開關閉雙點圖標創建學習華僅幫區號線紅級約終續維練綠經綜"
)
_PUNCTUATION = "。，、；：？！“”‘’（）《》「」『』—…·"
_COMMON = frozenset(_SIMPLIFIED + _TRADITIONAL + _PUNCTUATION)

_ODD = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f\x80-\x9f\ue000-\uf8ff\ufffd-\uffff\U000e0000-\U0010ffff]")
_CONTROL = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f-\x9f]")
_CANDIDATES = ("gb18030", "cp950", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
_ACCEPT = 0.2
"""Least score of a candidate: running Chinese scores 0.5 to 0.8, foreign bytes read as Chinese under 0.1."""


def decode(data: bytes, declared: str = "") -> tuple[str, str]:
    """Return (text without its byte order mark, charset name).

    `declared` is what a header or the document itself claims; it is believed only where the bytes agree.
    Isolated undecodable bytes (under one in 500 characters) become U+FFFD.
    Raises Malformed with code ``unknown_charset`` when no charset makes sense of the bytes.
    """
    for mark, name in _MARKS:
        if data.startswith(mark):
            return _cut(data[len(mark) :], name), name
    if b"\x00" not in data[:SAMPLE] and b"\x1b$" not in data[:SAMPLE]:
        text = _utf8(data)
        if text is not None:
            return text, "utf-8"
    name = _guess(data, _known(declared))
    if not name:
        raise Malformed(
            "the text is in no charset that could be recognised",
            hint="Save the file as UTF-8 and ingest it again.",
            code="unknown_charset",
        )
    return _cut(data, name), name


def decode_page(data: bytes, header: str = "") -> tuple[str, str]:
    """The same for HTML: the page's own declaration is looked up, and `header` is what the content-type header says."""
    found = _META.search(data[:4096]) or _XML.match(data[:4096])
    return decode(data, found[1].decode("ascii") if found else header)


def plausible(data: bytes) -> bool:
    """Whether the bytes can be text at all, in some charset."""
    if any(data.startswith(mark) for mark, _ in _MARKS):
        return True
    sample = data[:SAMPLE]
    if b"\x00" not in sample:
        text = _utf8(sample)
        if text is not None:
            return len(_CONTROL.findall(text)) * 50 <= len(text)
    return bool(_guess(sample, ""))


def _utf8(data: bytes) -> str | None:
    """Strict UTF-8, a last character cut in the middle allowed, isolated bad bytes among many good ones replaced."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start >= len(data) - 3 and error.reason == "unexpected end of data":
            return data[: error.start].decode("utf-8")
    text = data.decode("utf-8", "replace")
    bad = text.count("\ufffd")
    foreign = len(text) - len(text.encode("ascii", "ignore"))
    return text if bad * 500 <= len(text) and bad * 10 <= foreign - bad else None


def _known(declared: str) -> str:
    """Python's name of a declared charset, widened; empty when unknown or not a text encoding."""
    try:
        info = codecs.lookup(declared.strip().strip("\"'").lower().replace("windows-9", "cp9")) if declared else None
    except (LookupError, ValueError):
        return ""
    if info is None or not getattr(info, "_is_text_encoding", True):
        return ""
    return _WIDER.get(info.name, info.name)


def _guess(data: bytes, declared: str) -> str:
    """The charset that makes most sense of a sample, or an empty string."""
    sample = data[:SAMPLE]
    if b"\x1b$" in sample and _fits(sample, "iso2022_jp"):
        return "iso2022_jp"
    if declared and declared not in {"utf-8", "cp1252"} and _fits(sample, declared):
        return declared
    best, name = max((_score(sample, candidate), candidate) for candidate in _CANDIDATES)
    if best >= _ACCEPT:
        return name
    if declared and _fits(sample, declared):
        return declared
    return _statistics(sample) or next((name for name, pairs in _PLAIN_PAIRS if pairs.fullmatch(sample)), "")


def _strict(sample: bytes, name: str) -> str | None:
    """Decode a sample whose last character may be cut; None when the bytes do not fit."""
    decoder = codecs.getincrementaldecoder(name)()
    try:
        return decoder.decode(sample, final=len(sample) < 8)
    except UnicodeDecodeError:
        return None


def _fits(sample: bytes, name: str) -> bool:
    text = _strict(sample, name)
    return bool(text) and len(_ODD.findall(text or "")) * 100 <= len(text or "")


def _score(sample: bytes, name: str) -> float:
    """Share of common Chinese characters among the foreign ones, minus three times the share of impossible ones, in [-3, 1]."""
    wide = name.startswith("utf-")
    if wide and len(sample) % 2:
        return -1.0
    if name.startswith("utf-32") and b"\x00\x00" not in sample:
        return -1.0
    text = _strict(sample, name)
    if text is None:
        text = sample.decode(name, "replace")
        if text.count("\ufffd") * 200 > len(text):
            return -1.0
    foreign = [c for c in text if c > "\x7f"]
    odd = len(_ODD.findall(text))
    good = sum(map(_COMMON.__contains__, foreign))
    if wide:
        plain = len(text) - len(foreign)
        return (good + plain - 3 * odd) / max(1, len(text)) if plain < len(text) or b"\x00" in sample else -1.0
    return (good - 3 * odd) / max(1, len(foreign)) if foreign else -1.0


def _statistics(sample: bytes) -> str:
    """What chardet makes of it, where decoding then shows letters rather than noise."""
    if _CONTROL.search(sample.decode("latin-1").translate(_HIGH)):
        return ""
    if _western(sample):
        return "cp1252"
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
    if not foreign or _ODD.search(text) or letters * 10 < len(foreign) * 6:
        return ""
    if len(foreign) * 3 > len(text) and name.startswith(("cp125", "iso8859", "mac")) and not _one_script(foreign):
        return ""
    return name


_MULTIBYTE = frozenset({"cp932", "euc_jp", "cp949", "gb18030", "cp950", "johab"})
"""Bytes that decode strictly in one of these are evidence by themselves, however short the text."""
_ACCENTED = re.compile("(?<![À-ÿŒœŠšŽžŸ])[À-ÿŒœŠšŽžŸ](?![À-ÿŒœŠšŽžŸ])|[‘’“”«»–—…°§€£©®·¡¿ªº²³½]")
_PLAIN_PAIRS = (
    ("gb18030", re.compile(rb"(?:[\t\n\v\f\r -~]|[\xb0-\xd7][\xa1-\xfe]|[\xa1\xa3][\xa1-\xfe])+")),
    ("cp950", re.compile(rb"(?:[\t\n\v\f\r -~]|[\xa4-\xc6][\x40-\x7e\xa1-\xfe]|\xa1[\x40-\x7e\xa1-\xfe])+")),
)
"""The last guess for a word or two: nothing but the commoner half of one Chinese character set."""
_HIGH = dict.fromkeys(range(0x80, 0x100), 32)


def _western(sample: bytes) -> bool:
    """Whether the bytes read as Latin letters with an accent here and there."""
    text = _strict(sample, "cp1252") or ""
    foreign = len(text) - len(text.encode("ascii", "ignore"))
    return 0 < foreign * 4 <= len(text) + 3 and len(_ACCENTED.findall(text)) * 20 >= foreign * 19


def _one_script(foreign: list[str]) -> bool:
    """Whether most letters lie in one alphabet: in real Cyrillic or Greek they do, in misread bytes they do not."""
    blocks = [ord(c) >> 8 for c in foreign if c.isalpha()]
    return bool(blocks) and max(map(blocks.count, set(blocks))) * 10 >= len(blocks) * 8 and max(set(blocks), key=blocks.count) >= 3


def _cut(data: bytes, name: str) -> str:
    """Decode; a cut last character is dropped, isolated bad bytes become U+FFFD, more than that is refused."""
    try:
        return codecs.getincrementaldecoder(name)().decode(data)
    except UnicodeDecodeError:
        text = data.decode(name, "replace")
    if text.count("\ufffd") * 500 > len(text):
        raise Malformed(f"the text is not valid {name}", hint="Save the file as UTF-8 and ingest it again.", code="unknown_charset")
    return text
