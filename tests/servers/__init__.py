"""Real servers for the tests, each started by a module of its own and stopped with the test process."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

LACKING = "this machine lacks "
"""How the reason of such a skip begins; the terminal summary counts by it."""


class Lacking(Exception):
    """The machine has not got what a server needs; the message says what and how to get it."""


def lacking(what: str, reason: str) -> NoReturn:
    """Skip the test, naming what is missing; fail instead where the environment variable CI is set.

    DUJIANG_TESTS_MAY_LACK holds words, parted by semicolons, of reasons that `.ci/run` has found to be no fault of the machine's set-up.
    """
    message = f"{LACKING}{what}: {reason}"
    excused = [words for words in os.environ.get("DUJIANG_TESTS_MAY_LACK", "").split(";") if words]
    if os.environ.get("CI") and not any(words in message for words in excused):
        pytest.fail(message, pytrace=False)
    pytest.skip(message)
