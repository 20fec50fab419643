"""A simulated Feishu through a whole system: real server, real workers, one running system for all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.feishu_sync import Tenant
from tests.feishu_sync import tenant as simulated
from tests.simulators.feishu import Feishu
from tests.simulators.feishu_blocks import heading, image, run, text
from tests.system import System


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with System(tmp_path_factory.mktemp("feishu") / "home") as running:
        yield running


@pytest.fixture
def name(tmp_path: Path) -> str:
    return tmp_path.name[-60:].lstrip("_")


@pytest.fixture
def feishu(system: System, name: str) -> Iterator[Feishu]:
    with simulated(system, name) as simulator:
        yield simulator


@pytest.fixture
def source(system: System, feishu: Feishu, name: str) -> Callable[..., Tenant]:
    """Made when the library is filled."""
    return lambda **options: Tenant(feishu, system, name, **options)


def test_a_folder_and_a_wiki_are_found_by_search_and_followed_through_changes(feishu: Feishu, source: Callable[..., Tenant]) -> None:
    library = feishu.library
    duty = library.folder("Duty")
    picture = library.medium(b"png")
    shifts = library.docx("Shifts", [heading(1, "Nights"), text("Night begins at ", run("twenty", bold=True)), image(picture.token)], duty)
    library.file("alarms.md", b"# Alarms\n\nThe siren is tested on Mondays.", duty)
    library.shortcut(shifts)
    space = library.space("Handbook")
    home = library.wiki(space, "Home", [text("The cooperative runs six gauges.")])
    gauges = library.wiki(space, "Gauges", [text("Gauge four freezes in winter.")], home)
    tenant = source(wiki_space="all", folder_token=library.root.token)
    first = tenant.sync()
    assert (first.status, first.discovered, first.indexed) == ("done", 4, 4), first
    assert tenant.audit() == 4
    assert tenant.finds("siren Mondays") == ["alarms.md"] and tenant.finds("freezes") == ["Gauges"]
    assert tenant.texts()["Shifts"].endswith("Night begins at **twenty**")
    asked = len(feishu.calls)
    second = tenant.sync()
    assert (second.discovered, second.unchanged) == (4, 4)
    assert len(feishu.calls) - asked <= 8, "a sync without changes costs listings and metadata alone"
    feishu.clock.advance(60)
    library.edit(shifts, [text("Night begins at ", run("nineteen", bold=True))])
    library.rename(library.thing(gauges), "Frozen gauges")
    library.delete(home)
    third = tenant.sync()
    assert third.deleted == 2, "the page and the one below it"
    assert tenant.audit() == 2 and tenant.finds("nineteen") == ["Shifts"] and tenant.finds("freezes") == []
