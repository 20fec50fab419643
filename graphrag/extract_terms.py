"""Names and terms of a document without a model: what it speaks of, where, and what stands together in one sentence.

Chinese is cut into words with their parts of speech, and nouns that follow each other are joined; of other scripts runs of capitalised words
are taken, and words with figures or capitals inside. Quoted titles are taken whole, and what stands in a bracket behind a name is
another name of it. Mentions are linear in the text; what a sentence ties is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from graphrag.contracts import ChunkRef, Contribution, Link, Mention
from graphrag.resolve import ZH_TITLES, bracketed, key
from pipeline.contracts import Chunk
from pipeline.sentences import sentences
from pipeline.text import fold

VERSION = "terms:2"
IN_SENTENCE = 8
"""Names of one sentence that are tied to each other, the first ones."""
LINKS = 96
"""Of one chunk; those of most sentences stay."""
LONGEST = 60
"""Characters of a name."""

PERSON, PLACE, ORGANIZATION, WORK, TERM = "person", "place", "organization", "work", "term"
ZH_KINDS = {"nr": PERSON, "nrt": PERSON, "nrfg": PERSON, "ns": PLACE, "nt": ORGANIZATION, "nz": TERM, "eng": TERM, "j": TERM, "l": TERM}
JOINED = frozenset(("n", "nz", "ns", "nt", "vn", "ng", "an", "j", "eng", "nr", "x-name"))
HEADS = frozenset(("n", "nz", "nt", "ns", "eng", "j", "vn", "ng"))
ENDINGS = {
    ORGANIZATION: ("university", "college", "institute", "inc", "ltd", "company", "corporation", "committee", "ministry", "agency", "association"),
    PLACE: ("river", "lake", "county", "city", "street", "bridge", "island", "mountain", "province"),
}
ZH_ENDINGS = {
    ORGANIZATION: ("大学", "学院", "公司", "集团", "委员会", "医院", "银行", "研究所", "研究院", "协会", "出版社", "法院", "中学", "小学", "部队"),
    PLACE: ("省", "市", "县", "镇", "河", "湖", "江", "山", "岛", "路", "街", "桥", "站"),
}
ZH_STOP = frozenset(
    "问题 情况 时候 方面 人员 时间 工作 内容 部分 方式 结果 原因 目的 过程 作用 关系 地方 东西 事情 意思 办法 方法 条件 因素 "
    "基础 水平 程度 能力 机会 活动 生活 社会 国家 人们 大家 自己 别人 之间 以后 以前 之后 之前 当时 后来 目前 现在 今天 昨天 "
    "明天 今年 去年 同时 其中 其他 一些 许多 全部 主要 重要 小时 分钟 公里 公斤 左右 以上 以下 上午 下午 晚上 年代 世纪 本文 "
    "本书 作者 图片 说明 例如 包括 进行 使用 需要 可能 如果 因为 所以 但是 而且".split()
)
STOP = frozenset(
    "the a an and or but if in on at of for from to with by as is are was were be been it its this that these those he she "
    "they we you i his her their our your my who whom which what when where why how there here then than so not no yes all "
    "any each every some such other another more most many much few both either neither also only just very too however "
    "although though while because since until after before during between among through about against into over under again "
    "further once new first second third one two three four five six seven eight nine ten section chapter page table figure "
    "note see example january february march april may june july august september october november december monday tuesday "
    "wednesday thursday friday saturday sunday mr mrs ms dr".split()
)
LINKERS = r"(?:of|the|and|de|la|le|du|des|del|della|di|da|van|von|der|den|for|al|el|bin|ibn|y|&|in)"

_HAN = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]")
_MIXED = r"[\u3400-\u9fff\uf900-\ufaffA-Za-z0-9·・.+#\-]"
_HAN_RUN = re.compile(rf"{_MIXED}*[\u3400-\u9fff\uf900-\ufaff]{_MIXED}*")
_TITLE = re.compile(r"[《「『〈]([^《》「」『』〈〉\n]{1,60})[》」』〉]")
_ACRONYM = re.compile(r"[(（]([A-Z][A-Za-z&.-]{1,11})[)）]")
_UPPER = r"(?:[^\W\d_a-zß-öø-ÿ\u3400-\u9fff\u3040-\u30ff\uac00-\ud7a3][\w'’.&-]*[\w]|[A-Z])"
_NEXT = rf"(?:[ \u00a0]|, (?=Jr|Sr|Inc|Ltd))(?:{LINKERS}[ \u00a0])*(?:{_UPPER}|\d+)(?![\w])"
_RUN = re.compile(rf"(?<![\w]){_UPPER}(?:{_NEXT})*(?:[ ]?\([^()\n]{{1,40}}\))?")
_OF = re.compile(r" (?:of|in|and|for)(?: the)? ")
_INSTITUTIONS = frozenset(
    "university bank ministry department kingdom house court council college institute republic board church battle treaty order".split()
)
_TECHNICAL = re.compile(r"(?<![\w])(?=[\w.+#-]*[A-Za-z])(?=[\w.+#-]*(?:\d|[a-z][A-Z]|[A-Z]{2}))[A-Za-z0-9][\w.+#-]*[\w+#]")


@dataclass(frozen=True, slots=True)
class Found:
    """A name in a text."""

    start: int
    end: int
    type: str
    name: str


def extract(document_id: str, version: int, title: str, chunks: Sequence[Chunk]) -> Contribution:
    """All that a document says by itself. The same document always gives the same contribution.

    Args:
        title: spoken of by the first chunk, whether it stands in the text or not.
        chunks: in order. What stands in two of them counts for the first.
    """
    refs = tuple(ChunkRef(one.chunk_id, one.ordinal, one.start, one.end, one.valid_from) for one in chunks)
    mentions: list[Mention] = []
    links: list[Link] = []
    done = 0
    for place, chunk in enumerate(chunks):
        following = chunks[place + 1].start if place + 1 < len(chunks) else None
        ours, tied, ended = _chunk(place, chunk, done, following)
        if place == 0 and title.strip():
            ours = _titled(title.strip(), chunk, ours)
        done = max(done, ended)
        mentions += ours
        links += tied
    return Contribution(document_id, version, VERSION, refs, tuple(mentions), tuple(links))


def names(text: str) -> list[Found]:
    """Names of a text in order, no two overlapping."""
    found: list[Found] = [Found(match.start(1), match.end(1), WORK, match[1]) for match in _TITLE.finditer(text)]
    found += (Found(match.start(1), match.end(1), TERM, match[1]) for match in _ACRONYM.finditer(text))
    if _HAN.search(text):
        found += _chinese(text)
    found += _capitalised(text)
    found.sort(key=lambda one: (one.start, -one.end))
    kept: list[Found] = []
    for one in found:
        if (not kept or one.start >= kept[-1].end) and one.end - one.start <= LONGEST and key(one.name):
            kept.append(one)
    return kept


def _chunk(place: int, chunk: Chunk, done: int, following: int | None) -> tuple[list[Mention], list[Link], int]:
    """Mentions and links of one chunk, and where its last mention ends.

    Args:
        done: where the last mention of the chunks before ends: what begins earlier was counted there.
        following: where the next chunk begins; a name that this one cuts off is left to it, if it is whole there.
    """
    first: dict[str, tuple[Found, int]] = {}
    pairs: dict[tuple[str, str], tuple[int, int, int]] = {}
    found = names(chunk.text)
    at = 0
    for start, end in sentences(chunk.text):
        keys: list[str] = []
        while at < len(found) and found[at].start < end:
            one, at = found[at], at + 1
            begins, ends = chunk.start + one.start, chunk.start + one.end
            if begins < done or (ends == chunk.end and following is not None and following <= begins):
                continue
            for name, shift, length in _readings(one):
                canonical = key(name)
                if not canonical:
                    continue
                known = first.get(canonical)
                first[canonical] = (known[0], known[1] + 1) if known else (Found(begins + shift, begins + shift + length, one.type, name), 1)
                if canonical not in keys:
                    keys.append(canonical)
        _tie(keys[:IN_SENTENCE], (chunk.start + start, chunk.start + end), pairs)
    mentions = [Mention(name, one.name, one.type, place, one.start, one.end, count) for name, (one, count) in first.items()]
    mentions.sort(key=lambda one: (one.start, one.key))
    best = sorted(pairs.items(), key=lambda item: (-item[1][0], item[1][1], item[0]))[:LINKS]
    links = [Link(left, right, place, start, end, float(weight)) for (left, right), (weight, start, end) in sorted(best)]
    return mentions, links, max((one.end for one in mentions), default=done)


def _tie(keys: Sequence[str], span: tuple[int, int], pairs: dict[tuple[str, str], tuple[int, int, int]]) -> None:
    """Count a sentence for each two of its names; the first one that holds them is their evidence."""
    for place, left in enumerate(keys):
        for right in keys[place + 1 :]:
            pair = (min(left, right), max(left, right))
            known = pairs.get(pair)
            pairs[pair] = (known[0] + 1, known[1], known[2]) if known else (1, *span)


def _readings(one: Found) -> Iterator[tuple[str, int, int]]:
    """(name, its place in the name as found, length): the name, and what a bracket behind it says."""
    main, alias = bracketed(one.name)
    if not alias:
        yield one.name, 0, len(one.name)
        return
    yield main, 0, len(main)
    if len(alias) > 1 and (any(map(str.isupper, alias)) or _HAN.search(alias)):
        yield alias, one.name.rindex(alias), len(alias)


def _titled(title: str, chunk: Chunk, mentions: list[Mention]) -> list[Mention]:
    """The document's title as a name of its first chunk, where it is short enough; with an empty span where it is no part of the text."""
    canonical = key(title)
    if not canonical or len(title) > LONGEST:
        return mentions
    place = fold(chunk.text).find(fold(title)) if len(fold(chunk.text)) == len(chunk.text) else chunk.text.find(title)
    start, end = (place, place + len(title)) if place >= 0 else (0, 0)
    if any(one.key == canonical for one in mentions):
        return mentions
    mention = Mention(canonical, title, TERM, mentions[0].chunk if mentions else 0, chunk.start + start, chunk.start + end)
    return sorted([*mentions, mention], key=lambda one: (one.start, one.key))


# ---------------------------------------------------------------- Chinese


@cache
def _tagger() -> Callable[[str], list[tuple[str, str]]]:
    """The dictionary takes 0.4 s to load."""
    import rjieba

    return rjieba.tag


def _chinese(text: str) -> Iterator[Found]:
    folded = fold(text)
    simple = folded if len(folded) == len(text) else text
    tag = _tagger()
    for run in _HAN_RUN.finditer(simple):
        at = run.start()
        held: list[tuple[int, int, str]] = []
        for word, kind in tag(run[0]):
            start, at = at, at + len(word)
            if kind in JOINED and word not in ZH_STOP and word not in ZH_TITLES:
                if held and "nr" in {kind, held[-1][2]}:
                    yield from _joined(text, held)
                    held = []
                held.append((start, at, kind))
                continue
            yield from _joined(text, held)
            held = []
        yield from _joined(text, held)


def _joined(text: str, held: list[tuple[int, int, str]]) -> Iterator[Found]:
    """The words that were held as one name, if its last one may head it."""
    while held and held[-1][2] not in HEADS and held[-1][2] != "nr":
        held = held[:-1]
    if not held:
        return
    start, end = held[0][0], held[-1][1]
    name = text[start:end]
    han = len(_HAN.findall(name))
    if not han or len(name) < 2 or (len(held) == 1 and held[0][2] in {"vn", "ng"}):
        return
    kind = ZH_KINDS.get(held[-1][2], TERM) if len(held) == 1 else TERM
    ending = next((found for found, endings in ZH_ENDINGS.items() if name.endswith(endings) and len(name) > 2), "")
    yield Found(start, end, ending or kind, name)


# ---------------------------------------------------------------- other scripts


def _capitalised(text: str) -> Iterator[Found]:
    opens = len(text) - len(text.lstrip(" \t\n\"“'(*-#>|"))
    for match in _RUN.finditer(text):
        for name, start in _parted(match[0], match.start()):
            found = _trimmed(name, start, opening=start <= opens)
            if found is not None:
                yield found
    for match in _TECHNICAL.finditer(text):
        if len(match[0]) > 2 and match[0].lower() not in STOP and not match[0].isdigit():
            yield Found(match.start(), match.end(), TERM, match[0])


def _parted(name: str, start: int) -> Iterator[tuple[str, int]]:
    """At ``of`` and ``and``, where what stands before is a name by itself: Jane Doe of the University of Oxford are two."""
    for joint in _OF.finditer(name):
        left = name[: joint.start()].split()
        if len(left) > 1 and left[-1].lower() not in _INSTITUTIONS and left[0].lower() not in STOP:
            yield name[: joint.start()], start
            yield from _parted(name[joint.end() :], start + joint.end())
            return
    yield name, start


def _trimmed(name: str, start: int, *, opening: bool) -> Found | None:
    """Without what only begins a sentence; None where nothing is left that is a name."""
    while name:
        head, blank, rest = name.partition(" ")
        if head.lower().strip(".,") in STOP and head.lower() not in {"mr", "mrs", "dr"}:
            start, name = start + len(head) + len(blank), rest
            continue
        break
    name = name.rstrip(" .,'’-&")
    if name.endswith(("'s", "’s")):
        name = name[:-2]
    if (
        len(name) < 2
        or name.lower() in STOP
        or not any(map(str.isalpha, name))
        or (opening and " " not in name and name[1:].islower() and len(name) < 4)
    ):
        return None
    ends = {part.lower().strip(".,") for part in (name.partition(" ")[0], name.rpartition(" ")[2])}
    kind = next((found for found, endings in ENDINGS.items() if ends & set(endings)), TERM)
    return Found(start, start + len(name), kind, name)
