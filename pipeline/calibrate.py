"""Where refusals of a collection should begin, from questions of which it is known whether its documents answer them.

The rule: of all thresholds that refuse no more than `cap` of the answerable questions, the one with the greatest Youden's J (answerable
questions answered, less unanswerable ones answered, as shares); the lowest of several. It is laid halfway between the two scores that
it parts, so that it holds for questions that were not in the file, too.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from pipeline.errors import BadRequest
from pipeline.tuning import Calibration, rounded

CAP = 0.05
"""Most of the answerable questions that may be refused."""
MOST = 5_000
"""Questions of one calibration."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """A question, and whether the documents answer it."""

    question: str
    answerable: bool


def labelled(lines: Iterable[str]) -> list[Labelled]:
    """From JSON lines ``{"question": "…", "answerable": true}``; blank ones are passed over. Raises BadRequest naming the line."""
    found: list[Labelled] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value: object = json.loads(line)
        except ValueError:
            value = None
        row = cast("dict[str, object]", value) if isinstance(value, dict) else dict[str, object]()
        question, answerable = row.get("question"), row.get("answerable")
        if not isinstance(question, str) or not question.strip() or not isinstance(answerable, bool):
            hint = 'A line is {"question": "…", "answerable": true} or false.'
            raise BadRequest(f"line {number} is no labelled question", hint=hint, pointer=f"/questions/{len(found)}", code="bad_label")
        found.append(Labelled(question, answerable))
    return found


def check(questions: Sequence[Labelled], cap: float) -> None:
    """Raises BadRequest where nothing could be told."""
    if not 0.0 <= cap <= 1.0:
        raise BadRequest(f"cap is {cap}, it must lie in 0 to 1", pointer="/cap", code="bad_cap")
    if len(questions) > MOST:
        raise BadRequest(f"there are {len(questions)} questions, the most is {MOST}", pointer="/questions", code="too_many_questions")
    if len({one.answerable for one in questions}) < 2:
        hint = "Label both kinds; twenty of each tell something, a hundred of each tell it well."
        raise BadRequest("the questions are all of one kind", pointer="/questions", hint=hint, code="one_kind")


def auc(answerable: Sequence[float], foreign: Sequence[float]) -> float:
    """How often one of the first kind scores above one of the second; ties count half. In [0, 1], and 0.5 by chance."""
    below = sorted(foreign)
    won = sum(bisect_left(below, score) + bisect_right(below, score) for score in answerable) / 2.0
    return won / (len(answerable) * len(foreign))


def calibrate(answerable: Sequence[float], foreign: Sequence[float], *, cap: float = CAP) -> Calibration:
    """The threshold by the rule above.

    Args:
        answerable, foreign: evidence scores in [0, 1], at least one each.
        cap: most of the answerable ones that may be refused, in [0, 1].
    """
    good, bad = sorted(answerable), sorted(foreign)
    allowed = math.floor(cap * len(good) + 1e-9)

    def gain(threshold: float) -> float:
        return bisect_left(bad, threshold) / len(bad) - bisect_left(good, threshold) / len(good)

    steps = sorted({0.0, *good, *bad})
    # above all scores nothing would be answered; with few answerable ones and a wide cap even that may be asked for
    candidates = [score for score in (*steps, math.nextafter(steps[-1], 2.0)) if bisect_left(good, score) <= allowed]
    best = max(candidates, key=lambda threshold: (round(gain(threshold), 12), -threshold))
    threshold = _between(steps, best)
    refused, kept = bisect_left(bad, threshold), len(good) - bisect_left(good, threshold)
    return Calibration(threshold, auc(good, bad), kept, len(good) - kept, refused, len(bad) - refused, cap)


def _between(steps: Sequence[float], best: float) -> float:
    """Halfway down to the next lower score, with as few decimals as that allows."""
    below = max((score for score in steps if score < best), default=None)
    if below is None:
        return best
    middle = (below + best) / 2.0
    short = rounded(middle)
    return short if short > below else best
