"""What `make demo SOURCE=feishu` shows."""

from __future__ import annotations

from tests.simulators import feishu_blocks as b
from tests.simulators.demonstrations import Demonstration
from tests.simulators.feishu import APP_ID, APP_SECRET, Feishu, library
from tests.simulators.feishu_model import Thing
from tests.simulators.served import Clock


def _make() -> Feishu:
    return library(Feishu(Clock(real=True)))


def _titled(simulator: Feishu, title: str) -> Thing:
    return next(thing for thing in simulator.library.things.values() if thing.title == title)


def _change(simulator: Feishu) -> str:
    night, silent = _titled(simulator, "Night rounds"), _titled(simulator, "2025-10 Old Mill falls silent")
    simulator.library.edit(night, [b.text("The radios are tested ", b.run("every hour", bold=True), " at night, on channel 4.")])
    simulator.library.delete(silent)
    return f"somebody changes the page {night.title} (the radios are now tested every hour) and deletes the page {silent.title}."


DEMONSTRATION = Demonstration(
    "Feishu (飞书) as a simulator plays it: the wiki of a river cooperative, with sheets, a base and a folder.",
    _make,
    lambda simulator: {"base_url": simulator.url, "app_id": APP_ID, "wiki_space": "all"},
    lambda simulator: {"app_secret": ("FEISHU_APP_SECRET", APP_SECRET)},
    ("柳湾站的备用钥匙放在哪里？", "What stands on the first line of a warning message?"),
    _change,
    "How often are the radios tested at night?",
)
