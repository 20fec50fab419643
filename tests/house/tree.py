"""What the house rules look at: tracked files, and the modules of the four packages."""

from __future__ import annotations

import ast
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("pipeline", "graphrag", "workers", "api")


def modules() -> list[Path]:
    """Every Python file of the four packages, relative to the root, migration steps left out."""
    found = [path.relative_to(ROOT) for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return [path for path in found if "versions" not in path.parts]


def dotted(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), filename=str(path))


@cache
def tracked() -> list[Path]:
    """Files that git would carry to somebody else, committed or about to be."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True).stdout
    return [Path(name) for name in sorted(listed.decode().split("\0")) if name and (ROOT / name).is_file()]
