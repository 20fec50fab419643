"""What the tests do on a machine that lacks a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import pytest_terminal_summary
from tests.servers import Lacking, elasticsearch, lacking


def test_a_lack_is_a_skip_by_name_and_a_failure_under_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="this machine lacks Elasticsearch: no mvn"):
        lacking("Elasticsearch", "no mvn")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="this machine lacks Elasticsearch: no mvn"):
        lacking("Elasticsearch", "no mvn")


def test_without_maven_or_a_jdk_the_reason_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(elasticsearch, "cache_folder", lambda: tmp_path)
    with pytest.raises(Lacking, match=r"Maven fetches Elasticsearch 9\.5\.4"):
        elasticsearch.install("9.5.4")
    monkeypatch.setattr(elasticsearch, "_java_major", lambda java: 17)
    with pytest.raises(Lacking, match="JDK of 21 or newer; set JAVA_HOME"):
        elasticsearch.java_home("9.5.4")


class Reporter:
    """The part of pytest's reporter that the summary uses."""

    def __init__(self, *reasons: str) -> None:
        self.stats = {"skipped": [Skipped(reason) for reason in reasons]}
        self.shown: list[str] = []

    def section(self, title: str) -> None:
        self.shown.append(title)

    line = section


class Skipped:
    def __init__(self, reason: str) -> None:
        self.longrepr = ("test.py", 1, f"Skipped: {reason}")


def test_the_summary_counts_each_lack_and_leaves_other_skips_alone() -> None:
    reporter = Reporter("this machine lacks A: x", "not on Windows", "this machine lacks A: x", "this machine lacks B: y")
    pytest_terminal_summary(reporter)  # pyright: ignore[reportArgumentType]
    assert reporter.shown == ["not tested on this machine", "2 skipped: this machine lacks A: x", "1 skipped: this machine lacks B: y"]
    empty = Reporter("not on Windows")
    pytest_terminal_summary(empty)  # pyright: ignore[reportArgumentType]
    assert empty.shown == []
