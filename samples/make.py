"""Makes the four sample documents that no text editor should: PDF, DOCX, XLSX and the GB18030 text.

``python samples/make.py [FOLDER]`` writes them into FOLDER (default: samples/handbook), the same bytes every time.
"""

from __future__ import annotations

import io
import sys
import zipfile
from datetime import datetime
from pathlib import Path

DAY = datetime(2026, 8, 3, 9, 0, 0)  # noqa: DTZ001 - Office properties carry no zone

FLOOD = """历史洪水

白沙河有记录以来最大的一次洪水发生在1998年8月。

8月19日起，上游连降三天大雨，三日雨量达到312毫米。8月20日夜里，青山水库开闸放水。
1998年8月21日凌晨四点，石桥站的水位升到7.84米，这是建站以来的最高值。
当时的危险水位是6.80米，石桥站的水位超过危险水位达十九个小时。
下游柳湾、老磨坊和南口三处的农田被淹，共一千四百亩，没有人员死亡。

那时只有石桥和南口两处有人读水尺，没有雷达水位计，也没有电台。
消息靠人骑自行车送到下游，走了两个多小时，水比消息先到。
这次洪水之后，各村商定要建自己的水位站；2009年，十一个村成立了白沙河水位合作社。

第二大洪水发生在2013年7月9日，石桥站最高水位6.21米，没有超过危险水位。
2026年7月14日，石桥站最高水位5.62米，刚刚超过警戒水位5.50米。
"""

CARE = (
    (
        "Care of the gauges",
        (
            "This leaflet tells the keepers of the Baisha River Gauge Cooperative how to check a gauge and what to replace.",
            "1. Monthly check",
            "On the first Monday of each month the keeper reads the staff gauge and the radar gauge at the same minute. "
            "The two may differ by 2 cm. If they differ by more, the keeper reads both again after ten minutes.",
            "If the second pair also differs by more than 2 cm, the radar gauge is calibrated on the same day, "
            "and the staff gauge alone counts until then.",
            "2. Calibration",
            "A calibration takes three pairs of readings, at least one hour apart, with the river rising or falling. "
            "The mean difference becomes the new offset, and it is written into the station's log with the keeper's name.",
            "Every radar gauge is calibrated at least once a year, in April, before the season of high water.",
        ),
    ),
    (
        "Parts and their lives",
        (
            "3. Batteries",
            "The battery of a radar gauge is replaced every 18 months, whatever voltage it shows.",
            "The battery of the radio lasts longer, because a solar panel charges it: it is replaced every 4 years.",
            "Old batteries go back to the store in Nankou, in their box. They never go into the river or the stove.",
            "4. Cables and seals",
            "The seal of the housing is renewed together with the battery. A cable is replaced when its sheath is cracked.",
            "5. Staff gauge",
            "The plates of the staff gauge are washed after each flood and repainted every 6 years.",
        ),
    ),
)

EQUIPMENT = (
    ("Item", "Model", "Owned", "Battery replaced every"),
    ("Radar gauge", "RG-4", "8", "18 months"),
    ("Radio", "VX-20", "7", "4 years"),
    ("Staff gauge plate, 1 m", "SP-100", "54", "none"),
    ("Solar panel, 20 W", "SL-20", "6", "none"),
    ("Hand lamp", "HL-2", "9", "1 year"),
)

STATIONS = (
    ("Code", "Station", "站名", "River km", "Installed", "Keeper"),
    ("BS1", "Qingshan", "青山", 0, 2010, "He Wenbo"),
    ("BS2", "Upper Ford", "上渡", 11, 2010, "Tan Li"),
    ("BS3", "Stone Bridge", "石桥", 23, 2009, "Liu Mei"),
    ("BS4", "Willow Bend", "柳湾", 36, 2012, "Zhou Kai"),
    ("BS5", "Old Mill", "老磨坊", 49, 2012, "Qin Fang"),
    ("BS6", "Nankou", "南口", 62, 2009, "Deng Hua"),
)

PEAKS = (
    ("Date", "Station", "站名", "Peak level, m"),
    ("1998-08-21", "Stone Bridge", "石桥", 7.84),
    ("2013-07-09", "Stone Bridge", "石桥", 6.21),
    ("2026-07-14", "Stone Bridge", "石桥", 5.62),
)


def flood() -> bytes:
    return FLOOD.encode("gb18030")


def care() -> bytes:
    """Two A4 pages, uncompressed, without a date or a random id."""
    from reportlab.lib.pagesizes import A4
    from reportlab.lib.utils import simpleSplit
    from reportlab.pdfgen.canvas import Canvas

    out = io.BytesIO()
    canvas = Canvas(out, pagesize=A4, pageCompression=0, invariant=1)
    canvas.setTitle("Care of the gauges")
    canvas.setAuthor("Baisha River Gauge Cooperative")
    for number, (title, paragraphs) in enumerate(CARE, start=1):
        y = A4[1] - 80
        canvas.setFont("Helvetica-Bold", 18)
        canvas.drawString(72, y, title)
        y -= 34
        for paragraph in paragraphs:
            heading = paragraph[0].isdigit()
            font, size = ("Helvetica-Bold", 13) if heading else ("Helvetica", 11)
            canvas.setFont(font, size)
            for line in simpleSplit(paragraph, font, size, A4[0] - 144):
                canvas.drawString(72, y, line)
                y -= 16
            y -= 8
        canvas.setFont("Helvetica", 9)
        canvas.drawCentredString(A4[0] / 2, 40, f"page {number} of {len(CARE)}")
        canvas.showPage()
    canvas.save()
    return out.getvalue()


def equipment() -> bytes:
    from docx import Document

    document = Document()
    properties = document.core_properties
    properties.author, properties.title = "Baisha River Gauge Cooperative", "Equipment"
    properties.created = properties.modified = DAY
    document.add_heading("Equipment", level=1)
    document.add_paragraph(
        "The list is taken on the last day of July. Each of the six stations has one radar gauge, one radio and one solar panel; "
        "the rest is kept in the store in Nankou."
    )
    document.add_heading("What we own", level=2)
    table = document.add_table(rows=0, cols=len(EQUIPMENT[0]))
    for row in EQUIPMENT:
        for cell, text in zip(table.add_row().cells, row, strict=True):
            cell.text = text
    document.add_heading("Lending", level=2)
    document.add_paragraph("Only hand lamps are lent, for one night, against a signature in the duty book.")
    out = io.BytesIO()
    document.save(out)
    return stable(out.getvalue())


def stations() -> bytes:
    from openpyxl import Workbook

    book = Workbook()
    book.properties.creator = "Baisha River Gauge Cooperative"
    book.properties.created = book.properties.modified = DAY
    first = book.active
    assert first is not None
    first.title = "Stations"
    second = book.create_sheet("Peaks")
    for sheet, rows in ((first, STATIONS), (second, PEAKS)):
        for row in rows:
            sheet.append(row)
    out = io.BytesIO()
    book.save(out)
    return stable(out.getvalue())


def stable(package: bytes) -> bytes:
    """The same Office package with sorted members, one date, and the time of saving set back to DAY."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(package)) as source, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as target:
        for name in sorted(source.namelist()):
            data = source.read(name)
            if name == "docProps/core.xml":
                data = _set_back(data)
            info = zipfile.ZipInfo(name, date_time=(2026, 8, 3, 9, 0, 0))
            info.external_attr = 0o644 << 16
            target.writestr(info, data, zipfile.ZIP_DEFLATED, compresslevel=9)
    return out.getvalue()


def _set_back(core: bytes) -> bytes:
    import re

    return re.sub(rb"(<dcterms:modified[^>]*>)[^<]*", rb"\g<1>" + DAY.strftime("%Y-%m-%dT%H:%M:%SZ").encode(), core)


FILES = {"历史洪水.txt": flood, "gauge-care.pdf": care, "equipment.docx": equipment, "stations.xlsx": stations}


def main(folder: Path) -> None:
    for name, make in FILES.items():
        (folder / name).write_bytes(make())


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "handbook")
