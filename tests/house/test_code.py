"""Rules about code that no linter here can state."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.house.tree import PACKAGES, ROOT, dotted, modules, parsed

BROAD_CATCHES = {"api/problems.py": 1, "api/cli.py": 1, "workers/desk.py": 1}
"""The HTTP boundary, the command-line boundary, and around one document."""

READS_ENVIRONMENT = Path("pipeline/settings.py")


def is_broad(handler: ast.ExceptHandler) -> bool:
    """Catches everything and does not raise it again."""
    names = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)} if handler.type else {"BaseException"}
    again = any(isinstance(node, ast.Raise) and node.exc is None for node in ast.walk(handler))
    return bool(names & {"Exception", "BaseException"}) and not again


def test_everything_is_caught_in_three_places_only() -> None:
    found = Counter(
        path.as_posix() for path in modules() for node in ast.walk(parsed(path)) if isinstance(node, ast.ExceptHandler) and is_broad(node)
    )
    assert not {path: n for path, n in found.items() if n > BROAD_CATCHES.get(path, 0)}


def test_only_settings_reads_the_environment() -> None:
    readers = {
        f"{path}:{node.lineno}"
        for path in modules()
        if path != READS_ENVIRONMENT
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os"
        if node.attr in {"environ", "environb", "getenv", "putenv"}
    }
    assert not readers


def test_no_state_is_shared_through_a_global_statement() -> None:
    found = {f"{path}:{node.lineno}" for path in modules() for node in ast.walk(parsed(path)) if isinstance(node, ast.Global)}
    assert not found


WATCHED = """
import importlib, json, os, sys

found, module = [], "?"

def hook(event, arguments):
    if event in {"socket.connect", "socket.bind", "socket.getaddrinfo", "subprocess.Popen", "os.fork", "urllib.Request"}:
        found.append([module, event])
    elif event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        found.append([module, "open " + str(arguments[0])])

class Environment(type(os.environ)):
    def __getitem__(self, key):
        caller = sys._getframe(1)
        while caller and caller.f_globals.get("__name__", "") in {"os", "_collections_abc", "__main__"}:
            caller = caller.f_back
        if caller and caller.f_globals.get("__name__", "").split(".")[0] in PACKAGES:
            found.append([module, "environment " + str(key)])
        return super().__getitem__(key)

PACKAGES, names = json.loads(sys.argv[1])
os.environ.__class__ = Environment
sys.dont_write_bytecode = True
sys.addaudithook(hook)
for module in names:
    importlib.import_module(module)
print(json.dumps(found))
"""


def run(code: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_any_module_connects_to_nothing_and_reads_no_setting() -> None:
    names = [dotted(path) for path in modules() if path.name != "__main__.py" and "migrations" not in path.parts]
    assert json.loads(run(WATCHED, json.dumps([PACKAGES, names]))) == []


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("api.cli", {"numpy", "openai", "elasticsearch", "celery", "fastapi", "sqlalchemy", "tiktoken", "redis", "httpx"}),
        ("pipeline.parse", {"openai", "elasticsearch", "celery", "redis", "pypdfium2", "docx"}),
        ("pipeline.chunk", {"openai", "elasticsearch", "celery", "redis", "apsw", "sqlalchemy", "httpx"}),
    ],
)
def test_a_part_loads_no_library_that_it_does_not_need(module: str, unwanted: set[str]) -> None:
    loaded = run(f"import sys, {module}; print(*{{name.split('.')[0] for name in sys.modules}})").split()
    assert not unwanted & set(loaded)
