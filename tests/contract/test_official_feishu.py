"""The vendor's own client reads the simulated Feishu: it keeps the simulator, and with it every test of our connector, honest."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

from tests.servers import lacking
from tests.simulators.feishu import Feishu
from tests.simulators.feishu_blocks import bullet, heading, run, table, text
from tests.simulators.feishu_events import Sent
from tests.simulators.feishu_model import Table


def test_the_vendors_own_client_understands_the_simulator() -> None:
    if find_spec("lark_oapi") is None:
        lacking("the vendor's client of Feishu", "the package lark-oapi is not installed; use the extra dujiang[dev]")
    with Feishu() as feishu:
        made = populated(feishu)
        events = [feishu.events.challenge("word"), feishu.events.about(made["document"]), feishu.events.about(made["document"], key="another")]
        told = {name: getattr(one, "token", one) for name, one in made.items()} | {"events": [worded(event) for event in events]}
        command = [sys.executable, "-m", "tests.contract.official_feishu", feishu.url]
        done = subprocess.run(command, input=json.dumps(told), capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout)
    assert {tuple(row) for row in seen["files"]} >= {(told["document"], "docx", "Levels"), (told["sheet"], "sheet", "Datum")}
    assert len(seen["files"]) == 5 and len({row[0] for row in seen["files"]}) == 5
    assert seen["blocks"][:3] == [[1, 3], [3, 0], [12, 1]] and seen["cells"] == 4
    assert seen["words"] == ["Levels", "first", "inner ", "bold", "a", "b", "c", "d"]
    assert seen["revision"] == 2
    assert seen["nodes"] == [[told["page"], "docx", True]]
    assert seen["metas"] == [["Levels"], [[told["gone"], 970005]]]
    assert seen["pages"] == [["One", 200]]
    assert seen["records"] == [{"Name": [{"text": "R-07", "type": "text"}], "When": 1_772_294_400_000}]
    assert seen["medium"] == ["图.png", "picture"]
    assert seen["deleted"] == [False, 1770003]
    assert seen["heard"] == [[200, "word", []], [200, "", [told["document"]]], [500, "", []]]


def populated(feishu: Feishu) -> dict[str, Any]:
    """A folder of five things, of which one was deleted, and a wiki of two pages."""
    library = feishu.library
    folder = library.folder("Duty")
    blocks = [heading(1, "Levels"), bullet("first", text("inner ", run("bold", bold=True))), table([["a", "b"], ["c", "d"]])]
    document = library.edit(library.docx("Levels", [], folder), blocks)
    gone = library.docx("Old", [], folder)
    library.delete(gone)
    sheet = library.sheet("Datum", {"One": [["a", "b"]]}, folder)
    base = library.bitable("Gauges", [Table("tbl1", "T", [("Name", 1), ("When", 5)], [{"Name": "R-07", "When": 1_772_294_400_000}])], folder)
    library.file("a.txt", b"text", folder)
    library.shortcut(document, folder)
    space = library.space("Wiki")
    page = library.wiki(space, "Home")
    library.wiki(space, "Below", [], page)
    medium = library.medium(b"picture", "图.png")
    things: dict[str, Any] = {"folder": folder, "document": document, "gone": gone, "sheet": sheet, "base": base, "medium": medium}
    return things | {"space": space.id, "page": page.thing, "table": "tbl1"}


def worded(event: Sent) -> dict[str, Any]:
    return {"headers": dict(event.headers), "body": event.body.decode()}
