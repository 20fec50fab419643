"""Whoever starts, or asks the doctor, hears at once what is wrong with the bucket of the artifacts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.settings import child_environment
from tests.servers.s3 import SECRET, S3Server
from tests.system import ROOT, System, settings_for
from workers.views import CheckView

WRONG = {
    "no_bucket": {"artifacts_url": "s3://nowhere/x"},
    "artifacts_refused": {"artifacts_secret_key": "something-else"},
}
CURES = {"no_bucket": "DUJIANG_ARTIFACTS_URL", "artifacts_refused": "DUJIANG_ARTIFACTS_SECRET_KEY"}
PARTS = {"all": ("workers.supervisor", "--bare"), "worker": ("api.cli", "worker", "--queues", "load")}


def told(server: S3Server, **changed: str) -> dict[str, Any]:
    return {**server.settings(server.bucket("packs"), "start"), **changed}


@pytest.mark.parametrize("code", sorted(WRONG))
@pytest.mark.parametrize("part", sorted(PARTS))
def test_what_cannot_keep_artifacts_does_not_start(tmp_path: Path, s3_server: S3Server, redis_url: str, code: str, part: str) -> None:
    settings = settings_for(tmp_path, redis_url=redis_url, **told(s3_server, **WRONG[code]))
    command = [sys.executable, "-m", *PARTS[part]]
    ended = subprocess.run(command, cwd=ROOT, env=child_environment(settings), capture_output=True, text=True, timeout=60, check=False)
    said = ended.stdout + ended.stderr
    assert ended.returncode != 0
    assert CURES[code] in said and "Traceback" not in said
    assert SECRET not in said and "something-else" not in said


@pytest.mark.parametrize("code", sorted(WRONG))
def test_the_doctor_names_what_is_wrong_with_the_bucket_and_its_cure(tmp_path: Path, s3_server: S3Server, code: str) -> None:
    found = examined(tmp_path, told(s3_server, **WRONG[code]))
    assert not found.ok and CURES[code] in found.hint and "something-else" not in repr(found)


def test_the_doctor_finds_nothing_wrong_with_a_bucket_that_takes_packs(tmp_path: Path, s3_server: S3Server) -> None:
    found = examined(tmp_path, told(s3_server))
    assert found.ok and found.detail == "s3://packs/start"


def examined(home: Path, given: dict[str, Any]) -> CheckView:
    system = System(home, **given)
    try:
        return next(check for check in system.platform.doctor() if check.name == "artifacts")
    finally:
        system.close()
