"""What every test may use: the real servers of tests/servers, and an account of what this machine lacks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec

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


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Where processes share the tests between them (`--dist loadgroup`), a file stays whole. Within it the order stays random."""
    if not hasattr(config, "workerinput"):
        return (yield)
    heavy = {path for path in {item.path for item in items} if any(name in path.read_text(encoding="utf-8") for name in ELASTICSEARCH)}
    for item in items:
        item.add_marker(pytest.mark.xdist_group("elasticsearch" if item.path in heavy else str(item.path)))
    result = yield
    items.sort(key=lambda item: (item.path not in heavy, DIRECTORIES.index(item.path.parent.name)))
    return result


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
