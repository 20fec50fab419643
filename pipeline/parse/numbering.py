"""Numbers that Word draws but does not store: of list items and of headings."""

from __future__ import annotations

from pipeline.parse.xml import Element

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_CHINESE = "零一二三四五六七八九"


def number(properties: Element | None) -> tuple[str, int]:
    """(numbering id, level from 0) of paragraph properties; an empty id when they name none."""
    found = None if properties is None else properties.find(f"{_W}numPr")
    if found is None:
        return "", 0
    name, level = found.find(f"{_W}numId"), found.find(f"{_W}ilvl")
    depth = (level.get(f"{_W}val") or "0") if level is not None else "0"
    return (name.get(f"{_W}val") or "") if name is not None else "", min(int(depth), 8) if depth.isdigit() else 0


class Numbering:
    """Counters of one document's lists."""

    def __init__(self, root: Element | None) -> None:
        self.abstract: dict[str, dict[int, tuple[str, str, int]]] = {}
        self.lists: dict[str, str] = {}
        self.starts: dict[tuple[str, int], int] = {}
        self.counts: dict[str, list[int]] = {}
        if root is None:
            return
        for definition in root.iterfind(f"{_W}abstractNum"):
            levels = {int(level.get(f"{_W}ilvl") or 0): _level(level) for level in definition.iterfind(f"{_W}lvl")}
            self.abstract[definition.get(f"{_W}abstractNumId") or ""] = levels
        for instance in root.iterfind(f"{_W}num"):
            name = instance.get(f"{_W}numId") or ""
            target = instance.find(f"{_W}abstractNumId")
            self.lists[name] = (target.get(f"{_W}val") or "") if target is not None else ""
            for change in instance.iterfind(f"{_W}lvlOverride"):
                start = change.find(f"{_W}startOverride")
                written = (start.get(f"{_W}val") or "") if start is not None else ""
                if written.isdigit():
                    self.starts[name, int(change.get(f"{_W}ilvl") or 0)] = int(written)

    def next(self, name: str, depth: int) -> str:
        """The mark of the next paragraph in a list: "-" for bullets, its number as Word would draw it otherwise."""
        levels = self.abstract.get(self.lists.get(name, ""), {})
        kind, pattern, start = levels.get(depth, ("bullet", "", 1))
        if kind in {"bullet", "none"} or not pattern:
            return "-"
        restarted = any(key == name for key, _ in self.starts)
        counts = self.counts.setdefault(name if restarted else self.lists[name], [-1] * 9)
        first = self.starts.get((name, depth), start)
        counts[depth] = first if counts[depth] < 0 else counts[depth] + 1
        counts[depth + 1 :] = [-1] * (8 - depth)
        mark = pattern
        for level in range(9):
            if f"%{level + 1}" in mark:
                other = levels.get(level, ("decimal", "", 1))
                value = counts[level] if counts[level] >= 0 else other[2]
                mark = mark.replace(f"%{level + 1}", drawn(value, other[0]))
        return mark.strip() or "-"


def _level(level: Element) -> tuple[str, str, int]:
    def value(tag: str) -> str:
        found = level.find(f"{_W}{tag}")
        return (found.get(f"{_W}val") or "") if found is not None else ""

    start = value("start")
    return value("numFmt") or "decimal", value("lvlText"), int(start) if start.isdigit() else 1


def drawn(value: int, kind: str) -> str:
    """A number in one of Word's formats; decimal for those not known here."""
    if kind in {"lowerLetter", "upperLetter"} and value > 0:
        letter = chr(ord("a") + (value - 1) % 26) * ((value - 1) // 26 + 1)
        return letter.upper() if kind == "upperLetter" else letter
    if kind in {"lowerRoman", "upperRoman"} and 0 < value < 4000:
        roman = ""
        rest = value
        for size, sign in ((1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"), (40, "xl")):
            roman, rest = roman + sign * (rest // size), rest % size
        for size, sign in ((10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i")):
            roman, rest = roman + sign * (rest // size), rest % size
        return roman.upper() if kind == "upperRoman" else roman
    if kind.startswith("chinese") or kind in {"japaneseCounting", "ideographDigital", "taiwaneseCounting"}:
        return _chinese(value)
    return f"{value:02}" if kind == "decimalZero" else str(value)


def _chinese(value: int) -> str:
    if not 0 <= value < 100:
        return str(value)
    tens, ones = divmod(value, 10)
    if not tens:
        return _CHINESE[ones]
    return (_CHINESE[tens] if tens > 1 else "") + "十" + (_CHINESE[ones] if ones else "")
