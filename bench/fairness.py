"""How long an upload takes while another tenant's bulk run is under way, beside the same upload on a system that has nothing else to do.

python -m bench.fairness [--documents 5000] [--uploads 20] [--latency-ms 20]

An upload is one document on the interactive lane, from the moment it is handed over until a search could find it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from bench.corpus import files, make
from pipeline.contracts import Lane
from tests.simulators.model_server import ModelServer
from tests.system import System, markdown, until
from workers.views import Incoming, RunView

BULK, UPLOADS = "bulk", "uploads"
GOAL = 3.0
MOST_S = 3600.0


def main() -> None:
    given = arguments()
    with tempfile.TemporaryDirectory(prefix="dujiang-fairness-") as folder, ModelServer(dim=given.dim, latency_ms=given.latency_ms) as model:
        corpus = Path(given.corpus) if given.corpus else make(Path(folder) / "corpus", given.documents)
        items = [Incoming(key=file.key, path=str(file.path)) for file in files(corpus, given.documents, changed=False)]
        with System(Path(folder) / "home", embedder="openai:stub", embedder_base_url=model.url, worker_processes=0) as system:
            shelf = Path(folder) / "uploads"
            shelf.mkdir()
            upload(system, shelf, 0)
            idle = [upload(system, shelf, 1 + number) for number in range(given.uploads)]
            begun = time.monotonic()
            run = system.platform.ingest("docs", items, tenant=BULK)
            until(lambda: system.platform.run(run.run_id).indexed, MOST_S, "the bulk run is under way")
            loaded = beside(system, shelf, run, given.uploads)
            ended = system.finish(run, MOST_S)
            table(idle, loaded, ended, time.monotonic() - begun)


def beside(system: System, shelf: Path, run: RunView, most: int) -> list[float]:
    """Uploads one after the other, as long as the bulk run is under way when they end."""
    found: list[float] = []
    while len(found) < most:
        took = upload(system, shelf, 10_000 + len(found))
        if system.platform.run(run.run_id).finished:
            break
        found.append(took)
    return found


def upload(system: System, shelf: Path, number: int) -> float:
    """Seconds until it is indexed."""
    path = shelf / f"{number}.md"
    path.write_text(markdown(number), encoding="utf-8")
    begun = time.monotonic()
    run = system.platform.ingest("desk", [Incoming(key=path.name, path=str(path))], lane=Lane.INTERACTIVE, tenant=UPLOADS)
    until(lambda: system.platform.run(run.run_id).finished, MOST_S, "an upload ends")
    return time.monotonic() - begun


def table(idle: list[float], loaded: list[float], bulk: RunView, seconds: float) -> None:
    if not loaded:
        print("the bulk run ended before an upload did: give it more documents")
        return
    print("| upload | number | median s | 90 % s | most s |\n|---|---|---|---|---|")
    for name, took in (("idle", idle), ("beside bulk", loaded)):
        tenth = sorted(took)[min(len(took) - 1, int(len(took) * 0.9))]
        print(f"| {name} | {len(took)} | {statistics.median(took):.2f} | {tenth:.2f} | {max(took):.2f} |")
    ratio = statistics.median(loaded) / statistics.median(idle)
    print(f"\nbulk: {bulk.indexed} documents in {seconds:.0f} s; beside bulk / idle, medians: {ratio:.2f} (goal: at most {GOAL:g})")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="", help="folder of documents; a made-up corpus when left out")
    parser.add_argument("--documents", type=int, default=5000)
    parser.add_argument("--uploads", type=int, default=20)
    parser.add_argument("--latency-ms", type=float, default=20.0, help="of the model server")
    parser.add_argument("--dim", type=int, default=256)
    return parser.parse_args()


if __name__ == "__main__":
    main()
