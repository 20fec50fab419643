"""What the demonstration's Feishu holds: the wiki of the Baisha River Gauge Cooperative, whose handbook lies in samples/handbook.

It says nothing that the handbook says otherwise, and a good deal that only the wiki knows: `QUESTIONS` are about that. All of it is invented.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

from tests.simulators import feishu_blocks as b
from tests.simulators.feishu_model import OWNER, Library, Page, Table, Thing

if TYPE_CHECKING:
    from tests.simulators.feishu import Feishu

QUESTIONS = (
    ("柳湾站的备用钥匙放在哪里？", "水泵房"),
    ("How often are the radios tested at night?", "every two hours"),
    ("石桥站水尺零点的高程是多少？", "281.36"),
    ("Why did Old Mill fall silent in October 2025?", "solar panel"),
    ("雷达水位计 R-07 现在是什么状态？", "待修"),
    ("What stands on the first line of a warning message?", "name of the station"),
)
"""Question, and what an answer to it must hold."""
DAY_MS = 86_400_000
MARCH_2026 = 1_772_294_400_000
"""Midnight of 1 March 2026 in China, in milliseconds."""


def fill(simulator: Feishu) -> None:
    """One wiki space in two languages, and a folder of what nobody has sorted yet."""
    library = simulator.library
    library.people |= {OWNER: "林守水", "ou_liumei": "刘梅", "ou_denghua": "邓华"}
    space = library.space("白沙河水位合作社 Baisha River Gauges")
    duty = library.wiki(space, "值班 Duty", [b.text("值班员先看这一页。Whoever is on duty reads this page first.")])
    rules = library.wiki(space, "水位报警怎么办", _alarm(), duty)
    library.wiki(space, "交接班清单", _handover(), duty)
    library.wiki(space, "Night rounds", _night(), duty)
    stations = library.wiki(space, "测站 Stations", [b.text("六个站，从上游到下游。Six stations, from the reservoir down to Nankou.")])
    levels, equipment = _levels(library), _equipment(library)
    library.wiki(space, "石桥站 Stone Bridge", _stone_bridge(library, levels.token), stations)
    library.wiki(space, "柳湾站 Willow Bend", _willow_bend(), stations)
    library.node(space, levels, stations)
    library.node(space, equipment, stations)
    library.wiki(space, "检修计划 Maintenance", _maintenance(equipment.token), stations)
    incidents = library.wiki(space, "事件 Incidents", [b.text("每件事写一页，当天写完。One page for each incident, on the same day.")])
    library.wiki(space, "2025-10 Old Mill falls silent", _old_mill(), incidents)
    library.wiki(space, "2026年7月14日 石桥站超过警戒水位", _july(library.things[rules.thing].token), incidents)
    library.alias(space, rules, incidents)
    archive = library.folder("归档 Archive")
    letter = library.docx("给十一个村的信", _letter(), archive)
    library.file("radio-channels.txt", b"Channel 4: stations.\nChannel 9: the reservoir. Answer there within one minute.\n", archive)
    library.other("mindnote", "站网草图", archive)
    library.shortcut(letter)


def _alarm() -> list[b.Block]:
    template = "站名 name of the station\n水位 level in metres, with two decimals\n时间 time of the reading\n值班员 who is calling"
    return [
        b.callout(b.text(b.run("先通知下游村庄，再报告县防汛办公室。", bold=True), "不得颠倒次序。")),
        b.heading(1, "三步 Three steps", b.text("一个人值班也照这个次序做。")),
        b.ordered("看相邻两个站的读数，排除仪器故障。", b.bullet("相差不到十厘米：当作真的。"), b.bullet("只有一个站跳动：请看守人读水尺。")),
        b.ordered("按下面的格式写好要说的话。"),
        b.ordered("打电话，并在值班簿上记下接听人。"),
        b.heading(2, "格式 Form of a warning message"),
        b.text("The first line holds the name of the station, and nothing else. 一条短信不超过六十个字。"),
        b.code(template),
        b.table(
            [["水位", "时限", "谁来打电话"], ["警戒水位", "十五分钟", "值班员"], ["危险水位", "五分钟", ""]],
            spans={(1, 2): (2, 1)},
        ),
    ]


def _handover() -> list[b.Block]:
    return [
        b.text("交班人和接班人一起做，缺一项都不算交接完成。"),
        b.todo("六个站的最新读数两人都看过", done=True),
        b.todo("值班簿签名", b.bullet("交班人先签，接班人后签")),
        b.todo("备用电台电量不低于百分之八十"),
        b.divider(),
        b.quote("没有签名，交班不算完成。"),
        b.text("清单由", b.person("ou_denghua"), "保管，每年三月改一次。"),
    ]


def _night() -> list[b.Block]:
    return [
        b.heading(1, "Between eight in the evening and eight in the morning"),
        b.text("The radios are tested ", b.run("every two hours", bold=True), ", on the even hours, on channel 4."),
        b.bullet("Say the code of the station, BS1 to BS6.", b.bullet("Wait ten seconds for an answer."), b.bullet("Try once more on channel 9.")),
        b.bullet("A station that stays silent is telephoned at once."),
        b.text("The duty room's lamp above the door stays on all night: villagers without a telephone come to the light."),
        b.grid(
            [b.heading(3, "Keep warm"), b.text("The stove takes charcoal only.")], [b.heading(3, "Stay awake"), b.text("Tea is in the blue tin.")]
        ),
    ]


def _levels(library: Library) -> Thing:
    rows = [
        ["站名 Station", "代码", "水尺零点高程（米）", "警戒水位（米）", "警戒高程（米）"],
        ["青山 Qingshan", "BS1", "305.10", "4.20", "309.30"],
        ["上渡 Upper Ford", "BS2", "293.44", "3.80", "297.24"],
        ["石桥 Stone Bridge", "BS3", "281.36", "5.50", "286.86"],
        ["柳湾 Willow Bend", "BS4", "272.05", "4.90", "276.95"],
        ["老磨坊 Old Mill", "BS5", "263.80", "4.40", "268.20"],
        ["南口 Nankou", "BS6", "254.97", "6.00", "260.97"],
    ]
    formulas = {(row, 4): f"=C{row + 1}+D{row + 1}" for row in range(1, 7)}
    notes = [["说明", ""], ["高程从一九八五国家高程基准起算。", "二〇二六年四月复测。"]]
    return library.sheet(
        "水尺零点 Gauge datum", [Page("datum1", "零点", rows, raw=formulas), Page("notes1", "说明", notes, merges=[(0, 0, 0, 1)])], loose=True
    )


def _equipment(library: Library) -> Thing:
    paper = library.medium(b"Checked on 2 March 2026: within 3 mm over the whole range.\n", "R-03 check.txt", kind="text/plain")
    rows = [
        {"编号": "R-03", "名称": "雷达水位计", "站": "石桥", "状态": "完好", "检定日期": MARCH_2026 + DAY_MS, "证书": [paper]},
        {"编号": "R-07", "名称": "雷达水位计", "站": "老磨坊", "状态": "待修", "检定日期": MARCH_2026 + 41 * DAY_MS},
        {"编号": "A-02", "名称": "电台", "站": "南口", "状态": "完好", "检定日期": MARCH_2026 + 3 * DAY_MS},
    ]
    fields = [("编号", 1), ("名称", 1), ("站", 3), ("状态", 3), ("检定日期", 5), ("证书", 17)]
    return library.bitable("仪器台账 Equipment", [Table("tblgauges1", "仪器", fields, rows)], loose=True)


def _stone_bridge(library: Library, datum: str) -> list[b.Block]:
    chart = library.medium(bars([3.1, 3.4, 4.2, 5.1, 5.62, 5.3, 4.4, 3.8]), "levels.png")
    return [
        b.text("石桥站在三孔石桥的中墩上，看守人是", b.person("ou_liumei"), "。The radar gauge hangs under the middle arch, on the downstream side."),
        b.heading(2, "零点 Datum"),
        b.sheet(datum, "datum1"),
        b.heading(2, "2026年7月"),
        b.image(chart.token, "Levels of 11 to 18 July 2026 at Stone Bridge, in metres"),
        b.text("流量按 ", b.formula("Q = 38.5 (H - 0.42)^{1.6}"), " 估算，水位超过六米时不再适用。"),
    ]


def _willow_bend() -> list[b.Block]:
    return [
        b.text("柳湾站的备用钥匙放在村口水泵房，挂在门后左边的钉子上。"),
        b.text("The path to the gauge floods first: from 4.60 m on, read the staff from the dike with the telescope, and never alone."),
        b.quotes(b.text("一九九八年，水先淹小路，再淹水尺。"), b.bullet("老看守人周凯的话")),
    ]


def _maintenance(base: str) -> list[b.Block]:
    return [
        b.text("每年三月和九月各检修一次，雨天顺延。Twice a year, in March and September; when it rains, the next dry day."),
        b.bitable(base, "tblgauges1"),
        b.table(
            [["月份", "站", "做什么"], ["三月", "石桥、南口", [b.text("清洗天线"), b.bullet("核对零点")]], ["九月", "青山、上渡", "换蓄电池"]],
        ),
        b.unknown(b.text("检修记录保存五年。")),
    ]


def _old_mill() -> list[b.Block]:
    lesson = b.synced(b.text("Lesson: the panels of all stations are wiped on the first Monday of every month."))
    lesson.id = "blkoldmilllesson"
    return [
        b.text("On 11 October 2025 Old Mill sent nothing for nine hours. Leaves had covered the solar panel, and the battery ran empty at 03:40."),
        b.text("Qin Fang read the staff every half hour until noon. The river stayed below 2.10 m all that time."),
        lesson,
    ]


def _july(rules: str) -> list[b.Block]:
    return [
        b.text("14:20，石桥站水位5.50米，达到警戒水位。值班员14:27通知了下游三个村，用时七分钟。"),
        b.text("16:05，最高水位5.62米，之后回落。办法见", b.mention(rules, "水位报警怎么办", f"https://waterworks.feishu.cn/docx/{rules}"), "。"),
        b.equation("\\Delta H = 5.62 - 5.50 = 0.12"),
        b.text(b.run("教训：", bold=True), "河口村的电话占线，改由邻村骑车送信，晚了四分钟。"),
    ]


def _letter() -> list[b.Block]:
    return [
        b.text("各位乡亲："),
        b.text("从二〇二六年起，每月十五日上午十点试鸣警报一次，听到后不必转移。"),
        b.text("We test the sirens on the fifteenth of every month at ten in the morning. Nobody needs to leave then."),
    ]


def bars(levels: list[float], scale: int = 20) -> bytes:
    """A bar chart as a PNG image, drawn without a library: one bar a level, `scale` pixels a metre."""
    height, width = round(max(levels) * scale) + 4, 16 * len(levels)
    lines: list[bytes] = []
    for y in range(height):
        filled = [(height - y) <= round(level * scale) for level in levels]
        row = b"".join((b"\x1f\x6f\x8b" if full and 3 <= x else b"\xff\xff\xff") for full in filled for x in range(16))
        lines.append(b"\0" + row)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(b"".join(lines))) + _chunk(b"IEND", b"")


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
