"""How one collection is searched where a request says nothing else, and where its refusals begin: what a ledger keeps of it, checked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from pipeline.errors import BadRequest

MERGES = ("weighted", "rrf")
MOST_NEIGHBOURS = 8
MOST_HITS = 1_000


@dataclass(frozen=True, slots=True)
class Tuning:
    """A collection's own settings; None leaves the default."""

    top_k: int | None = None
    """Hits shown; of several collections the largest counts."""
    score_threshold: float | None = None
    """Least score of a hit of this collection."""
    merge: str | None = None
    """weighted or rrf."""
    lexical_weight: float | None = None
    """Share of full text in HYBRID under weighted."""
    widen: str | None = None
    """off, section, or how many chunks before and after a hit are shown with it: 1 to 8."""

    def __post_init__(self) -> None:
        """Raises BadRequest."""
        if self.top_k is not None and not 1 <= self.top_k <= MOST_HITS:
            raise BadRequest(f"top_k is {self.top_k}, it must lie in 1 to {MOST_HITS}", pointer="/top_k", code="bad_k")
        for name, share in (("score_threshold", self.score_threshold), ("lexical_weight", self.lexical_weight)):
            if share is not None and not 0.0 <= share <= 1.0:
                raise BadRequest(f"{name} is {share}, it must lie in 0 to 1", pointer=f"/{name}", code="bad_threshold")
        check(self.merge or "", self.widen or "")


NAMES = tuple(field.name for field in fields(Tuning))


@dataclass(frozen=True, slots=True)
class Calibration:
    """What labelled questions said about one generation of a collection."""

    threshold: float
    """Evidence score under which nothing is read."""
    auc: float
    """How often an answerable question scores above one that is not."""
    answered: int
    """Answerable questions at the threshold or above."""
    wrongly_refused: int
    refused: int
    """Unanswerable questions under the threshold."""
    wrongly_answered: int
    cap: float
    """Most of the answerable ones that might be refused."""


def check(merge: str, widen: str) -> None:
    """Empty stands for the default. Raises BadRequest."""
    if merge and merge not in MERGES:
        raise BadRequest(f"there is no merge strategy {merge!r}", pointer="/merge", hint=f"Use one of: {', '.join(MERGES)}.", code="bad_merge")
    if widen not in {"", "off", "section"} and not (widen.isdecimal() and widen.isascii() and 1 <= int(widen) <= MOST_NEIGHBOURS):
        hint = f"Use off, section, or a number of chunks from 1 to {MOST_NEIGHBOURS}."
        raise BadRequest(f"widen cannot be {widen!r}", pointer="/widen", hint=hint, code="bad_widen")


def dump(tuning: Tuning) -> str:
    """JSON of what is set."""
    return json.dumps({name: value for name, value in asdict(tuning).items() if value is not None}, sort_keys=True)


def load(value: str) -> Tuning:
    return Tuning(**json.loads(value))


def dump_calibrations(found: Mapping[int, Calibration]) -> str:
    return json.dumps({str(generation): asdict(one) for generation, one in found.items()}, sort_keys=True)


def load_calibrations(value: str) -> dict[int, Calibration]:
    """Generation → calibration."""
    return {int(generation): Calibration(**one) for generation, one in json.loads(value).items()}


def rounded(threshold: float) -> float:
    """Down to four decimals, so that the question it was taken from still reaches it."""
    return math.floor(threshold * 10_000) / 10_000
