"""Names that mean one thing: a deterministic key, and what a name says of itself in brackets.

Equal keys are one entity, whatever script, width, case or form of address it was written in. The rules only take away what distinguishes
nobody; two names that differ in anything else stay two.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from pipeline.text import fold

ROUNDS = 6
"""A name may hold several of what goes, one behind the other."""
LONGEST = 80
"""Characters of a name; what is longer is a sentence."""
TITLES = frozenset("mr mrs ms miss mx dr prof professor sir madam lady lord mister monsieur herr frau".split())
FORMS = frozenset("inc incorporated ltd limited llc llp lp gmbh ag kg co corp corporation company plc sa nv bv oy ab spa srl pte pty".split())
"""Legal forms of companies, behind their names."""
WORDY = frozenset(("company", "co"))
"""Words of their own, too: Bad Company is no Bad."""
ZH_TITLES = ("先生", "女士", "小姐", "教授", "博士", "老师", "院士", "同志", "阁下")
ZH_FORMS = (
    "集团股份有限公司",
    "集团有限责任公司",
    "集团有限公司",
    "有限责任公司",
    "股份有限公司",
    "控股有限公司",
    "有限公司",
    "股份公司",
    "集团公司",
    "集团",
    "公司",
)
STROKES = str.maketrans({"ł": "l", "ø": "o", "đ": "d", "ħ": "h", "ı": "i", "ß": "ss", "æ": "ae", "œ": "oe", "þ": "th", "ð": "d"})
"""Letters that are no base with an accent."""
SAME_PLURAL = ("ss", "us", "is", "os", "as", "news", "series", "ies")

_QUOTES = re.compile(r"[\"“”„‟«»‹›‘’'`´「」『』《》〈〉]")
_BRACKET = re.compile(r"^(?P<main>.{2,}?)\s*[(（\[【](?P<alias>[^()（）\[\]【】]{1,60})[)）\]】]\s*$", re.DOTALL)
_PARTS = re.compile(r"[0-9a-z]+(?:[.,][0-9]+)*[+#]*|[^\W\d_a-z]+", re.IGNORECASE)
_HAN = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]")
_SPACES = re.compile(r"[\s\u00a0·・‧•\-‐‑‒–—_/]+")


@lru_cache(maxsize=65_536)
def key(name: str) -> str:
    """Equal for names that mean one thing; empty for what is no name (no letter or figure). The key of a key is the key.

    Folded are: width, case, Traditional and Simplified Chinese, accents, quotes, blanks, hyphens and points, another name in a bracket
    behind it, titles of people, legal forms of companies, a leading article, an English plural.
    """
    for _ in range(ROUNDS):
        folded = _key(name)
        if folded == name:
            break
        name = folded
    return name


def _key(name: str) -> str:
    main, alias = bracketed(name)
    if not alias:
        main = name
    text = _QUOTES.sub("", fold(unicodedata.normalize("NFKC", main[:LONGEST])))
    if _HAN.search(text):
        return _chinese(text)
    plain = "".join(letter for letter in unicodedata.normalize("NFD", text.translate(STROKES)) if not unicodedata.combining(letter))
    words = _PARTS.findall(plain.replace(".", " ").replace("&", " and ") if not re.search(r"\d\.\d", plain) else plain.replace("&", " and "))
    last = main.split()[-1] if main.split() else ""
    common = (" " in main and last[:1].islower()) or (last[-1:] == "s" and last[:-1].isupper())
    return "".join(_words(words, plural=common))


def bracketed(name: str) -> tuple[str, str]:
    """(the name, its other name in a bracket behind it): ``世界卫生组织（WHO）`` → 世界卫生组织 and WHO.

    What a bracket says of the same name in the same script, as in ``Mercury (planet)``, tells it from others and stays.
    """
    found = _BRACKET.match(name.strip())
    if found is None:
        return name.strip(), ""
    main, alias = found["main"], found["alias"].strip()
    other_script = bool(_HAN.search(main)) != bool(_HAN.search(alias)) and any(map(str.isalpha, alias))
    return (main, alias) if other_script or (alias.isupper() and len(alias) > 1) else (name.strip(), "")


def _chinese(text: str) -> str:
    """Blanks go; and what stands behind a name: a title if two characters are left, a form of company if three are."""
    plain = "".join(_PARTS.findall(_SPACES.sub("", text)))
    for endings, least in ((ZH_TITLES, 2), (ZH_FORMS, 3)):
        for ending in endings:
            if plain.endswith(ending) and len(plain) - len(ending) >= least:
                return plain[: -len(ending)]
    return plain


def _words(words: list[str], *, plural: bool) -> list[str]:
    """Only a common noun has a plural that means the same: Jones stays Jones."""
    while len(words) > 1 and words[0] in {"the", "a", "an"}:
        words = words[1:]
    while len(words) > 2 and words[0] in TITLES:
        words = words[1:]
    while len(words) > 1 and words[-1] in FORMS and (words[-1] not in WORDY or len(words) > 2):
        words = words[:-1]
    if len(words) > 1 and words[-1] == "and":
        words = words[:-1]
    return [*words[:-1], _singular(words[-1])] if words and plural else words


def _singular(word: str) -> str:
    """Of a plural that only takes an s; names such as Paris, Texas or Atlas keep theirs."""
    if len(word) > 3 and word.endswith("s") and not word.endswith(SAME_PLURAL):
        return word[:-1]
    return word
