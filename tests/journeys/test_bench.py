"""The benchmark that a user can run works, on a corpus of its own making."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_loop_and_engine_are_measured_side_by_side() -> None:
    done = subprocess.run([sys.executable, "-m", "bench", "--n", "4", "--rounds", "1"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "| engine again |" in done.stdout and "interleaved pairs" in done.stdout
