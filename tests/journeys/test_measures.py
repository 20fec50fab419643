"""What measures the engine under fire, over a long queue and with more workers runs for whoever tries it, on a corpus of its own making."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(("bench.soak", "--n", "60", "--every", "0.5", "--seed", "3", "--dim", "16"), "same index: True; balanced: True", id="soak"),
        pytest.param(("bench.queued", "--documents", "1500", "--done", "6"), "bytes a document", id="queued"),
        pytest.param(("bench.scaling", "--n", "12", "--rounds", "1", "--stores", "embedded", "--dim", "16"), "| embedded | 2 |", id="scaling"),
    ],
)
def test_a_measurement_runs_to_its_table(arguments: tuple[str, ...], said: str) -> None:
    done = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert said in done.stdout
