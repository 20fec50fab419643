"""Loop and engine side by side, interleaved, against a stub model server; medians and ratios, CPU seconds first.

python -m bench [--corpus DIR] [--n 300] [--rounds 5] [--latency-ms 0]
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.corpus import make
from tests.simulators.model_server import ModelServer

DIMENSION = 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="", help="folder of documents; a made-up corpus when left out")
    parser.add_argument("--n", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--latency-ms", type=float, default=0.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dujiang-bench-") as folder, ModelServer(dim=DIMENSION, latency_ms=given.latency_ms) as server:
        corpus = given.corpus or str(make(Path(folder) / "corpus", given.n))
        found: dict[str, list[dict[str, float]]] = {"loop": [], "engine": [], "engine again": []}
        for number in range(given.rounds):
            work = Path(folder) / f"round-{number}"
            for name, module, phase in (
                ("loop", "bench.loop", "first"),
                ("engine", "bench.engine", "first"),
                ("engine again", "bench.engine", "again"),
            ):
                server.reset()
                figures = _run(module, phase, corpus, given.n, server.url, work / module)
                figures["requests"] = server.stats()["embed"]
                found[name].append(figures)
                print(f"round {number + 1}, {name}: {figures}", file=sys.stderr)
            shutil.rmtree(work, ignore_errors=True)
        _table(found)


def _run(module: str, phase: str, corpus: str, number: int, url: str, work: Path) -> dict[str, float]:
    work.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", module, "--corpus", corpus, "--n", str(number), "--url", url, "--work", str(work), "--phase", phase]
    done = subprocess.run([*command, "--dim", str(DIMENSION)], stdout=subprocess.PIPE, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    return json.loads(line.removeprefix("RESULT "))


def _table(found: dict[str, list[dict[str, float]]]) -> None:
    base = statistics.median(figures["cpu_s"] for figures in found["loop"])
    print("| what | CPU s (median, range) | x loop | wall s | chunks | requests | start CPU s |\n|---|---|---|---|---|---|---|")
    for name, rounds in found.items():
        cpu = [figures["cpu_s"] for figures in rounds]
        wall = statistics.median(figures["wall_s"] for figures in rounds)
        middle, last = statistics.median(cpu), rounds[-1]
        start = last.get("start_cpu_s", 0.0)
        print(
            f"| {name} | {middle:.2f} ({min(cpu):.2f}-{max(cpu):.2f}) | {middle / base:.2f} | {wall:.2f} "
            f"| {last['chunks']:.0f} | {last['requests']:.0f} | {start:.2f} |"
        )
    pairs = [engine["cpu_s"] / loop["cpu_s"] for loop, engine in zip(found["loop"], found["engine"], strict=True)]
    print(f"\nengine / loop, CPU, median of {len(pairs)} interleaved pairs: {statistics.median(pairs):.2f} ({min(pairs):.2f}-{max(pairs):.2f})")


if __name__ == "__main__":
    main()
