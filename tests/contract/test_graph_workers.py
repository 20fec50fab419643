"""Workers that build one graph at once, in any store."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import count

import pytest

from graphrag.building import Graph, Swept
from pipeline.contracts import CollectionSpec
from pipeline.contracts.graph import GraphKind
from pipeline.identity import index_name
from pipeline.protocols import HoldsGraph
from pipeline.stores import open_store
from tests.graphed import contribution, folded, hashed, stored

SERVERS = {"sqlite": "", "elasticsearch+http": "elasticsearch_url"}
_numbers = count(1)

PROGRAM = """
import random, sys, time
from graphrag.building import Graph
from pipeline.errors import Retryable
from pipeline.stores import open_store
from tests.graphed import contribution, hashed
url, name, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
store = open_store(url, writer=True)
graph = Graph(store.graph(), name, owner=f"worker {seed}")
draw = random.Random(seed)
steps = [(document, version) for document in range(12) for version in (1, 2, 3)]
draw.shuffle(steps)
def step(start):
    taken = [(d, v) for d, v in steps[start : start + 6] if (d, v) not in ((3, 3), (7, 2))]
    graph.add([contribution(str(d), v, [f"Lin sluice doc{d} v{v}", f"Bridge Lin v{v}"]) for d, v in taken])
    if (3, 3) in steps[start : start + 6]:
        graph.remove({hashed("document", "3"): 3})
    if (7, 2) in steps[start : start + 6]:
        graph.remove({hashed("document", "7"): 2})
    graph.fold()
for start in range(0, len(steps), 6):
    for attempt in range(30):
        try:
            step(start)
            break
        except Retryable:
            time.sleep(0.1 * attempt)
    else:
        raise SystemExit("tried in vain")
store.close()
"""


@pytest.fixture(scope="module", params=sorted(SERVERS))
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = SERVERS[request.param]
    yield request.getfixturevalue(server) if server else f"sqlite:///{tmp_path_factory.mktemp('stores') / 'store'}"


def test_workers_in_any_order_at_once_make_the_graph_that_one_would_make(url: str) -> None:
    """Three processes bring versions in different orders, twelve documents each, and remove one for good and an old version of another.

    Like the engine's workers, they try again what failed for now.
    """
    store = open_store(url, writer=True)
    assert isinstance(store, HoldsGraph)
    name = index_name("tests", f"graph workers {id(store)} {next(_numbers)}", 1)
    store.ensure(CollectionSpec(name, 4))
    Graph(store.graph(), name, owner="before").add([contribution("3", 1, ["Lin"])])
    working = [subprocess.Popen([sys.executable, "-c", PROGRAM, url, name, str(seed)], stderr=subprocess.PIPE, text=True) for seed in (1, 2, 3)]
    assert [one.communicate(timeout=240)[1] for one in working] == ["", "", ""]
    graph = Graph(store.graph(), name, owner="after")
    graph.fold()
    newest = [contribution(str(d), 3, [f"Lin sluice doc{d} v3", "Bridge Lin v3"]) for d in range(12) if d != 3]
    assert stored(store.graph(), name) == folded(newest)
    assert graph.sweep() == Swept()
    assert store.graph().count(name, GraphKind.MARK) == 0
    assert store.graph().count(name, GraphKind.PART) == len(newest)
    assert graph.heads([hashed("document", "3")])[hashed("document", "3")].removed
    store.drop(name)
    store.close()
