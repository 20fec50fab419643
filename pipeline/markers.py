"""Citation markers in an answer: where they are, where none may be, and the sentences between them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pipeline import text as language
from pipeline.contracts import Span

MARKER = re.compile(
    r"\[\^?\s*(\d{1,3}(?:\s*[,，、;；]\s*\^?\d{1,3})*)\s*\](?![(:])|【\s*(\d{1,3}(?:\s*[,，、;；]\s*\d{1,3})*)\s*(?:†[^】\n]{0,80})?】"
)
FENCE = re.compile(r"^ {0,3}(?P<mark>`{3,}|~{3,})[^\n]*(?:\n(?:.*\n)*? {0,3}(?P=mark)[`~]*[ \t]*$|(?:\n.*)*\Z)", re.MULTILINE)
INLINE = re.compile(
    r"(?<!`)(?P<tick>`+)(?!`)(?:(?!\n\s*\n).)+?(?<!`)(?P=tick)(?!`)"
    r"|<(?P<tag>code|pre)\b[^>\n]*>.*?</(?P=tag)>"
    r"|\$\$(?:(?!\n\s*\n|\$\$).)+\$\$|\\\[(?:(?!\n\s*\n).)+?\\\]|\\\((?:(?!\n\s*\n).)+?\\\)"
    # pandoc's rule: "$5 and $6" is money
    r"|(?<![\\$\w])\$(?![\s$])(?:[^$\n\\]|\\.)*?(?<!\s)\$(?![\d$])",
    re.DOTALL,
)
"""Code between backticks or tags, and mathematics."""


@dataclass(frozen=True, slots=True)
class Marker:
    """One marker; `[1, 2]` has two numbers."""

    start: int
    end: int
    numbers: tuple[int, ...]


def find(answer: str) -> list[Marker]:
    """Markers outside code, in order."""
    code = code_spans(answer)
    found = (match for match in MARKER.finditer(answer) if not any(start < match.end() and match.start() < end for start, end in code))
    return [Marker(match.start(), match.end(), tuple(map(int, re.findall(r"\d+", match[1] or match[2])))) for match in found]


def strip(answer: str) -> str:
    """The answer without its citation markers; code is left as it is."""
    kept, at = list[str](), 0
    for marker in find(answer):
        kept.append(answer[at : marker.start])
        at = marker.end
    return "".join(kept) + answer[at:]


def code_spans(answer: str) -> list[Span]:
    """Fenced blocks (an open one reaches to the end), inline code and formulas, in order."""
    fences = [match.span() for match in FENCE.finditer(answer)]
    inline = [match.span() for match in INLINE.finditer(answer) if not any(start < match.end() and match.start() < end for start, end in fences)]
    return sorted([*fences, *inline])


def masked(answer: str, spans: Iterable[Span]) -> str:
    """The same length, with the spans blanked; lines stay lines."""
    for start, end in spans:
        answer = answer[:start] + re.sub(r"[^\n]", " ", answer[start:end]) + answer[end:]
    return answer


def sentences(answer: str, markers: Sequence[Marker]) -> list[Span]:
    """Sentences of the answer outside fenced code, blanks and markers at their edges left out, never over a line's end."""
    blocks = [match.span() for match in FENCE.finditer(answer)]
    return list(lines(masked(answer, [*blocks, *((marker.start, marker.end) for marker in markers)])))


def lines(text: str) -> Iterator[Span]:
    """Sentences, cut at line ends too, without the blanks around them."""
    for first, last in language.sentences(text):
        start = first
        for line in text[first:last].splitlines(keepends=True):
            end = start + len(line)
            if bare := line.strip():
                begins = start + line.index(bare[0])
                yield begins, begins + len(bare)
            start = end
