"""What tests of sources share; the running system is each module's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.feishu_sync import Source, Tenant
from tests.feishu_sync import tenant as simulated
from tests.simulators.feishu import Feishu
from tests.simulators.served import Clock
from tests.simulators.web import Web
from tests.system import System


@pytest.fixture
def name(tmp_path: Path) -> str:
    """Of a source and its collection: the test's own."""
    return tmp_path.name[-60:].lstrip("_")


@pytest.fixture
def feishu(system: System, name: str) -> Iterator[Feishu]:
    with simulated(system, name) as simulator:
        yield simulator


@pytest.fixture
def source(system: System, feishu: Feishu, name: str) -> Source:
    """Made when the library is filled."""
    return lambda **options: Tenant(feishu, system, name, **options)


@pytest.fixture
def web() -> Iterator[Web]:
    with Web(Clock(real=True)) as simulator:
        yield simulator
