"""The stores' contract suite once more, on the last 8.x server."""

from __future__ import annotations

import pytest

from tests.contract.test_stores import *  # noqa: F403


@pytest.fixture(scope="module")
def url(elasticsearch_8_url: str) -> str:
    return elasticsearch_8_url


del test_every_scheme_has_a_suite  # noqa: F821
