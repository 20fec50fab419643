"""A long run under fire, beside the same run left alone: somebody is killed every few seconds, and the model server fails now and then.

python -m bench.soak [--corpus DIR] [--n 7000] [--every 3] [--faults 0.01] [--seed 1]

Exits with 1 when the index under fire is not the same, or a document is missing from the balance.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from bench.corpus import files, make
from bench.cost import tree_memory_mb
from tests.chaos.strikes import any_victim, recovered
from tests.simulators.model_server import ModelServer
from tests.system import Counts, System
from workers.broker import QUEUE_DB, client_url, with_db
from workers.views import Incoming, RunView

LOOK_S = 0.25
MOST_S = 4 * 3600.0


@dataclass
class Figures:
    """What one run came to."""

    seconds: float = 0.0
    start_mb: float = 0.0
    end_mb: float = 0.0
    redis_mb: float = 0.0
    """The most that was seen."""
    requests: int = 0
    inputs: int = 0
    faults: int = 0
    lost: int = 0
    """Batches that somebody died on."""
    kills: Counter[str] = field(default_factory=Counter[str])
    counts: Counts | None = None
    balanced: bool = False


class Redis:
    """Watches how much memory the server has in use, however often it is killed."""

    def __init__(self, system: System) -> None:
        self.most_mb = 0.0
        self._system = system
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Redis:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            try:
                url = client_url(with_db(self._system.state().redis_url, QUEUE_DB))
                with redis.Redis.from_url(url, socket_timeout=2) as client:
                    self.most_mb = max(self.most_mb, int(client.info("memory")["used_memory"]) / 1e6)  # type: ignore[index]
            except (redis.RedisError, OSError, AssertionError):
                continue


def main() -> None:
    given = arguments()
    with tempfile.TemporaryDirectory(prefix="dujiang-soak-") as folder, ModelServer(dim=given.dim, latency_ms=given.latency_ms) as model:
        corpus = Path(given.corpus) if given.corpus else make(Path(folder) / "corpus", given.n)
        items = [Incoming(key=file.key, path=str(file.path)) for file in files(corpus, given.n, changed=False)]
        calm = drive(System(Path(folder) / "calm", **options(given, model)), model, items, every_s=0.0, rng=random.Random(given.seed))
        model.config(fail_429_rate=given.faults / 2, fail_500_rate=given.faults / 2)
        fire = drive(System(Path(folder) / "fire", **options(given, model)), model, items, every_s=given.every, rng=random.Random(given.seed))
    table(len(items), given.seed, calm, fire)
    sys.exit(0 if fire.balanced and calm.counts == fire.counts else 1)


def options(given: argparse.Namespace, model: ModelServer) -> dict[str, Any]:
    return {
        "embedder": "openai:bench",
        "embedder_base_url": model.url,
        "embedder_api_key": "none",
        "embedder_dimension": given.dim,
        "chunker": given.chunker,
    }


def drive(system: System, model: ModelServer, items: list[Incoming], *, every_s: float, rng: random.Random) -> Figures:
    """One run over all documents; with `every_s`, somebody is killed that often on the average."""
    model.reset()
    found = Figures()
    with system:
        found.start_mb = tree_memory_mb(system.pid)
        began = time.monotonic()
        with Redis(system) as watch:
            run = system.platform.ingest("docs", items)
            run = under_fire(system, run, every_s, rng, found)
        found.seconds = time.monotonic() - began
        found.redis_mb = watch.most_mb
        recovered(system)
        found.end_mb = tree_memory_mb(system.pid)
        found.counts = system.counts(run)
        found.balanced = run.discovered == run.indexed + run.unchanged + run.skipped + run.failed + run.cancelled == len(items)
        found.lost = int(system.rows("SELECT count(*) FROM batches WHERE status = 'lost'")[0][0])
    stats = model.stats()
    found.requests, found.inputs, found.faults = stats["embed"], stats["inputs"], stats["fail_429"] + stats["fail_500"]
    return found


def under_fire(system: System, run: RunView, every_s: float, rng: random.Random, found: Figures) -> RunView:
    """The run, once it has ended."""
    until = time.monotonic() + MOST_S
    strike = time.monotonic() + rng.uniform(0.5, 1.5) * every_s
    while not run.finished:
        if time.monotonic() > until:
            sys.exit(f"run {run.run_id} does not end; it is at {dict(run.stages)}")
        if not system.running():
            sys.exit(f"the supervisor gave up:\n{system.log('supervisor')[-1500:]}")
        time.sleep(LOOK_S)
        if every_s and time.monotonic() > strike:
            found.kills[any_victim(system, rng)] += 1
            strike = time.monotonic() + rng.uniform(0.5, 1.5) * every_s
        run = system.platform.run(run.run_id)
    return run


def table(number: int, seed: int, calm: Figures, fire: Figures) -> None:
    print(f"{number} documents, {os.cpu_count()} cores, seed {seed}\n")
    print("| | left alone | under fire | ratio |\n|---|---|---|---|")
    rows: list[tuple[str, float, float]] = [
        ("wall s", calm.seconds, fire.seconds),
        ("memory at the start, MB", calm.start_mb, fire.start_mb),
        ("memory at the end, MB", calm.end_mb, fire.end_mb),
        ("Redis at most, MB", calm.redis_mb, fire.redis_mb),
        ("answered requests to the model server", calm.requests, fire.requests),
        ("texts sent to it", calm.inputs, fire.inputs),
        ("its faults", calm.faults, fire.faults),
        ("batches that somebody died on", calm.lost, fire.lost),
        ("processes killed", calm.kills.total(), fire.kills.total()),
    ]
    for name, left, right in rows:
        print(f"| {name} | {left:.5g} | {right:.5g} | {f'{right / left:.2f}' if left else ''} |")
    assert calm.counts is not None and fire.counts is not None
    print(f"| indexed | {calm.counts.indexed} | {fire.counts.indexed} | |\n| failed | {calm.counts.failed} | {fire.counts.failed} | |")
    print(f"| chunks | {calm.counts.chunks} | {fire.counts.chunks} | |\n| digest | {calm.counts.digest[:12]} | {fire.counts.digest[:12]} | |")
    print(f"\nkilled: {', '.join(f'{name} {n}' for name, n in fire.kills.most_common()) or 'nobody'}")
    print(f"same index: {calm.counts == fire.counts}; balanced: {fire.balanced}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="", help="folder of documents; a made-up corpus when left out")
    parser.add_argument("--n", type=int, default=7000)
    parser.add_argument("--every", type=float, default=3.0, help="seconds from one kill to the next, on the average")
    parser.add_argument("--faults", type=float, default=0.01, help="share of requests that the model server answers with 429 or 500")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--latency-ms", type=float, default=50.0)
    parser.add_argument("--chunker", default="windows:256/32")
    return parser.parse_args()


if __name__ == "__main__":
    main()
