"""Kill points drawn from a seed: who dies and when is left to chance, and nothing may come of it.

    DUJIANG_CHAOS_SEED=123 pytest tests/chaos/test_killed_at_random.py

has the same points again.
"""

from __future__ import annotations

import random
import time

import pytest

from tests.chaos.conftest import seed
from tests.chaos.proof import Begin
from tests.chaos.strikes import VICTIMS, Point, points, recovered
from tests.system import LOOK_S, System, until

SHORT, LONG = 6, 50
SEED = seed()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    number = LONG if metafunc.config.getoption("--chaos-full") else SHORT
    metafunc.parametrize("point", [pytest.param(point, id=f"seed {SEED}, {n}, {point}") for n, point in enumerate(points(SEED, number))])


def test_a_kill_at_any_moment_costs_nothing(system: System, begin: Begin, point: Point, request: pytest.FixtureRequest) -> None:
    print(f"DUJIANG_CHAOS_SEED={SEED}: {point}")
    tenant = f"point-{request.node.callspec.id.split(', ')[1]}"
    trial = begin(system, tenant)
    began = time.monotonic()
    until(lambda: point.come(system, tenant, began), 60.0, f"the moment comes: {point}", pause_s=LOOK_S)
    VICTIMS[point.victim](system, random.Random(SEED))
    trial.prove()
    recovered(system)
