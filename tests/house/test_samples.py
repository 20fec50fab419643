"""The sample documents are what their generator makes, and say what the README promises."""

from __future__ import annotations

import io
import runpy
import zipfile
from collections.abc import Callable

import pytest

from tests.house.tree import ROOT

FILES: dict[str, Callable[[], bytes]] = runpy.run_path(str(ROOT / "samples/make.py"))["FILES"]


def content(data: bytes) -> bytes | dict[str, bytes]:
    """Office packages by member: how hard they are packed differs between builds of zlib."""
    if not data.startswith(b"PK"):
        return data
    with zipfile.ZipFile(io.BytesIO(data)) as package:
        return {name: package.read(name) for name in package.namelist()}


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_made_document_is_what_the_generator_makes(name: str) -> None:
    assert content((ROOT / "samples/handbook" / name).read_bytes()) == content(FILES[name]())


def test_the_answers_stand_where_the_readme_says() -> None:
    readme = (ROOT / "samples/README.md").read_text(encoding="utf-8")
    line = (ROOT / "samples/handbook/历史洪水.txt").read_bytes().decode("gb18030").splitlines()[5]
    assert "石桥站的水位升到7.84米" in line
    assert "`历史洪水.txt`, line 6" in readme


def test_the_readme_lists_every_document() -> None:
    readme = (ROOT / "samples/README.md").read_text(encoding="utf-8")
    assert not [path.name for path in (ROOT / "samples/handbook").iterdir() if f"`{path.name}`" not in readme]
