"""The platform in memory stays what the façade is."""

from __future__ import annotations

import inspect

import pytest

from tests.fakes_platform import FakePlatform
from workers.dispatch import Platform

METHODS = [name for name, member in inspect.getmembers(Platform, inspect.isfunction) if not name.startswith("_")]


@pytest.mark.parametrize("name", METHODS)
def test_the_platform_in_memory_takes_what_the_real_one_takes(name: str) -> None:
    real, fake = (inspect.signature(getattr(kind, name)) for kind in (Platform, FakePlatform))
    assert [(p.name, p.kind, p.default is p.empty) for p in fake.parameters.values()] == [
        (p.name, p.kind, p.default is p.empty) for p in real.parameters.values()
    ]
