"""What an answer says beyond its evidence, and what is done about it.

A sentence is supported when a citation's passage holds enough of its words and every number and name that it brings in. The score
is the share of supported sentences. A threshold turns the score into a flag, or into a refusal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from pipeline import markers
from pipeline import text as language
from pipeline.contracts import Evidence, Grounding, Span
from pipeline.errors import BadRequest
from pipeline.prompt import source

LIST_NUMBER = re.compile(r"^[ \t]*(?:\d{1,3}[.)、]|[-*+•])[ \t]*", re.MULTILINE)
NUMBER = re.compile(r"(?<![\d.])\d+(?:,\d{3})*(?:\.\d+)?")
NAME = re.compile(r"[A-Z][A-Za-z0-9]*(?:['’\-][A-Za-z0-9]+)*")
TITLED = re.compile(r"[《「『“]([^》」』”\n]{1,40})[》」』”]")
LINK = re.compile(r"https?://[^\s<>()\[\]{}\"'“”‘’`，。；、）】》]+", re.IGNORECASE)

FLAG: Final = "flag"
REFUSE: Final = "refuse"
SHOWN = 5
"""Sentences that a refusal names."""
LONGEST = 80
"""Characters of each."""


@dataclass(frozen=True, slots=True)
class Policy:
    """From which share of supported sentences an answer stands, and what becomes of one below it."""

    threshold: float = 0.0
    """In [0, 1]; 0: nothing is judged."""
    action: str = FLAG
    """flag: the answer is given and marked; refuse: it is withheld."""

    @property
    def withholds(self) -> bool:
        """True when nothing may be shown before it was judged."""
        return self.threshold > 0.0 and self.action == REFUSE


def policy(threshold: float, action: str) -> Policy:
    """Raises BadRequest when the threshold is no share or the action unknown."""
    if not 0.0 <= threshold <= 1.0:
        raise BadRequest(
            f"the grounding threshold {threshold:g} is no share", hint="Set DUJIANG_GROUNDING_THRESHOLD between 0 and 1.", code="bad_setting"
        )
    if action not in {FLAG, REFUSE}:
        raise BadRequest(f"there is no grounding action {action!r}", hint="Set DUJIANG_GROUNDING_ACTION to flag or refuse.", code="bad_setting")
    return Policy(threshold, action)


def judged(grounding: Grounding, policy: Policy) -> Grounding:
    """The same with the threshold that was used, and flagged when the score is below it."""
    return replace(grounding, threshold=policy.threshold, flagged=grounding.score < policy.threshold)


def refusal(grounding: Grounding, spoken: str) -> str:
    """Why the answer is withheld: its score, and the sentences without support. Links are left out: some are made to be fetched.

    Args:
        spoken: language code of the question.
    """
    safe = [LINK.sub("…", sentence).replace("](", "] (") for sentence in grounding.unsupported_sentences[:SHOWN]]
    told = [sentence if len(sentence) <= LONGEST else f"{sentence[: LONGEST - 1]}…" for sentence in safe]
    more = len(grounding.unsupported_sentences) - len(told)
    if spoken == "zh":
        quoted = "".join(f"“{sentence}”" for sentence in told)
        rest = f"，另有 {more} 句" if more else ""
        listed = f"没有依据的句子：{quoted}{rest}。" if told else ""
        return f"回答已被收回：检索到的段落只支持其中 {grounding.score:.0%} 的句子，低于要求的 {grounding.threshold:.0%}。{listed}"
    quoted = ", ".join(f'"{sentence}"' for sentence in told)
    rest = f", and {more} more" if more else ""
    listed = f" Without support: {quoted}{rest}." if told else ""
    share = f"the passages support {grounding.score:.0%} of its sentences, less than the {grounding.threshold:.0%} asked for"
    return f"The answer was withheld: {share}.{listed}"


def unsupported(answer: str, evidence: Sequence[Evidence]) -> tuple[str, ...]:
    """Numbers, capitalised names, quoted titles and links of the answer that stand in no passage, in order.

    Numbers compare by value (1,200 = 1200 = 1200.0), names by their folded letters, links whole. A capitalised word that
    only begins a sentence is no name.
    """
    return tuple(dict.fromkeys(said for _, said in strays(answer, evidence)))


def strays(answer: str, evidence: Sequence[Evidence]) -> list[tuple[int, str]]:
    """The same with the place of each in the answer."""
    known = "\n".join(f"{source(passage.hit)}\n{passage.hit.url}\n{' '.join(passage.hit.heading_path)}\n{passage.text}" for passage in evidence)
    folded = language.fold(known)
    found = markers.find(answer)
    plain = markers.masked(answer, [*markers.code_spans(answer), *((marker.start, marker.end) for marker in found)])
    plain = LIST_NUMBER.sub(lambda match: " " * len(match[0]), plain)
    # in code, too: a link works wherever it is shown
    links = [(match.start(), match[0].rstrip(".,;:!?")) for match in LINK.finditer(answer)]
    away = [(start, link) for start, link in links if language.fold(link) not in folded]
    plain = markers.masked(plain, [(start, start + len(link)) for start, link in links])
    return sorted([*away, *_numbers(plain, folded), *_names(plain, folded)])


def _numbers(plain: str, folded: str) -> list[tuple[int, str]]:
    known = {_value(match[0]) for match in NUMBER.finditer(folded)}
    wide = plain.translate({code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)})
    return [(match.start(), match[0]) for match in NUMBER.finditer(wide) if _value(match[0]) not in known]


def _names(plain: str, folded: str) -> list[tuple[int, str]]:
    words = frozenset(re.findall(r"[^\W_]+(?:['’\-][^\W_]+)*", folded))
    openings = {start for start, _ in markers.lines(plain)}
    found: list[tuple[int, str]] = []
    for match in NAME.finditer(plain):
        opens = match.start() in openings and not plain[match.end() :].lstrip(" ")[:1].isupper()
        name = match[0].lower().removesuffix("'s").removesuffix("’s")
        if not opens and len(name) > 1 and name not in words and name not in folded:
            found.append((match.start(), match[0]))
    found += [(match.start(), match[1]) for match in TITLED.finditer(plain) if language.fold(match[1]) not in folded and not match[1].isascii()]
    return found


def within(span: Span, places: Sequence[tuple[int, str]]) -> bool:
    """True when one of the places lies in the span."""
    return any(span[0] <= start < span[1] for start, _ in places)


def _value(number: str) -> str:
    """Digits without separators, leading zeros and empty decimals."""
    plain = number.replace(",", "")
    if "." in plain:
        plain = plain.rstrip("0").rstrip(".")
    return plain.lstrip("0") or "0"
