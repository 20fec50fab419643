"""A document that takes the worker process with it is found by halving, set apart, and its neighbours are indexed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system import System, children, fill

MARK = "this sentence kills"
DEADLY = f"# Harmless\n\nAmong the harmless, {MARK} whoever works on it.\n"

SITE = """
import importlib.abc, importlib.machinery, os, signal, sys

PLACES = {places!r}

def deadly(call):
    def wrapped(*args, **kwargs):
        if {mark!r} in repr(args):
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **kwargs)
    return wrapped

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name not in PLACES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            setattr(module, PLACES[name], deadly(getattr(module, PLACES[name])))
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
"""
"""What every Python process of the system imports at its start: the function at a place dies of the sentence."""


@pytest.mark.parametrize(
    ("place", "neighbours", "deaths"),
    [
        pytest.param({"pipeline.chunk": "chunk"}, 63, 9, id="chunk, a process of the pool at a time"),
        pytest.param({"pipeline.index": "index"}, 3, 5, id="index, the whole node at a time", marks=pytest.mark.full),
    ],
)
def test_a_document_that_kills_its_worker_is_quarantined_and_its_neighbours_are_indexed(
    tmp_path: Path, place: dict[str, str], neighbours: int, deaths: int
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE.format(places=place, mark=MARK))
    folder = fill(tmp_path / "docs", neighbours)
    (folder / "deadly.md").write_text(DEADLY)
    with System(tmp_path / "home", environment={"PYTHONPATH": str(site)}) as system:
        run = system.finish(system.ingest(folder))
        assert (run.discovered, run.indexed, run.failed) == (neighbours + 1, neighbours, 1)
        (failure,) = run.failures
        stage = "load" if "pipeline.chunk" in place else "index"
        assert failure.document.endswith("/deadly.md") and (failure.code, failure.stage) == ("poison", stage)
        assert "workers died" in failure.detail and failure.hint
        assert system.audit().documents == neighbours
        lost = system.rows("SELECT count(DISTINCT batch_id) FROM attempts, (SELECT id AS batch_id FROM batches WHERE status = 'lost')")[0][0]
        assert lost == deaths
        assert len(children(system.pid)) >= 6, "somebody was not replaced"
