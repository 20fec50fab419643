"""A simulated site as a source of a running system."""

from __future__ import annotations

from tests.simulators.web import Web
from tests.system import System
from workers.views import RunView


def crawl(system: System, web: Web, name: str, **options: str) -> RunView:
    given = {"entry_url": web.address(path="/"), "delay_s": "0", **options}
    system.platform.sources.create(name, "web", name, options=given)
    return sync(system, name)


def sync(system: System, name: str) -> RunView:
    return system.finish(system.platform.sources.sync(name))
