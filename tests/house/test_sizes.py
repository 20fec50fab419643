"""Modules stay within 400 lines, functions within 40 statements and 10 branches; what is over is listed and may only shrink."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator

from tests.house.tree import ROOT, modules, parsed, tracked

LINES, STATEMENTS, BRANCHES = 400, 40, 10
LISTED: dict[str, int] = json.loads((ROOT / "tests/house/exceptions.json").read_text())
BRANCHING = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def inside(function: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a function's own body; what is nested in it is measured by itself."""
    for child in ast.iter_child_nodes(function):
        yield child
        if not isinstance(child, SCOPES):
            yield from inside(child)


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(tree):
        name = getattr(child, "name", "") if isinstance(child, SCOPES) else ""
        path = f"{prefix}.{name}".strip(".") if name else prefix
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield path, child
        yield from functions(child, path)


def oversized() -> dict[str, int]:
    """What is over its cap: ``path lines``, ``path::function statements`` or ``path::function branches`` → size."""
    found: dict[str, int] = {}
    python = [path for path in tracked() if path.suffix == ".py" and "versions" not in path.parts]
    for path in python:
        lines = len((ROOT / path).read_text(encoding="utf-8").splitlines())
        if lines > LINES:
            found[f"{path} lines"] = lines
    for path in modules():
        for name, function in functions(parsed(path)):
            nodes = list(inside(function))
            sizes = {
                "statements": sum(isinstance(node, ast.stmt) for node in nodes),
                "branches": sum(isinstance(node, BRANCHING) for node in nodes),
            }
            found |= {f"{path}::{name} {what}": n for what, n in sizes.items() if n > (STATEMENTS if what == "statements" else BRANCHES)}
    return found


def test_nothing_is_over_its_cap_unless_listed() -> None:
    new = {key: size for key, size in oversized().items() if size > LISTED.get(key, 0)}
    assert not new, f"too large, or larger than tests/house/exceptions.json allows: {new}"


def test_the_list_of_exceptions_only_shrinks() -> None:
    now = oversized()
    stale = {key: now.get(key, "within its cap") for key, size in LISTED.items() if now.get(key) != size and now.get(key, 0) < size}
    assert not stale, f"these have shrunk: write the new size into tests/house/exceptions.json, or take them off: {stale}"
