"""A wiki whose sync is struck at a request that chance chooses: what is held in the end is what an undisturbed sync holds.

    DUJIANG_CHAOS_SEED=123 pytest tests/chaos/test_killed_syncs.py

has the same points again.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.chaos.conftest import seed
from tests.chaos.strikes import VICTIMS, recovered
from tests.feishu_sync import Tenant
from tests.feishu_sync import tenant as simulated
from tests.simulators.feishu import Feishu
from tests.simulators.feishu_blocks import text
from tests.system import System

SHORT, LONG = 3, 50
SEED = seed()
PAGES, FILES = 30, 20
FIRST, LAST = 2, 55
"""Requests of an undisturbed sync: listings first, then metadata, then contents."""
WEIGHTS = (1, 0, 1, 8, 2, 2, 1)
"""For `VICTIMS`, in its order: the node that talks to the network lists and loads."""
HELD_S = 20.0


@dataclass(frozen=True)
class Point:
    request: int
    victim: str

    def __str__(self) -> str:
        return f"{self.victim}, at request {self.request}"


def points(number: int) -> list[Point]:
    chance = random.Random(SEED)
    return [Point(chance.randint(FIRST, LAST), chance.choices(list(VICTIMS), WEIGHTS)[0]) for _ in range(number)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "point" in metafunc.fixturenames:
        number = LONG if metafunc.config.getoption("--chaos-full") else SHORT
        metafunc.parametrize("point", [pytest.param(point, id=f"seed {SEED}, {n}, {point}") for n, point in enumerate(points(number))])


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with System(tmp_path_factory.mktemp("syncs") / "home") as running:
        yield running


def filled(feishu: Feishu) -> dict[str, str]:
    """Pages of a wiki in a tree, and files in a folder: title → words that stand there only."""
    library = feishu.library
    space = library.space("Handbook")
    words = {f"Page {number}": f"the reading of board {number} is {number * 37 % 101}" for number in range(PAGES + FILES)}
    nodes = [library.wiki(space, "Page 0", [text(words["Page 0"])])]
    for number in range(1, PAGES):
        nodes.append(library.wiki(space, f"Page {number}", [text(words[f"Page {number}"])], nodes[(number - 1) // 6]))
    folder = library.folder("Files")
    for number in range(PAGES, PAGES + FILES):
        library.docx(f"Page {number}", [text(words[f"Page {number}"])], folder)
    return words


def held(tenant: Tenant) -> dict[str, str]:
    return {title: written.rpartition("\n")[2] for title, written in tenant.texts().items()}


def again(system: System, collection: str) -> int:
    """Documents of batches that were issued anew or given up."""
    issued = "sum(size * (token - 1 + (batches.status = 'lost')))"
    where = "JOIN collections ON collections.id = collection_id WHERE name = ? AND stages LIKE 'load%'"
    return int(system.rows(f"SELECT coalesce({issued}, 0) FROM batches {where}", collection)[0][0])


def test_a_sync_struck_at_any_request_ends_as_if_nothing_had_happened(system: System, point: Point, request: pytest.FixtureRequest) -> None:
    print(f"DUJIANG_CHAOS_SEED={SEED}: {point}")
    name = f"wiki-{request.node.callspec.id.split(', ')[1]}"
    reached, struck = threading.Event(), threading.Event()

    def hold() -> None:
        reached.set()
        struck.wait(HELD_S)

    with simulated(system, name) as feishu:
        words = filled(feishu)
        feishu.after[point.request] = hold
        tenant = Tenant(feishu, system, name, wiki_space="all", folder_token=feishu.library.root.token)
        run = tenant.begin()
        assert reached.wait(60.0), "so many requests are made"
        VICTIMS[point.victim](system, random.Random(SEED))
        struck.set()
        ended = system.finish(run)
        assert (ended.status, ended.discovered, ended.indexed, ended.failed, ended.deleted) == ("done", len(words), len(words), 0, 0), ended
        assert held(tenant) == words
        assert tenant.audit() == len(words)
        assert tenant.asked(r"/blocks$") <= len(words) + again(system, name), "only what lost batches held is asked for again"
        before = len(feishu.calls)
        assert tenant.sync().unchanged == len(words), "nothing is left to be done"
        assert not [call for call in feishu.calls[before:] if call.path.endswith("/blocks")]
    recovered(system)
