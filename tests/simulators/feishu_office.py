"""Office files as small as they may be: what an export hands out."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
RELATIONS = "application/vnd.openxmlformats-package.relationships+xml"
WORDS = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
CELLS = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"


def document(title: str, paragraphs: Sequence[str]) -> bytes:
    """A Word file: the title as a heading, then plain paragraphs."""
    heading = f'<w:p><w:pPr><w:pStyle w:val="Heading1"/></w:pPr><w:r><w:t xml:space="preserve">{escape(title)}</w:t></w:r></w:p>'
    text = "".join(f'<w:p><w:r><w:t xml:space="preserve">{escape(words)}</w:t></w:r></w:p>' for words in paragraphs)
    plain = '<w:style w:type="paragraph" w:default="1" w:styleId="Normal"><w:name w:val="Normal"/></w:style>'
    styles = f'{plain}<w:style w:type="paragraph" w:styleId="Heading1"><w:name w:val="heading 1"/></w:style>'
    main = "application/vnd.openxmlformats-officedocument.wordprocessingml"
    return _packed(
        "word/document.xml",
        f"{main}.document.main+xml",
        {
            "word/document.xml": f'<w:document xmlns:w="{WORDS}"><w:body>{heading}{text}</w:body></w:document>',
            "word/styles.xml": f'<w:styles xmlns:w="{WORDS}">{styles}</w:styles>',
        },
        {"word/styles.xml": f"{main}.styles+xml"},
        [("rId1", "styles", "styles.xml")],
    )


def workbook(pages: Mapping[str, Sequence[Sequence[Any]]]) -> bytes:
    """An Excel file: every cell a text."""
    main = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    names = {f"xl/worksheets/sheet{n}.xml": (title, rows) for n, (title, rows) in enumerate(pages.items(), 1)}
    listed = "".join(f'<sheet name="{escape(title)[:31]}" sheetId="{n}" r:id="rId{n}"/>' for n, title in enumerate(pages, 1))
    files = {name: f'<worksheet xmlns="{CELLS}"><sheetData>{"".join(map(_row, rows))}</sheetData></worksheet>' for name, (_, rows) in names.items()}
    files["xl/workbook.xml"] = f'<workbook xmlns="{CELLS}" xmlns:r="{OFFICE}"><sheets>{listed}</sheets></workbook>'
    related = [(f"rId{n}", "worksheet", f"worksheets/sheet{n}.xml") for n in range(1, len(pages) + 1)]
    return _packed("xl/workbook.xml", f"{main}.sheet.main+xml", files, dict.fromkeys(names, f"{main}.worksheet+xml"), related)


def _row(cells: Sequence[Any]) -> str:
    inner = "".join(f'<c t="inlineStr"><is><t>{escape(str(cell))}</t></is></c>' for cell in cells)
    return f"<row>{inner}</row>"


def _packed(main: str, kind: str, files: Mapping[str, str], kinds: Mapping[str, str], related: Sequence[tuple[str, str, str]]) -> bytes:
    parts = "".join(f'<Override PartName="/{name}" ContentType="{type_}"/>' for name, type_ in {main: kind, **kinds}.items())
    defaults = f'<Default Extension="rels" ContentType="{RELATIONS}"/><Default Extension="xml" ContentType="application/xml"/>'
    folder, _, name = main.rpartition("/")
    content = {
        "[Content_Types].xml": f'<Types xmlns="{PACKAGE}/content-types">{defaults}{parts}</Types>',
        "_rels/.rels": _relations([("rId1", "officeDocument", main)]),
        f"{folder}/_rels/{name}.rels": _relations(related),
        **files,
    }
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in content.items():
            archive.writestr(zipfile.ZipInfo(path), HEAD + text)
    return held.getvalue()


def _relations(related: Sequence[tuple[str, str, str]]) -> str:
    rows = "".join(f'<Relationship Id="{id_}" Type="{OFFICE}/{kind}" Target="{target}"/>' for id_, kind, target in related)
    return f'<Relationships xmlns="{PACKAGE}/relationships">{rows}</Relationships>'
