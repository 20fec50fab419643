"""Main content on real pages whose text is known; the pages are not part of the repository."""

from __future__ import annotations

import pytest

from bench.articles import compare, figures, score
from tests.contract.parser_vectors import DATA

PAGES = DATA / "article-extraction"


def test_the_main_content_of_real_pages_is_found() -> None:
    """Also on the half of them that no rule was made for."""
    if not PAGES.is_dir():
        pytest.skip(f"no test data: {PAGES} (set DUJIANG_TEST_DATA)")
    scores = score(PAGES)
    assert figures(scores)[2] >= 0.96
    assert figures([one for one in scores if not one.tuned])[2] >= 0.955


def test_the_measure_counts_runs_of_words() -> None:
    assert figures([compare("a", "one two three four five", "one two three four five")])[2] == 1.0
    half = compare("a", "one two three four five six seven eight", "one two three four five")
    assert (half.precision, half.recall) == (1.0, 0.4)
    assert compare("a", "one", "").recall == 0.0 and compare("a", "one", "").precision is None
