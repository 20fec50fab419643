"""How well the main content of web pages is told from the rest, on pages whose text is known.

    python bench/articles.py DATASET_DIR [--content article] [--worst N]

DATASET_DIR holds ``ground-truth.json`` or ``ground-truth.json.gz`` ({key: {"articleBody": text}}) and ``html/KEY.html.gz``, as in
scrapinghub's article-extraction-benchmark, whose measure this is: runs of four words are compared, and F1 is taken of the mean precision
and the mean recall of the pages. The pages are shown in two halves as well, chosen by a hash of their keys: rules were made for what was
wrong in the first. Seconds are CPU seconds of this process, from bytes to sections.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from pipeline.contracts import RawDocument, SourceItem
from pipeline.errors import Malformed
from pipeline.parse import parse

RUN = 4
"""Words that are compared together."""


@dataclass(frozen=True, slots=True)
class Score:
    """Of one page; None where there is nothing to take a share of."""

    key: str
    precision: float | None
    recall: float | None
    seconds: float

    @property
    def tuned(self) -> bool:
        """Of the half that rules were made for."""
        return hashlib.sha256(self.key.encode()).digest()[-1] % 2 == 0


def runs(text: str) -> Counter[tuple[str, ...]]:
    """Runs of words with their counts; a shorter text is one run."""
    words = re.findall(r"\w+", text)
    return Counter(tuple(words[start : start + RUN]) for start in range(max(1, len(words) - RUN + 1)) if words)


def compare(key: str, expected: str, found: str, seconds: float = 0.0) -> Score:
    """Score what was found for a page."""
    wanted, got = runs(expected), runs(found)
    right, extra, missed = (wanted & got).total(), (got - wanted).total(), (wanted - got).total()
    if not extra and not missed:
        return Score(key, 1.0 if right else None, 1.0 if right else None, seconds)
    return Score(key, right / (right + extra) if right + extra else None, right / (right + missed) if right + missed else None, seconds)


def figures(scores: Sequence[Score]) -> tuple[float, float, float]:
    """Mean precision, mean recall, and F1 of the two."""
    precision = statistics.mean(score.precision for score in scores if score.precision is not None)
    recall = statistics.mean(score.recall for score in scores if score.recall is not None)
    return precision, recall, 2 * precision * recall / (precision + recall)


def pages(folder: Path) -> Iterator[tuple[str, bytes, str]]:
    """(key, bytes of the page, its text as people see it)."""
    packed = folder / "ground-truth.json.gz"
    truth = json.loads(gzip.decompress(packed.read_bytes()) if packed.is_file() else (folder / "ground-truth.json").read_bytes())
    for key in sorted(truth):
        yield key, gzip.decompress((folder / "html" / f"{key}.html.gz").read_bytes()), truth[key].get("articleBody") or ""


def score(folder: Path, content: str = "article") -> list[Score]:
    """Parse every page as the parser of web sources does."""
    scores: list[Score] = []
    for key, data, expected in pages(folder):
        raw = RawDocument(SourceItem(key, path=f"{key}.html"), data, "", "text/html")
        started = time.process_time()
        try:
            found = parse(raw, {"content": content}).text
        except Malformed:
            found = ""
        scores.append(compare(key, expected, found, time.process_time() - started))
    return scores


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--content", default="article", choices=("article", "auto", "full"))
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="name the N pages that came out worst")
    given = parser.parse_args()
    scores = score(given.dataset, given.content)
    halves = [("all", scores), ("tuned on", [one for one in scores if one.tuned]), ("held out", [one for one in scores if not one.tuned])]
    for label, some in halves:
        precision, recall, f1 = figures(some)
        spent = sorted(one.seconds * 1e3 for one in some)
        cost = f"{statistics.mean(spent):5.1f} ms CPU a page, median {statistics.median(spent):.1f}, most {spent[-1]:.0f}"
        print(f"{label:<10} {len(some):>4} pages   precision {precision:.4f}  recall {recall:.4f}  F1 {f1:.4f}   {cost}")
    for one in sorted(scores, key=lambda one: (one.precision or 0.0) + (one.recall or 0.0))[: given.worst]:
        print(f"  {one.key}  precision {one.precision}  recall {one.recall}")


if __name__ == "__main__":
    main()
