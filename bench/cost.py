"""CPU and memory of a whole process tree, and the line that reports a measurement."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")


def tree_cpu(root: int) -> float:
    """CPU seconds of a process, all that it started and still runs, and all that these have reaped. Linux only."""
    parents: dict[int, list[int]] = {}
    spent: dict[int, float] = {}
    for pid, fields in _processes():
        parents.setdefault(int(fields[1]), []).append(pid)
        spent[pid] = sum(int(value) for value in fields[11:15]) / TICK
    return sum(spent.get(pid, 0.0) for pid in _below(root, parents))


def tree_memory_mb(root: int) -> float:
    """Memory of a process and all that it started: proportional set size, so that shared pages count once. Linux only."""
    parents: dict[int, list[int]] = {}
    for pid, fields in _processes():
        parents.setdefault(int(fields[1]), []).append(pid)
    return sum(_pss_kb(pid) for pid in _below(root, parents)) / 1000


def _processes() -> Iterator[tuple[int, list[str]]]:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                yield int(entry), Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue


def _below(root: int, parents: Mapping[int, list[int]]) -> Iterator[int]:
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting += parents.get(pid, [])


def _pss_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def report(**figures: object) -> None:
    """Print ``RESULT {json}``, which whoever started this program reads."""
    print("RESULT " + json.dumps(figures), flush=True)
