"""What every test may use: the real servers of tests/servers, and an account of what this machine lacks."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.servers import LACKING

# A gate must give the same verdict twice; new examples are for whoever works on the code.
settings.register_profile("gate", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("gate")

SERVERS = ("tests.servers.elasticsearch", "tests.servers.postgres", "tests.servers.rabbitmq", "tests.servers.redis", "tests.servers.s3")
pytest_plugins = [name for name in SERVERS if find_spec(name)]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--chaos-full", action="store_true", help="the long form of tests/chaos, as `make chaos` runs it")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full: only in the long form of tests/chaos")


ELASTICSEARCH = "elasticsearch_url", "elasticsearch_8_url"
"""Fixtures of servers that cost 15 CPU seconds each: of several test processes, one has them."""
DIRECTORIES = ("chaos", "integration", "journeys", "contract", "unit", "house")
"""What takes longest comes first, so that no process is left with it at the end."""


@cache
def heavy(path: Path) -> bool:
    return any(name in path.read_text(encoding="utf-8") for name in ELASTICSEARCH)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where processes share the tests between them, the order of files is chosen; within a file it stays random."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: (not heavy(item.path), DIRECTORIES.index(item.path.parent.name)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file stays whole, for what its tests share; what needs Elasticsearch stays together."""
    from xdist.scheduler.loadscope import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "elasticsearch" if heavy(config.rootpath / file) else file

    config.option.loadscopereorder = False
    return ByFile(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name and count the tests that were skipped for want of a server, apart from other skips."""
    counts: dict[str, int] = {}
    for report in terminalreporter.stats.get("skipped", []):
        if isinstance(report.longrepr, tuple):
            reason = str(report.longrepr[2]).removeprefix("Skipped: ")
            if reason.startswith(LACKING):
                counts[reason] = counts.get(reason, 0) + 1
    if counts:
        terminalreporter.section("not tested on this machine")
        for reason, number in sorted(counts.items()):
            terminalreporter.line(f"{number} skipped: {reason}")
