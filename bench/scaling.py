"""From one embed worker to two, on both stores: how long the same chunks take to get their vectors and into the index.

python -m bench.scaling [--corpus DIR] [--n 2000] [--latency-ms 800] [--stores embedded,elasticsearch] [--rounds 3]

Load, parse and chunk are done before the clock starts. The model server takes its time over a request, as a real one does, so that
workers wait and do not compete for this machine's cores. Elasticsearch is started for the purpose, or named with --elasticsearch-url.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.corpus import files, make
from bench.cost import tree_cpu
from pipeline.settings import Settings
from tests.parts import Part, worker
from tests.servers import Lacking
from tests.servers import elasticsearch as es
from tests.servers.redis import RedisServer
from tests.simulators.model_server import ModelServer
from tests.system import settings_for
from workers.app import create_app
from workers.dispatch import Platform, open_platform
from workers.housekeeping import Housekeeping
from workers.tasks import make_feeder
from workers.views import Incoming

MOST_S = 1800.0
TURN_S = 0.1


@dataclass(frozen=True)
class Timed:
    """One run from its chunks to its index."""

    seconds: float
    cpu_s: float
    chunks: int
    requests: int


def main() -> None:
    given = arguments()
    print("| store | embed workers | seconds (median) | chunks/s | x one worker | CPU s | requests |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="dujiang-scaling-") as folder, ModelServer(dim=given.dim, latency_ms=given.latency_ms) as model:
        corpus = Path(given.corpus) if given.corpus else make(Path(folder) / "corpus", given.n)
        items = [Incoming(key=file.key, path=str(file.path)) for file in files(corpus, given.n, changed=False)]
        for name in given.stores.split(","):
            with store(name, given.elasticsearch_url) as url:
                if url is not None:
                    compare(name, url, given, model, items, Path(folder) / name)


@contextmanager
def store(name: str, elasticsearch_url: str) -> Iterator[str | None]:
    """Its URL; empty for the embedded one, None where this machine cannot have it."""
    if name != "elasticsearch" or elasticsearch_url:
        yield elasticsearch_url if name == "elasticsearch" else ""
        return
    try:
        # The JVM's full compiler, as it would run in earnest.
        with es.running(jvm="", heap="1g") as server:
            yield server.url
    except Lacking as reason:
        print(f"no Elasticsearch: {reason}", file=sys.stderr)
        yield None


def compare(name: str, url: str, given: argparse.Namespace, model: ModelServer, items: list[Incoming], folder: Path) -> None:
    found: dict[int, list[Timed]] = {1: [], 2: []}
    for round_ in range(given.rounds):
        # One first, then two first: what warms up helps neither.
        for number in (1, 2) if round_ % 2 == 0 else (2, 1):
            found[number].append(timed(url, given, model, items, folder / f"{round_}-{number}", number))
    single = statistics.median(one.seconds for one in found[1])
    for number, rounds in found.items():
        middle = statistics.median(one.seconds for one in rounds)
        cpu = statistics.median(one.cpu_s for one in rounds)
        chunks, requests = rounds[-1].chunks, rounds[-1].requests
        print(f"| {name} | {number} | {middle:.2f} | {chunks / middle:.0f} | {single / middle:.2f} | {cpu:.1f} | {requests} |", flush=True)


def timed(url: str, given: argparse.Namespace, model: ModelServer, items: list[Incoming], home: Path, number: int) -> Timed:
    """Everything up to the chunks without an embed worker; then so many of them, and the clock runs until the run ends."""
    redis = RedisServer()
    redis.start()
    model.reset()
    collection = f"scaling-{time.time_ns()}"
    try:
        settings = settings_of(url, given, model, redis, home)
        with open_platform(settings) as platform, ExitStack() as parts:
            keeper = Housekeeping(make_feeder(platform.runtime, create_app(settings)), platform.runtime)
            computing = parts.enter_context(worker(settings, "compute", "load,parse,chunk", pool="prefork", concurrency=2))
            run = platform.ingest(collection, items)
            turned(keeper, lambda: chunked(platform, run.run_id), "every document is cut into chunks")
            # What waits in Redis is forgotten, so that nobody begins before all are ready; the next turn sends it again.
            redis.flush()
            running = [computing, parts.enter_context(worker(settings, "index", "index", concurrency=given.threads if url else 1))]
            running += [parts.enter_context(worker(settings, f"embed{place}", "embed", concurrency=given.threads)) for place in range(number)]
            for part in running:
                part.ready()
            began, cpu = time.perf_counter(), spent(running)
            turned(keeper, lambda: platform.run(run.run_id).finished, "the run ends")
            figures = Timed(time.perf_counter() - began, spent(running) - cpu, platform.run(run.run_id).chunks, model.stats()["embed"])
            if url:
                platform.delete_collection(collection)
        return figures
    finally:
        redis.close()


def turned(keeper: Housekeeping, look: Callable[[], bool], what: str) -> None:
    """Feed and sweep, as a beat does, until `look` says so."""
    until = time.monotonic() + MOST_S
    while not look():
        if time.monotonic() > until:
            sys.exit(f"not within {MOST_S:g} s: {what}")
        keeper.turn()
        time.sleep(TURN_S)


def settings_of(url: str, given: argparse.Namespace, model: ModelServer, redis: RedisServer, home: Path) -> Settings:
    store: dict[str, object] = {"store_url": url} if url else {}
    return settings_for(
        home,
        redis_url=redis.url,
        embedder="openai:bench",
        embedder_base_url=model.url,
        embedder_api_key="none",
        embedder_dimension=given.dim,
        chunker="windows:256/32",
        worker_threads=2 * given.threads,
        **store,
    )


def chunked(platform: Platform, run_id: str) -> bool:
    stages = platform.run(run_id).stages
    return stages.get("embed", 0) == sum(stages.values()) > 0


def spent(parts: list[Part]) -> float:
    return sum(tree_cpu(part.pid) for part in parts)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="", help="folder of documents; a made-up corpus when left out")
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--latency-ms", type=float, default=800.0, help="of a request to the model server")
    parser.add_argument("--threads", type=int, default=2, help="of one embed worker")
    parser.add_argument("--stores", default="embedded,elasticsearch")
    parser.add_argument("--elasticsearch-url", default="")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
