"""What people read tells the truth: the map, the settings, and nothing about where it was written."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from pipeline.settings import SECOND_CHOICE, Settings
from tests.house.tree import ROOT, modules, tracked

READMES = ("README.md", "README.zh-CN.md")
MAP_STARTS = re.compile(r"^## .*(Map of the modules|模块地图)", re.MULTILINE)
ENTRY = re.compile(r"^\| `((?:pipeline|graphrag|workers|api)/[^`]*)` \|", re.MULTILINE)
VARIABLE = re.compile(r"`(DUJIANG_[A-Z_]+)`")


def section(readme: str, heading: re.Pattern[str]) -> str:
    text = (ROOT / readme).read_text(encoding="utf-8")
    start = heading.search(text)
    assert start, f"{readme} has no section {heading.pattern}"
    return re.split(r"^## ", text[start.end() :], maxsplit=1, flags=re.MULTILINE)[0]


def places() -> set[str]:
    """Each module as its path, each package as its folder with a slash at the end."""
    return {f"{path.parent}/" if path.name == "__init__.py" else str(path) for path in modules() if path.name != "__main__.py"}


@pytest.mark.parametrize("readme", READMES)
def test_the_map_names_every_module_once_and_nothing_else(readme: str) -> None:
    entries = ENTRY.findall(section(readme, MAP_STARTS))
    assert len(entries) == len(set(entries))
    missing, gone = places() - set(entries), set(entries) - places()
    assert (missing, gone) == (set(), set())


def variables() -> set[str]:
    return {f"DUJIANG_{field.name.upper()}" for field in fields(Settings)}


@pytest.mark.parametrize("readme", READMES)
def test_every_setting_is_in_the_table_of_the_readme(readme: str) -> None:
    text = section(readme, re.compile(r"^## (Settings|设置)$", re.MULTILINE))
    assert variables() == set(VARIABLE.findall(text))
    assert {name for names in SECOND_CHOICE.values() for name in names} <= set(re.findall(r"`([A-Z_]+)`", text))


def test_the_example_environment_lists_every_setting_with_its_default() -> None:
    lines = (ROOT / "deploy/env.example").read_text(encoding="utf-8").splitlines()
    listed: dict[str, str] = {}
    for line in lines:
        if line.startswith("# DUJIANG_"):
            name, _, listed[name] = line.removeprefix("# ").partition("=")
    assert set(listed) == variables()
    for field in fields(Settings):
        if field.default != "":
            assert listed[f"DUJIANG_{field.name.upper()}"] == str(field.default), field.name


HOSTS = ("py" + "pi.org", "python" + "hosted.org", "npm" + "js.org", "crates" + ".io", "repo1." + "maven", "repo." + "maven", "deb." + "debian.org")
PLACES = re.compile(r"(?<![\w./-])/(?:wo" + r"rk|ro" + r"ot|tmp/" + r"dj)(?:/|\b)|\bsha" + r"red/(?:data|design|research|bench|tools)")


def test_no_file_names_a_registry_or_the_place_where_it_was_written() -> None:
    found: list[str] = []
    for path in tracked():
        try:
            text = (ROOT / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path}: {host}" for host in HOSTS if host in text]
        found += [f"{path}: {match.group()}" for match in PLACES.finditer(text)]
    assert not found


@pytest.mark.parametrize("page", [path for path in tracked() if path.suffix == ".md"], ids=str)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = [target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]
    assert not [target for target in targets if target and not (ROOT / page.parent / target).exists()]
