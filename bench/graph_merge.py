"""What it costs to merge documents into the graph of the embedded store, by their number.

    python -m bench.graph_merge [--documents 100 1000 10000] [--batch 64] [--url elasticsearch+http://…]

Documents are synthetic: 36 entities by a power law over 20,000 names, 45 relations. They come in batches, as the engine forms them; what is
marked is folded when it is worth it, and everything at the end. Counted: CPU seconds of this process without making the documents, bytes the
kernel wrote for it, bytes of the file.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from graphrag.building import Graph
from pipeline.contracts import CollectionSpec
from pipeline.protocols import HoldsGraph
from pipeline.stores import open_store
from pipeline.text import terms
from tests.graphed import synthetic


def measure(url: str, number: int, batch: int) -> dict[str, object]:
    """Merge so many documents into a new collection."""
    documents = [synthetic(one) for one in range(number)]
    terms("warm 都江堰")
    store = open_store(url, writer=True)
    assert isinstance(store, HoldsGraph)
    name = f"dujiang-bench{number}-g1"
    store.drop(name)
    store.ensure(CollectionSpec(name, 4))
    graph = Graph(store.graph(), name, owner="bench")
    wrote, started, clock = _written(), time.process_time(), time.perf_counter()
    added = 0.0
    for start in range(0, number, batch):
        before = time.process_time()
        graph.add(documents[start : start + batch])
        added += time.process_time() - before
        graph.fold(everything=False)
    graph.fold()
    cpu, wall = time.process_time() - started, time.perf_counter() - clock
    audit = graph.digest()
    after = time.process_time()
    graph.add([synthetic(number)])
    graph.fold()
    one = time.process_time() - after
    store.close()
    written = _written() - wrote
    file = Path(url.removeprefix("sqlite://")) / f"{name}.db"
    return {
        "documents": number,
        "cpu_s": round(cpu, 2),
        "cpu_s_adding": round(added, 2),
        "wall_s": round(wall, 2),
        "written_mib": round(written / 2**20, 1),
        "file_mib": round(file.stat().st_size / 2**20, 1) if file.exists() else None,
        "elements": audit.records,
        "cpu_s_one_more": round(one, 3),
    }


def _written() -> int:
    """Bytes that this process had written to a disk."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("write_bytes")).split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--url", help="a store; a folder of its own by default")
    given = parser.parse_args()
    for number in given.documents:
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
            sys.stdout.write(json.dumps(measure(given.url or f"sqlite://{folder}", number, given.batch)) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
