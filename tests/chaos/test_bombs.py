"""Documents that crash, swell or hang whoever parses them: stopped by a limit, each a reason, and no worker is lost."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.chaos.proof import balanced, failures_say_why, nothing_left, once_each
from tests.system import System, fill

GOOD = 20

SITE = """
import importlib.abc, importlib.machinery, os, signal, sys

def harmful(parse):
    def wrapped(raw, options):
        if b"this one crashes" in raw.data:
            os.kill(os.getpid(), signal.SIGSEGV)
        if b"this one swells" in raw.data:
            kept = []
            while True:
                kept.append(bytearray(50_000_000))
        if b"this one never ends" in raw.data:
            while True:
                pass
        return parse(raw, options)
    return wrapped

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "pipeline.parse.markdown":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            module.parse = harmful(module.parse)
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
"""
"""What every Python process of the system imports at its start: a parser with three faults."""

MB = 1_000_000
CODES = {"crashes.md": "parse_crashed", "swells.md": "parse_memory", "never-ends.md": "parse_timeout", "bomb.docx": "zip_bomb"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = fill(tmp_path / "docs", GOOD)
    for name in ("crashes", "swells", "never ends"):
        (found / f"{name.replace(' ', '-')}.md").write_text(f"# Harmless\n\nSo it seems, but this one {name}.\n")
    with zipfile.ZipFile(found / "bomb.docx", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as bundle:
        bundle.writestr("[Content_Types].xml", "<Types/>")
        with bundle.open("word/document.xml", "w") as part:
            for _ in range(200):
                part.write(b"a" * MB)
    return found


def test_documents_that_crash_swell_or_hang_their_parser_fail_alone_and_take_no_worker_with_them(tmp_path: Path, folder: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    limits = {"parse_timeout_s": 3, "parse_memory_mb": 700}
    with System(tmp_path / "home", environment={"PYTHONPATH": str(site)}, **limits) as system:
        workers = {name: system.child(name) for name in ("compute", "network", "index")}
        ended = system.finish(system.ingest(folder), 120.0)
        balanced(ended)
        assert (ended.indexed, ended.failed) == (GOOD, len(CODES))
        assert {failure.document.rpartition("/")[2]: failure.code for failure in ended.failures} == CODES
        failures_say_why(system, "default", len(CODES))
        assert system.audit().documents == GOOD
        once_each(system, "default")
        nothing_left(system)
        assert {name: system.child(name) for name in workers} == workers
        assert system.rows("SELECT count(*) FROM attempts WHERE outcome = 'lost'") == [(0,)]
