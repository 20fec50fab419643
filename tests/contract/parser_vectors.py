"""One small document per media type, made here, that says the same things: a heading, a sentence, a table."""

from __future__ import annotations

import io
import json
import os
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pipeline.contracts import RawDocument, SourceItem
from pipeline.identity import content_hash
from pipeline.parse.magic import DOCX, ODS, PDF, VENDOR, XLS, XLSX

DATA = Path(os.environ.get("DUJIANG_TEST_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
SENTENCE = "Li Bing built the weir."
ROWS = (("Item", "Litres"), ("Fish mouth", "120"), ("沙堰", "7"))


def raw(data: bytes, name: str, *, media_type: str = "") -> RawDocument:
    """A document as a connector hands it over."""
    return RawDocument(SourceItem(f"file:///docs/{name}", path=f"/docs/{name}"), data, content_hash(data), media_type)


def real(name: str) -> RawDocument:
    """A file of the shared test data."""
    path = DATA / "files" / name
    if not path.is_file():
        pytest.skip(f"no test data: {path} (set DUJIANG_TEST_DATA)")
    return raw(path.read_bytes(), name)


def docx(*, title: str = "") -> bytes:
    from docx import Document

    document = Document()
    document.core_properties.title = title
    document.add_heading("Weir", 1)
    document.add_paragraph(SENTENCE)
    table = document.add_table(rows=0, cols=2)
    for row in ROWS:
        cells = table.add_row().cells
        cells[0].text, cells[1].text = row
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def xlsx() -> bytes:
    from openpyxl import Workbook

    book = Workbook()
    sheet = book.active
    assert sheet is not None
    sheet.title = "Weir"
    sheet.append([SENTENCE])
    for name, litres in ROWS:
        sheet.append([name, int(litres) if litres.isdigit() else litres])
    out = io.BytesIO()
    book.save(out)
    return out.getvalue()


def ods() -> bytes:
    rows = "".join(
        "<table:table-row>"
        + "".join(f'<table:table-cell office:value-type="string"><text:p>{cell}</text:p></table:table-cell>' for cell in row)
        + "</table:table-row>"
        for row in ((SENTENCE,), *ROWS)
    )
    spaces = " ".join(f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"' for name in ("office", "table", "text"))
    body = f'<office:body><office:spreadsheet><table:table table:name="Weir">{rows}</table:table></office:spreadsheet></office:body>'
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as container:
        container.writestr("mimetype", ODS)
        container.writestr("content.xml", f'<?xml version="1.0"?><office:document-content {spaces}>{body}</office:document-content>')
        container.writestr("META-INF/manifest.xml", '<?xml version="1.0"?><manifest/>')
    return out.getvalue()


def pdf(pages: int = 1, *, password: str = "", owner: str = "") -> bytes:
    from reportlab.lib.pdfencrypt import StandardEncryption
    from reportlab.pdfgen.canvas import Canvas

    out = io.BytesIO()
    lock = StandardEncryption(password, ownerPassword=owner or "owner") if password or owner else None
    canvas = Canvas(out, pagesize=(300, 400), encrypt=lock)
    for number in range(1, pages + 1):
        canvas.setFont("Helvetica-Bold", 18)
        canvas.drawString(40, 350, f"Weir {number}")
        canvas.setFont("Helvetica", 10)
        canvas.drawString(40, 310, SENTENCE)
        canvas.drawString(40, 297, "It still works after all these years of floods, and silt is washed out.")
        for index, row in enumerate(ROWS[:2]):
            canvas.drawString(40, 250 - 14 * index, f"{row[0]} {row[1]}")
        canvas.showPage()
    canvas.save()
    return out.getvalue()


def blank_pdf() -> bytes:
    from reportlab.pdfgen.canvas import Canvas

    out = io.BytesIO()
    canvas = Canvas(out)
    canvas.rect(10, 10, 50, 50)
    canvas.showPage()
    canvas.save()
    return out.getvalue()


def vendor(media_type: str) -> dict[str, Any]:
    """What a connector keeps of a vendor's answers."""
    rows = [list(row) for row in ROWS]
    if media_type == "application/vnd.yuque.document+json":
        table = "\n".join(["| Item | Litres |", "|---|---|", *(f"| {a} | {b} |" for a, b in ROWS[1:])])
        return {"id": 1, "type": "Doc", "format": "markdown", "title": "Weir", "body": f"# Weir\n\n{SENTENCE}\n\n{table}\n"}
    if media_type == "application/vnd.feishu.sheet+json":
        return {"title": "Weir", "sheets": [{"title": "Weir", "values": [[*rows[0], "Said"], [*rows[1], SENTENCE], [*rows[2], ""]]}]}
    if media_type == "application/vnd.feishu.bitable+json":
        fields = [{"field_name": name, "type": 1} for name in (*ROWS[0], "Said")]
        records = [{"fields": {"Item": a, "Litres": b, "Said": [{"type": "text", "text": SENTENCE}] if b == "120" else None}} for a, b in ROWS[1:]]
        return {"title": "Weir", "tables": [{"name": "Weir", "fields": fields, "records": records}]}
    return {"document": {"document_id": "d", "title": "Weir"}, "blocks": feishu_blocks()}


def feishu_blocks() -> list[dict[str, Any]]:
    def run(text: str) -> dict[str, Any]:
        return {"elements": [{"text_run": {"content": text, "text_element_style": {}}}]}

    names = [f"c{n}" for n in range(6)]
    shape = {"row_size": 3, "column_size": 2, "header_row": True, "merge_info": [{"row_span": 1, "col_span": 1}] * 6}
    blocks: list[dict[str, Any]] = [
        {"block_id": "d", "block_type": 1, "page": run("Weir"), "children": ["s", "t"]},
        {"block_id": "s", "parent_id": "d", "block_type": 2, "text": run(SENTENCE)},
        {"block_id": "t", "parent_id": "d", "block_type": 31, "table": {"cells": names, "property": shape}, "children": names},
    ]
    for name, text in zip(names, [cell for row in ROWS for cell in row], strict=True):
        blocks.append({"block_id": name, "parent_id": "t", "block_type": 32, "table_cell": {}, "children": [f"{name}t"]})
        blocks.append({"block_id": f"{name}t", "parent_id": name, "block_type": 2, "text": run(text)})
    return blocks


@cache
def sample(media_type: str) -> RawDocument:
    """The document of a media type, under a fitting name: the same bytes each time, though zip files hold the time they were made."""
    lines = {"text/csv": ",", "text/tab-separated-values": "\t"}
    match media_type:
        case "text/markdown":
            table = "\n".join([f"| {ROWS[0][0]} | {ROWS[0][1]} |", "|---|---:|", *(f"| {a} | {b} |" for a, b in ROWS[1:])])
            return raw(f"# Weir\n\n{SENTENCE}\n\n{table}\n".encode(), "weir.md")
        case "text/plain":
            return raw(f"Weir\r\n\r\n{SENTENCE}\r\n\r\nFish mouth 120\r\n".encode("utf-16"), "weir.txt")
        case "text/html":
            table = "".join(f"<tr><td>{a}<td>{b}" for a, b in ROWS)
            return raw(f"<html><body><nav>Home</nav><h1>Weir</h1><p>{SENTENCE}</p><table>{table}</table></body></html>".encode(), "weir.html")
        case "text/csv" | "text/tab-separated-values":
            rows = (("Item", "Litres", "Said"), (*ROWS[1], SENTENCE), (*ROWS[2], ""))
            suffix = "csv" if media_type == "text/csv" else "tsv"
            return raw("\n".join(lines[media_type].join(row) for row in rows).encode("gb18030"), f"weir.{suffix}")
        case "application/json":
            return raw(b'{"Weir": {"said": "Li Bing built the weir.", "Fish mouth": {"Litres": 120}}}', "weir.json")
        case "application/jsonl":
            return raw(b'{"name": "Weir", "said": "Li Bing built the weir."}\n{"name": "Fish mouth", "Litres": 120}\n', "weir.jsonl")
        case _:
            pass
    if media_type in VENDOR:
        return raw(json.dumps(vendor(media_type)).encode(), "weir", media_type=media_type)
    if media_type == DOCX:
        return raw(docx(), "weir.docx")
    if media_type == XLSX:
        return raw(xlsx(), "weir.xlsx")
    if media_type == ODS:
        return raw(ods(), "weir.ods")
    if media_type == PDF:
        return raw(pdf(), "weir.pdf")
    assert media_type == XLS, f"no sample for {media_type}"
    return real("xls_formats.xls")
