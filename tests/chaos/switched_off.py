"""Shows that the chaos tests can fail: one protection after the other is switched off, and the test that watches it must turn red.

    python -m tests.chaos.switched_off [NAME …]

A protection is switched off by changing a line in a copy of the source tree, never by a switch in the product. Each test is run in the
untouched copy first, where it must pass. Prints a table; exits with 1 when a test stayed green, or was red already.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TREE = ("pipeline", "graphrag", "workers", "api", "tests", "bench", "pyproject.toml", "dujiang.py")
MOST_S = 60
"""Of one test; with its protection it takes a few seconds."""
SEED = "20261201"


@dataclass(frozen=True)
class Off:
    """How one protection is switched off, and which test must notice."""

    name: str
    file: str
    old: str
    new: str
    test: str
    chosen: str = ""
    """Part of the test's names, where the file has several."""


WORKERS = "tests/chaos/test_killed_workers.py"
FROZEN = "tests/chaos/test_frozen_workers.py"
MESSAGES = "tests/chaos/test_messages.py"
REDIS = "tests/chaos/test_lost_redis.py"

PROTECTIONS: tuple[Off, ...] = (
    Off(
        "token and lease at the commit",
        "workers/ledger/batches.py",
        '_CLOSE = (\n    update(batches)\n    .where(_MINE, batches.c.status == "leased")\n',
        '_CLOSE = (\n    update(batches)\n    .where(batches.c.id == bindparam("batch"))\n',
        FROZEN,
        "commits_nothing and embed",
    ),
    Off(
        "the store refuses an older version",
        "pipeline/stores/embedded_write.py",
        "if (name not in live or live[name][1] <= rows.document.version)",
        "if (name not in live or True)",
        FROZEN,
        "middle_of_its_write",
    ),
    Off(
        "a repeated write replaces",
        "pipeline/stores/embedded_write.py",
        "    remove(connection, [live[name] for name in winners if name in live])\n",
        "",
        WORKERS,
        "between",
    ),
    Off(
        "one claim for a message",
        "workers/ledger/batches.py",
        '    .where(_MINE, batches.c.status == "queued")\n',
        '    .where(batches.c.id == bindparam("batch"))\n',
        MESSAGES,
        "come_twice",
    ),
    Off(
        "the sweep",
        "workers/sweep.py",
        "    issues = sweeping.expired(feeder.db)\n",
        "    return 0\n    issues = sweeping.expired(feeder.db)\n",
        REDIS,
        "forgot",
    ),
    Off(
        "the mark that tells of a wiped Redis",
        "workers/sweep.py",
        "    if known is not None and known == there:\n",
        "    if known is not None:\n",
        REDIS,
        "although_new_messages",
    ),
    Off(
        "halving a batch that killed its worker",
        "workers/ledger/losses.py",
        "middle = (len(found) + 1) // 2",
        "middle = len(found)",
        "tests/chaos/test_poison.py",
        "chunk",
    ),
    Off(
        "quarantine after three deaths",
        "workers/ledger/losses.py",
        "POISON_AFTER = 3",
        "POISON_AFTER = 10_000",
        "tests/chaos/test_poison.py",
        "index",
    ),
    Off(
        "a dead process of the pool gives its lease back at once",
        "workers/tasks.py",
        "if isinstance(exception, WorkerLostError) and args:",
        "if False:",
        WORKERS,
        "process and load",
    ),
    Off(
        "the supervisor takes over the leases of a dead node",
        "workers/supervisor.py",
        'at_work = child.role == "worker" and self._take_over(child)',
        "at_work = False",
        WORKERS,
        "embed",
    ),
    Off(
        "a message that nobody can read is put away",
        "workers/consumer.py",
        "except (AttributeError, LookupError, TypeError, ValueError) as error:",
        "except ZeroDivisionError as error:",
        MESSAGES,
        "nobody_understands and index",
    ),
    Off(
        "a half-written artifact is removed",
        "workers/artifacts/local.py",
        "with suppress(OSError):\n                temporary.unlink()",
        "with suppress(OSError):\n                temporary.stat()",
        "tests/chaos/test_full_disks.py",
        "artifacts",
    ),
    Off(
        "waiting for a service costs no attempt",
        "workers/verdict.py",
        "        if not error.costs_attempt:\n",
        "        if False:\n",
        "tests/chaos/test_lost_model_server.py",
        "away_in_mid_run",
    ),
    Off(
        "a worker asks what is still its own before it writes",
        "workers/stages.py",
        "    ready = [item for item in desk.alive() if item.work.document_id in mine]\n",
        "    ready = desk.alive()\n",
        "tests/unit/test_cancelling.py",
        "writes_none",
    ),
    Off(
        "what is written while its run is cancelled is taken back",
        "workers/stage.py",
        "        _take_back(desk)\n",
        "        pass\n",
        "tests/unit/test_cancelling.py",
        "taken_back",
    ),
)


@contextmanager
def copied() -> Iterator[Path]:
    """The source tree, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="dujiang-switched-off-") as scratch:
        for name in TREE:
            source, target = ROOT / name, Path(scratch) / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        yield Path(scratch)


@contextmanager
def without(tree: Path, off: Off) -> Iterator[None]:
    """The line is changed meanwhile. Fails when it is not there exactly once: then this list is out of date."""
    path = tree / off.file
    text = path.read_text(encoding="utf-8")
    if text.count(off.old) != 1:
        raise SystemExit(f"{off.name}: {off.file} has the line to be changed {text.count(off.old)} times")
    path.write_text(text.replace(off.old, off.new), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(text, encoding="utf-8")


def tested(tree: Path, off: Off) -> tuple[int, str]:
    """Exit code of pytest (0 passed, 1 failed), and the last reason that it gives."""
    chosen = ("-k", off.chosen) if off.chosen else ()
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:randomly",
        "-p",
        "no:cacheprovider",
        "--chaos-full",
        "--timeout",
        str(MOST_S),
        off.test,
        *chosen,
    ]
    environment = {**os.environ, "DUJIANG_CHAOS_SEED": SEED, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    reasons = re.findall(r"^E +((?:\w+\.)*\w*(?:Error|Failed|Timeout|Unavailable)\b.*|assert .*|Failed: .*)$", done.stdout, re.MULTILINE)
    return done.returncode, (reasons[0] if reasons else done.stdout.strip().splitlines()[-1])[:110]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="parts of names of protections; all when left out")
    given = parser.parse_args()
    wanted = [off for off in PROTECTIONS if not given.names or any(name in off.name for name in given.names)]
    bad = 0
    print("| protection | with it | without it | what the test says then | s |\n|---|---|---|---|---|")
    with copied() as tree:
        for off in wanted:
            began = time.monotonic()
            code, reason = tested(tree, off)
            before = "passes" if code == 0 else f"FAILS: {reason}"
            with without(tree, off):
                after, reason = tested(tree, off)
            bad += code != 0 or after != 1
            verdict = "fails" if after == 1 else "STAYS GREEN" if after == 0 else f"pytest ended with {after}"
            print(f"| {off.name} | {before} | {verdict} | {reason.replace('|', '/')} | {time.monotonic() - began:.0f} |", flush=True)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
