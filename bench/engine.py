"""One phase through the real engine: ledger, server, workers. Prints a line ``RESULT {…}``; state is kept in --work.

python -m bench.engine --corpus DIR --n 1000 --url http://127.0.0.1:9000/v1 --work DIR --phase first|again|changed
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path

from bench.corpus import files
from bench.cost import report, tree_cpu
from pipeline.settings import Settings, load
from workers.dispatch import open_platform
from workers.session import ensure_running
from workers.views import Incoming, RunView


def settings_of(given: argparse.Namespace) -> Settings:
    flags: dict[str, object] = {
        "home": str(Path(given.work).resolve() / "home"),
        "embedder": given.embedder,
        "embedder_base_url": given.url,
        "embedder_api_key": "none",
        "embedder_dimension": given.dim,
        "chunker": given.chunker,
    }
    return load(flags).settings


def incoming(given: argparse.Namespace) -> Iterator[Incoming]:
    for file in files(Path(given.corpus), given.n, changed=given.phase == "changed"):
        yield Incoming(key=file.key, path=str(file.path))


def main() -> None:
    given = arguments()
    settings = settings_of(given)
    began, cpu = time.perf_counter(), tree_cpu(os.getpid())
    with open_platform(settings) as platform:
        run = platform.ingest("bench", incoming(given))
        submit_s, submit_cpu = time.perf_counter() - began, tree_cpu(os.getpid()) - cpu
        start_s = start_cpu = work_s = work_cpu = 0.0
        if not run.finished:
            began, cpu = time.perf_counter(), tree_cpu(os.getpid())
            with ensure_running(settings):
                start_s, start_cpu = time.perf_counter() - began, tree_cpu(os.getpid()) - cpu
                began, cpu = time.perf_counter(), tree_cpu(os.getpid())
                run = platform.wait(run.run_id)
                work_s, work_cpu = time.perf_counter() - began, tree_cpu(os.getpid()) - cpu
        messages = _messages(settings)
    _report(run, submit_s + work_s, submit_cpu + work_cpu, start_s, start_cpu, messages)


def _messages(settings: Settings) -> int:
    from sqlalchemy import func, select

    from workers.ledger.engine import Database
    from workers.ledger.schema import batches

    db = Database(settings.ledger_url)
    with db.read() as connection:
        return int(connection.scalar(select(func.count()).select_from(batches)) or 0)


def _report(run: RunView, wall_s: float, cpu_s: float, start_s: float, start_cpu: float, messages: int) -> None:
    report(
        wall_s=round(wall_s, 3),
        cpu_s=round(cpu_s, 3),
        docs=run.discovered,
        chunks=run.chunks,
        indexed=run.indexed,
        unchanged=run.unchanged,
        failed=run.failed,
        start_wall_s=round(start_s, 3),
        start_cpu_s=round(start_cpu, 3),
        messages=messages,
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--url", required=True)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--work", required=True)
    parser.add_argument("--phase", choices=("first", "again", "changed"), default="first")
    parser.add_argument("--embedder", default="openai:bench")
    parser.add_argument("--chunker", default="windows:256/32")
    return parser.parse_args()


if __name__ == "__main__":
    main()
