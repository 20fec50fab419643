"""Somebody tries another way of cutting a collection, looks at what it costs, and goes back."""

from __future__ import annotations

from pathlib import Path

from api.client import Dujiang
from tests.journeys.test_first_hour import HANDBOOK, SOME_FAILED, Terminal
from tests.system import settings_for
from workers import generations
from workers.dispatch import open_platform


def test_a_collection_is_cut_anew_and_back_by_the_command_line(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path / "home")
    terminal.run("ingest", str(HANDBOOK), "-c", "handbook")
    before = terminal.json("collections", "show", "handbook")
    assert [one["status"] for one in before["generations"]] == ["live"]
    wanted = ("collections", "reindex", "handbook", "--chunker", "windows:32/0")
    plan = terminal.json(*wanted, "--dry-run")
    assert plan["documents"] == plan["sampled"] == before["documents"] and plan["new_chunks"] > plan["chunks"] == before["chunks"]
    run = terminal.json(*wanted, "--wait")
    assert (run["status"], run["indexed"], run["source"]) == ("done", before["documents"], "reindex")
    after = terminal.json("collections", "show", "handbook")
    assert (after["generation"], after["chunks"]) == (2, plan["new_chunks"])
    assert [one["status"] for one in after["generations"]] == ["retained", "live"]
    assert terminal.json("ingest", str(HANDBOOK), "-c", "handbook")["unchanged"] == before["documents"]
    back = terminal.json("collections", "rollback", "handbook")
    assert (back["status"], back["source"]) == ("done", "rollback")
    assert terminal.json("collections", "show", "handbook")["chunks"] == before["chunks"]
    assert terminal.json("audit", "-c", "handbook")["ok"]


def test_documents_that_fail_are_named_and_the_old_build_answers_until_they_are_accepted(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path / "home")
    (tmp_path / "docs").mkdir()
    for name in ("kept", "lost"):
        (tmp_path / "docs" / f"{name}.md").write_text(f"# Page {name}\n\nThis page is {name}, and the gauge is read at eight.\n")
    terminal.run("ingest", str(tmp_path / "docs"), "-c", "handbook")
    (tmp_path / "docs" / "lost.md").unlink()
    for pack in (tmp_path / "home" / "artifacts").rglob("*.pack"):
        pack.unlink()
    wanted = ("collections", "reindex", "handbook", "--chunker", "windows:32/0")
    run = terminal.json(*wanted, "--wait", code=SOME_FAILED)
    assert (run["status"], run["indexed"], run["failed"]) == ("failed", 1, 1)
    assert [(one["code"], one["stage"]) for one in run["failures"]] == [("source_needed", "load")] and run["failures"][0]["hint"]
    assert terminal.json("collections", "show", "handbook")["generation"] == 1
    accepted = terminal.json("collections", "reindex", "handbook", "--accept-failures", code=SOME_FAILED)
    assert accepted["status"] == "done" and accepted["failed"] == 1
    shown = terminal.json("collections", "show", "handbook")
    assert (shown["generation"], shown["documents"]) == (2, 1)
    assert [one["code"] for one in terminal.json("failures", "list", "-c", "handbook")["data"]] == ["source_needed"]


def test_the_python_client_builds_anew_and_goes_back(tmp_path: Path) -> None:
    with open_platform(settings_for(tmp_path)) as platform, Dujiang(platform=platform) as dujiang:
        platform.create_collection("empty")
        assert dujiang.reindex("empty", chunker="windows:32/0", wait=False).status == "running"
        generations.advance(platform.runtime)
        assert [one.status for one in dujiang.generations("empty")] == ["retained", "live"]
        assert dujiang.rollback("empty", wait=False).status == "done"
