"""Secrets of sources at rest."""

from __future__ import annotations

import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.errors import BadRequest, Unauthorised
from pipeline.settings import Settings
from tests.system import ROOT
from workers import sealing

SECRET = {"app_secret": "s3cret-value", "token": "env:SOME_TOKEN"}


def test_what_was_sealed_comes_back_and_shows_nothing(tmp_path: Path) -> None:
    settings = Settings(home=str(tmp_path))
    sealed = sealing.seal(settings, "source-1", SECRET)
    assert "s3cret" not in sealed and "app_secret" not in sealed
    assert sealing.unseal(settings, "source-1", sealed) == SECRET
    assert sealed != sealing.seal(settings, "source-1", SECRET), "a nonce is used once"


def test_the_key_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    sealing.key(Settings(home=str(tmp_path)))
    assert stat.S_IMODE((tmp_path / "sealing.key").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["sealing.key"]


def test_processes_that_begin_together_agree_on_one_key(tmp_path: Path) -> None:
    code = "import sys; from pipeline.settings import Settings; from workers import sealing; print(sealing.key(Settings(home=sys.argv[1])).hex())"
    begun = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE) for _ in range(4)]
    assert len({process.communicate(timeout=60)[0] for process in begun}) == 1


def test_a_secret_that_was_moved_to_another_source_or_changed_is_refused(tmp_path: Path) -> None:
    settings = Settings(home=str(tmp_path))
    sealed = sealing.seal(settings, "source-1", SECRET)
    for owner, text in (("source-2", sealed), ("source-1", sealed[:-6] + "AAAA" + sealed[-2:])):
        with pytest.raises(Unauthorised, match="another key"):
            sealing.unseal(settings, owner, text)


def test_a_key_from_the_settings_opens_on_every_host(tmp_path: Path) -> None:
    settings = Settings(home=str(tmp_path / "a"), sealing_key="x" * 40)
    sealed = sealing.seal(settings, "source-1", SECRET)
    assert sealing.unseal(replace(settings, home=str(tmp_path / "b")), "source-1", sealed) == SECRET
    assert not (tmp_path / "a").exists()
    assert settings.masked()["sealing_key"] == "***" and "x" * 40 not in repr(settings)
    with pytest.raises(Unauthorised, match="another key"):
        sealing.unseal(replace(settings, sealing_key="y" * 40), "source-1", sealed)
    with pytest.raises(BadRequest, match="fewer than 32"):
        sealing.seal(replace(settings, sealing_key="short"), "source-1", SECRET)


def test_a_reference_to_the_environment_is_read_late_and_named_when_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "t0ken")
    assert sealing.read(SECRET) == {"app_secret": "s3cret-value", "token": "t0ken"}
    monkeypatch.delenv("SOME_TOKEN")
    with pytest.raises(Unauthorised, match="SOME_TOKEN"):
        sealing.read(SECRET)
