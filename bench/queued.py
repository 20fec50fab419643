"""What a long queue costs: looking over it, feeding from it, asking how it stands; and what a document costs the ledger.

python -m bench.queued [--documents 100000] [--done 300] [--ledger-url URL]

`--ledger-url` names an empty PostgreSQL database; left out, the ledger is a SQLite file.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, event, func, select, text

from bench.corpus import files, make
from pipeline.contracts import Lane
from pipeline.identity import document_id
from tests.servers.redis import RedisServer
from tests.system import settings_for
from workers import feeder as feeding
from workers.broker import CACHE_DB, QUEUE_DB
from workers.dispatch import Platform, open_platform
from workers.feeder import Feeder
from workers.inline import run_inline
from workers.ledger import catalog, forming, intake
from workers.ledger.engine import Database
from workers.ledger.intake import Submission
from workers.ledger.schema import metadata
from workers.sweep import sweep
from workers.views import Incoming

SLICE = 1000
ROUNDS = 15


def main() -> None:
    given = arguments()
    server = RedisServer()
    server.start()
    try:
        with tempfile.TemporaryDirectory(prefix="dujiang-queued-") as folder:
            extra: dict[str, object] = {"ledger_url": given.ledger_url} if given.ledger_url else {}
            settings = settings_for(Path(folder) / "home", redis_url=server.url, **extra)
            with open_platform(settings) as platform:
                per_document(platform, Path(folder) / "corpus", given.done)
                long_queue(platform, server, given.documents)
    finally:
        server.close()


# ---------------------------------------------------------------- a document


def per_document(platform: Platform, corpus: Path, number: int) -> None:
    """Rows and transactions of documents that go all the way, in full batches."""
    items = [Incoming(key=file.key, path=str(file.path)) for file in files(make(corpus, number), number, changed=False)]
    platform.create_collection("done")
    before = rows(platform.db)
    with counted(platform.db) as transactions:
        run = platform.ingest("done", items)
        written = transactions["write"]
        run_inline(platform.runtime, run.run_id)
    after = rows(platform.db)
    print(f"{number} documents taken in and indexed:\n\n| what | for all | a document |\n|---|---|---|")
    for name in sorted(name for name in after if after[name] != before[name]):
        print(f"| rows in {name} | {after[name] - before[name]} | {(after[name] - before[name]) / number:.3f} |")
    print(f"| writing transactions, intake | {written} | {written / number:.3f} |")
    print(f"| writing transactions, stages and feeder | {transactions['write'] - written} | {(transactions['write'] - written) / number:.3f} |")
    print(f"| reading transactions | {transactions['read']} | {transactions['read'] / number:.3f} |\n")


def rows(db: Database) -> dict[str, int]:
    with db.read() as connection:
        return {table.name: int(connection.scalar(select(func.count()).select_from(table)) or 0) for table in metadata.sorted_tables}


@contextmanager
def counted(db: Database) -> Iterator[dict[str, int]]:
    """Transactions of this process from now on, by whether they write."""
    found = {"write": 0, "read": 0}

    def committed(connection: Connection) -> None:
        found["read" if connection.get_execution_options().get("dujiang_read") else "write"] += 1

    event.listen(db.engine, "commit", committed)
    try:
        yield found
    finally:
        event.remove(db.engine, "commit", committed)


# ---------------------------------------------------------------- a queue


def long_queue(platform: Platform, server: RedisServer, number: int) -> None:
    """So many documents wait; then everything that looks at them, again and again."""
    db, runtime = platform.db, platform.runtime
    platform.create_collection("queue")
    collection = catalog.find(db, "default", "queue")
    before = size(db)
    began, cpu = time.perf_counter(), time.process_time()
    run_id = intake.open_run(db, collection, source="bench", lane=Lane.BULK)
    for start in range(0, number, SLICE):
        intake.submit(db, run_id, collection, Lane.BULK, [submission(n) for n in range(start, min(start + SLICE, number))])
    intake.close_scan(db, run_id, complete=True)
    seconds, spent = time.perf_counter() - began, time.process_time() - cpu
    grown = size(db) - before
    print(f"{number} documents waiting:\n\n| what | CPU ms | wall ms | at most, wall ms |\n|---|---|---|---|")
    print(f"| taking them in, a document | {1000 * spent / number:.4f} | {1000 * seconds / number:.4f} | |")
    feeder = Feeder(db, feeding.windows(runtime.profile, processes=4, threads=8), lambda issues: None)
    sweep(feeder, runtime.broker)
    line("a look whether anything waits", lambda: forming.anything_waits(db))
    line("forming the first batches", lambda: feeder.tick(), rounds=1)
    line("a feeder's turn with full windows", lambda: feeder.tick())
    line("a sweep", lambda: sweep(feeder, runtime.broker))
    line("status", lambda: platform.status())
    line("metrics", lambda: platform.metrics())
    line("the run's balance", lambda: platform.runs(limit=1))
    redis_mb = 0.0
    for database in (QUEUE_DB, CACHE_DB):
        with server.client(database) as client:
            redis_mb = int(client.info("memory")["used_memory"]) / 1e6  # type: ignore[index]
    print(f"\nledger: {grown / 1e6:.1f} MB for them, {grown / number:.0f} bytes a document; Redis: {redis_mb:.1f} MB")


def submission(number: int) -> Submission:
    key = f"file:///archive/2026/report-{number:07}.md"
    identity = document_id("default", "queue", key)
    return Submission(identity, key, path=f"/archive/2026/report-{number:07}.md", size=4096, fingerprint="f" * 32, route="fused")


def line(name: str, act: Callable[[], Any], rounds: int = ROUNDS) -> None:
    """Print the median of several rounds."""
    cpu: list[float] = []
    wall: list[float] = []
    for _ in range(rounds):
        began, spent = time.perf_counter(), time.process_time()
        act()
        wall.append(1000 * (time.perf_counter() - began))
        cpu.append(1000 * (time.process_time() - spent))
    print(f"| {name} | {statistics.median(cpu):.2f} | {statistics.median(wall):.2f} | {max(wall):.2f} |", flush=True)


def size(db: Database) -> int:
    """Bytes of the ledger, once what waits in SQLite's log is written into its file."""
    with db.engine.connect().execution_options(isolation_level="AUTOCOMMIT", dujiang_read=True) as connection:
        if not db.sqlite:
            return int(connection.scalar(text("SELECT pg_database_size(current_database())")) or 0)
    raw = db.engine.raw_connection()
    try:
        raw.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        raw.close()
    return Path(str(db.engine.url.database)).stat().st_size


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=100_000, help="how many wait")
    parser.add_argument("--done", type=int, default=300, help="how many go all the way, for rows and transactions")
    parser.add_argument("--ledger-url", default="", help="an empty PostgreSQL database in place of SQLite")
    return parser.parse_args()


if __name__ == "__main__":
    main()
