"""What the demonstration's Yuque holds: two books of a gauging station."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.simulators.demonstrations import Demonstration
from tests.simulators.served import Clock

if TYPE_CHECKING:
    from tests.simulators.yuque import Yuque


def fill(simulator: Yuque) -> None:
    """A handbook in Markdown with a sheet, a data table and a board; a book of records."""
    simulator.book(101, "值班手册", "handbook")
    simulator.write(101, 1, "交接班", "# 交接班\n\n交班时必须当面核对水位、雨量和闸门开度，三项都签字后才算完成。\n\n夜班从二十点到次日八点。")
    simulator.write(101, 2, "闸门操作", "# 闸门操作\n\n闸门一次开启不得超过半米，间隔至少十分钟。\n\n$Q = \\mu b e \\sqrt{2gH}$")
    levels = [["站名", "警戒水位", "保证水位"], ["石桥", "6.20", "7.00"], ["南湾", "5.80", "6.60"]]
    sheet = {"version": "3.5.5", "data": [{"name": "水位", "rowCount": 3, "colCount": 3, "table": levels}]}
    simulator.write(101, 3, "警戒水位", kind="Sheet", detail={"format": "lakesheet", "body_sheet": sheet, "body": ""})
    records = [record(["雷达水位计", "完好", "2026-03-01"]), record(["翻斗雨量计", "待修", "2026-04-12"])]
    table = {"columns": [{"name": "仪器"}, {"name": "状态"}, {"name": "检定日期"}], "totalCount": 2, "records": records}
    simulator.write(101, 4, "仪器台账", kind="Table", detail={"format": "lake", "body_table": table})
    simulator.write(101, 5, "站网图", kind="Board", detail={"format": "lakeboard", "body": ""})
    contents: list[dict[str, Any]] = [{"type": "TITLE", "title": "日常", "level": 0, "uuid": "a"}]
    contents += [{"type": "DOC", "title": t, "doc_id": n, "level": 1, "uuid": str(n)} for n, t in ((1, "交接班"), (2, "闸门操作"))]
    contents += [{"type": "DOC", "title": "警戒水位", "doc_id": 3, "level": 0, "uuid": "3"}]
    simulator.books[101].contents = contents
    simulator.book(102, "历史洪水", "floods")
    simulator.write(102, 21, "1998年洪水", "# 1998年洪水\n\n8月21日凌晨四点，石桥站水位7.84米，为建站以来最高。")
    simulator.write(102, 22, "2016年洪水", "# 2016年洪水\n\n7月2日，南湾站水位6.91米。")
    simulator.write(
        102, 23, "Flood marks", "# Flood marks\n\nThe mark of the flood of 1954 is cut into the third pier of the bridge, 8.10 metres above zero."
    )


def _make() -> Yuque:
    from tests.simulators.yuque import Yuque

    made = Yuque(Clock(real=True))
    fill(made)
    return made


def _change(simulator: Yuque) -> str:
    with simulator.lock:
        simulator.write(101, 1, "交接班", "# 交接班\n\n交班时必须当面核对水位、雨量和闸门开度，三项都签字后才算完成。\n\n夜班从二十二点到次日六点。")
        simulator.delete(102, 22)
    return "somebody changes the page 交接班 (the night shift now begins at 22:00) and deletes the page 2016年洪水."


DEMONSTRATION = Demonstration(
    "Yuque (语雀) as a simulator plays it: two books of a gauging station, with a sheet, a data table and a board.",
    _make,
    lambda simulator: {"base_url": simulator.url, "user_id": simulator.login},
    lambda simulator: {"token": ("YUQUE_TOKEN", simulator.token)},
    ("1998年洪水时石桥站的最高水位是多少？", "Where is the mark of the flood of 1954?"),
    _change,
    "夜班从几点到几点？",
)


def record(values: list[Any]) -> dict[str, Any]:
    """One row of a data table."""
    return {"id": str(abs(hash(str(values)))), "values": [{"value": value} for value in values]}
