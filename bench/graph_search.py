"""Whether the graph finds all the documents that a question of several steps needs, beside what the other modes find.

    python -m bench.graph_search DATASET_DIR... [--store sqlite:///FOLDER | elasticsearch+http://HOST:9200] [--k 8] [--embedder local] [--questions N]

Each DATASET_DIR as for `bench.retrieval`. C@k is the share of questions whose every relevant document is among the first k hits. Questions are
shown in two halves as well: rules were looked at on the first. Everything goes through the product's own stages, without a model for the graph.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.retrieval import Case, Prepared, build, cases, rows
from graphrag import search as graph_search
from graphrag import snapshot
from graphrag.building import Graph
from graphrag.extract_terms import extract
from pipeline import chunk, embed
from pipeline.contracts import Mode, ParsedDocument, Question, Section
from pipeline.identity import document_id, index_name
from pipeline.protocols import GraphRecords, HoldsGraph
from pipeline.retrieve import Target, search
from pipeline.settings import Settings
from pipeline.stores import open_store

MODES = (Mode.PARTICIPLE, Mode.SEMANTIC, Mode.HYBRID, Mode.GRAPH)


def main() -> None:
    given = arguments()
    print("| set | mode | C@k | first half | second half | R@1 | CPU ms a question |\n|---|---|---|---|---|---|---|")
    for folder in given.datasets:
        with tempfile.TemporaryDirectory() as scratch:
            one(folder, given, given.store or f"sqlite:///{scratch}/store")


def one(folder: Path, given: argparse.Namespace, url: str) -> None:
    store = open_store(url, writer=True)
    assert isinstance(store, HoldsGraph)
    name = index_name("bench", f"{folder.name}-graph", 1)
    embedder = Prepared(embed.create(Settings(embedder=given.embedder)))
    build(folder, store, name, embedder, given.chunker, vectors=True)
    told = grow(store.graph(), name, folder, given.chunker)
    asked = cases(folder, given.questions)
    embedder.learn([case.text for case in asked])
    ready = graph_search.ready(told)
    graph = graph_search.GraphSearch(lambda place: ready)
    target = Target(folder.name, name, 1, store, embedder)
    for mode in MODES:
        measure(folder.name, mode, asked, target, graph, given.k)
    print(f"| {folder.name} | graph: {len(told.keys)} entities, {len(told.mentions)} mentions, {len(told.relations)} relations | | | | | |")
    store.drop(name)
    store.close()


def grow(records: GraphRecords, name: str, folder: Path, chunker_spec: str) -> snapshot.Snapshot:
    """The corpus as a graph beside its index, and what that cost."""
    chunker = chunk.create(chunker_spec)
    graph = Graph(records, name, owner="bench")
    began = time.process_time()
    made = []
    count = 0
    for row in rows(folder / "corpus.jsonl.gz"):
        parsed = ParsedDocument(row["text"], (Section(0, len(row["text"])),), title=row.get("title", ""), media_type="text/plain")
        identity = document_id("bench", folder.name, row["_id"])
        pieces = chunk.chunk(parsed, identity, chunker)
        count += len(pieces)
        made.append(extract(identity, 1, row.get("title", ""), pieces))
    extracted = time.process_time() - began
    began = time.process_time()
    for start in range(0, len(made), 64):
        graph.add(made[start : start + 64])
        graph.fold(everything=False)
    graph.fold()
    folded = time.process_time() - began
    began = time.process_time()
    found = snapshot.build(records, name)
    print(
        f"| {folder.name} | {count} chunks: extracted in {extracted:.2f}, merged in {folded:.2f}, "
        f"snapshot in {time.process_time() - began:.2f} CPU s | | | | | |"
    )
    return found


def measure(label: str, mode: Mode, asked: Sequence[Case], target: Target, graph: graph_search.GraphSearch, k: int) -> None:
    halves, first, began = [[0, 0], [0, 0]], 0, time.process_time()
    for number, case in enumerate(asked):
        found = search(Question(case.text, (target.collection,), mode=mode, k=k), [target], graph=graph)
        keys = [hit.key for hit in found.hits]
        halves[number % 2][0] += case.relevant <= set(keys)
        halves[number % 2][1] += 1
        first += bool(keys) and keys[0] in case.relevant
    spent = (time.process_time() - began) / len(asked) * 1000
    whole = (halves[0][0] + halves[1][0]) / len(asked)
    one, two = (held / max(1, number) for held, number in halves)
    print(f"| {label} | {mode} | {whole:.3f} | {one:.3f} | {two:.3f} | {first / len(asked):.3f} | {spent:.1f} |", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", type=Path, nargs="+")
    parser.add_argument("--store", default="", help="a folder that is removed afterwards when left out")
    parser.add_argument("--k", type=int, default=8)
    parser.add_argument("--embedder", default="local")
    parser.add_argument("--chunker", default="sections")
    parser.add_argument("--questions", type=int, default=0, help="ask only so many, evenly chosen")
    return parser.parse_args()


if __name__ == "__main__":
    main()
