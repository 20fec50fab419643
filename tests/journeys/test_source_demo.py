"""What `make demo SOURCE=` shows a newcomer."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from pipeline.settings import child_environment
from tests.system import ROOT, settings_for
from workers import runfile


def test_a_simulated_yuque_is_taken_in_asked_changed_and_followed_and_nothing_stays_running(tmp_path: Path) -> None:
    environment = {name: value for name, value in child_environment(settings_for(tmp_path)).items() if not name.endswith("_URL")}
    command = [sys.executable, "-m", "tests.simulators.demo", "yuque"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert "8 documents = 8 indexed" in done.stdout
    assert "石桥站水位7.84米" in done.stdout and "8.10 metres above zero" in done.stdout
    assert len(re.findall(r"^\[1\] .* http://127\.0\.0\.1:\d+/shui/", done.stdout, re.MULTILINE)) == 3
    assert "1 changed, 1 deleted, 6 unchanged" in done.stdout
    assert "夜班从二十二点到次日六点" in done.stdout.partition("Meanwhile")[2]
    assert not runfile.alive(runfile.read(str(tmp_path / "demo-yuque")))
