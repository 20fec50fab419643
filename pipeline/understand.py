"""What a question asks for, before anything is searched. No model is called here."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pipeline import text, tuning
from pipeline.contracts import Question
from pipeline.errors import BadRequest

LONGEST_QUESTION = 8_000
"""Characters; longer texts are documents, not questions."""
MOST_HITS = 1_000
UNSPACED = re.compile(r"[\u3005-\u3007\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7a3\U00020000-\U0003ffff]+")
"""Han, kana and Hangul."""


@dataclass(frozen=True, slots=True)
class Understood:
    """A checked question with its search terms."""

    question: Question
    """With surrounding blanks removed from its text."""
    language: str
    """zh, ja, ko, en or empty, by script."""
    words: tuple[str, ...]
    grams: tuple[str, ...]

    @property
    def terms(self) -> tuple[str, ...]:
        """Distinct words and grams, in order."""
        return tuple(dict.fromkeys(self.words + self.grams))


def understand(question: Question) -> Understood:
    """Check a question and find its terms.

    Raises: BadRequest naming the field when the question cannot be asked.
    """
    asked = question.text.strip()
    _check(question, asked)
    words, grams = text.query_terms(asked)
    return Understood(replace(question, text=asked), text.language(asked), words, grams)


def informativeness(chunks: int, frequencies: Mapping[str, int], terms: tuple[str, ...]) -> dict[str, float]:
    """Weight of each term: ``ln(1 + (N - df + 0.5) / (df + 0.5))``, most for a term that stands in no chunk.

    Args:
        chunks: N, the size of the collection in chunks.
        frequencies: df, chunks that hold the term; absent means 0.
    """
    return {term: math.log1p(max(0.0, chunks - (df := frequencies.get(term, 0)) + 0.5) / (df + 0.5)) for term in terms}


def coverage(weights: Mapping[str, float], passage: str) -> float:
    """Share of the question's informative terms that a passage holds, weighted, in [0, 1]; 0 when there are none.

    Terms of scripts without blanks are looked for as they stand, so that nothing has to be segmented; others by their stems.
    """
    total = sum(weights.values())
    if total <= 0.0:
        return 0.0
    folded = text.fold(passage)
    stems = frozenset(" ".join(text.terms(UNSPACED.sub(" ", passage))).split()) if any(map(str.isascii, weights)) else frozenset[str]()
    held = sum(weight for term, weight in weights.items() if term in stems or (not term.isascii() and term in folded))
    return min(held / total, 1.0)


def _check(question: Question, asked: str) -> None:
    if not asked:
        raise BadRequest("the question is empty", pointer="/text", hint="Ask something.", code="empty_question")
    if len(asked) > LONGEST_QUESTION:
        raise BadRequest(f"the question has {len(asked)} characters, the most is {LONGEST_QUESTION}", pointer="/text", code="question_too_long")
    if not question.collections:
        raise BadRequest("no collection is named", pointer="/collections", hint="Name at least one collection.", code="no_collection")
    if not 1 <= question.k <= MOST_HITS:
        raise BadRequest(f"k is {question.k}, it must lie in 1 to {MOST_HITS}", pointer="/k", code="bad_k")
    if question.score_threshold is not None and not 0.0 <= question.score_threshold <= 1.0:
        raise BadRequest(f"score_threshold is {question.score_threshold}, it must lie in 0 to 1", pointer="/score_threshold", code="bad_threshold")
    if question.lexical_weight is not None and not 0.0 <= question.lexical_weight <= 1.0:
        raise BadRequest(f"lexical_weight is {question.lexical_weight}, it must lie in 0 to 1", pointer="/lexical_weight", code="bad_threshold")
    tuning.check(question.merge, question.widen)
    if question.as_of is not None and question.as_of.tzinfo is None:
        raise BadRequest("as_of has no time zone", pointer="/as_of", hint="Write it as 2026-11-30T09:00:00+08:00.", code="naive_time")
