"""What the demonstration's Feishu holds: the wiki of the Baisha River Gauge Cooperative."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulators.feishu_blocks import heading, text

if TYPE_CHECKING:
    from tests.simulators.feishu import Feishu


def fill(simulator: Feishu) -> None:
    """A wiki of two pages."""
    space = simulator.library.space("白沙河水位合作社")
    home = simulator.library.wiki(space, "首页", [text("六个站沿河六十二公里。")])
    simulator.library.wiki(space, "交接班", [heading(2, "夜班"), text("夜班从晚上八点开始。")], home)
