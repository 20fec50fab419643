"""The command line over a platform in memory: output, exit codes, what goes where."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api import cli
from pipeline.errors import Forbidden, RateLimited, Unavailable, Unsupported
from tests.fakes_platform import FakePlatform
from workers.views import Incoming

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakePlatform:
    made = FakePlatform()
    monkeypatch.setenv("DUJIANG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DUJIANG_URL", raising=False)
    monkeypatch.setattr("api.local.open_platform", lambda _settings: made)
    return made


@pytest.fixture
def run(platform: FakePlatform, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def call(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8"))
        code = cli.run(list(arguments))
        said = capfd.readouterr()
        return code, said.out, said.err

    return call


def fill(platform: FakePlatform, collection: str = "books", **texts: str) -> list[str]:
    named = {name.replace("_", "."): text for name, text in texts.items()} or {"a.txt": "the boss approves travel"}
    platform.ingest(collection, [Incoming(key=key, title=key, data=text.encode()) for key, text in named.items()])
    return [view.document_id for view in platform.documents(collection).data]


def test_search_prints_rank_score_title_place_and_excerpt(run: Run, platform: FakePlatform) -> None:
    fill(platform)
    code, out, err = run("search", "travel", "-c", "books")
    assert (code, err) == (0, "")
    assert "1. 1.000  a.txt" in out
    assert "Top › Sub · page 1, lines 1–3" in out
    assert "the boss approves travel" in out
    assert "\x1b" not in out


def test_no_hits_is_no_failure(run: Run, platform: FakePlatform) -> None:
    fill(platform)
    assert run("search", "zebra", "-c", "books")[:2] == (0, "nothing found\n")


def test_json_is_one_document_on_standard_output(run: Run, platform: FakePlatform) -> None:
    fill(platform)
    code, out, err = run("search", "travel", "-c", "books", "--mode", "keyword", "-k", "2", "--json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert json.loads(out)["mode"] == "participle"
    assert platform.questions[-1].k == 2


def test_an_answer_is_followed_by_its_citations(run: Run, platform: FakePlatform) -> None:
    fill(platform)
    code, out, _ = run("ask", "travel", "-c", "books")
    assert code == 0
    assert out.splitlines()[0] == "the boss approves travel [1]"
    assert "[1] a.txt · page 1, lines 1–3" in out
    assert "“the boss approves travel”" in out


@pytest.mark.parametrize("more", [[], ["--json"], ["--stream"], ["--stream", "--json"]])
def test_a_refusal_has_its_own_exit_code_and_says_why(run: Run, platform: FakePlatform, more: list[str]) -> None:
    fill(platform)
    code, out, _ = run("ask", "zebra", "-c", "books", *more)
    assert code == 5
    assert "nothing was found that is near enough" in out


def test_a_streamed_answer_is_json_lines(run: Run, platform: FakePlatform) -> None:
    fill(platform)
    code, out, _ = run("ask", "travel", "-c", "books", "--stream", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert (code, [line["event"] for line in lines]) == (0, ["token"] * 5 + ["answer"])
    assert lines[-1]["answer"] == "the boss approves travel [1]"


@pytest.mark.parametrize("verb", ["search", "ask"])
def test_a_dash_reads_a_question_a_line_and_writes_a_document_a_line(run: Run, platform: FakePlatform, verb: str) -> None:
    fill(platform)
    code, out, _ = run(verb, "-", "-c", "books", stdin="travel\n\n誰批准\nboss\n")
    lines = [json.loads(line) for line in out.splitlines()]
    assert (code, [line["query"] for line in lines]) == (0, ["travel", "誰批准", "boss"])


def test_a_question_that_fails_among_many_has_its_problem_in_its_line(run: Run, platform: FakePlatform) -> None:
    fill(platform)
    code, out, _ = run("search", "-", "-c", "books", "-c", "none", stdin="travel\nboss\n")
    assert code == 1
    assert [json.loads(line)["problem"]["code"] for line in out.splitlines()] == ["not_found", "not_found"]


@pytest.mark.parametrize(
    ("error", "code"),
    [(Forbidden("no"), 4), (RateLimited("slow"), 7), (Unavailable("away"), 1)],
)
def test_a_failure_has_an_exit_code_and_leaves_standard_output_empty(run: Run, platform: FakePlatform, error: Exception, code: int) -> None:
    fill(platform)
    platform.fails = error
    found, out, err = run("search", "x", "-c", "books", "--json")
    problem = json.loads(err)
    assert (found, out, problem["detail"]) == (code, "", str(error))
    assert problem["hint"]
    found, out, err = run("search", "x", "-c", "books")
    assert (found, out) == (code, "")
    assert str(error) in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["serach", "x"],
        ["search"],
        ["search", "x", "--mode", "magic"],
        ["search", "x", "-k", "0"],
        ["search", "x", "-c", "books", "--as-of", "yesterday"],
        ["runs", "fly"],
        ["ingest", "x"],
        ["ingest", ".", "-c", "books", "--meta", "year"],
        ["collections", "delete", "books"],
        ["ask", "x", "--nonsense"],
    ],
)
def test_wrong_usage_is_two(run: Run, platform: FakePlatform, arguments: list[str]) -> None:
    fill(platform)
    code, out, err = run(*arguments, "--json")
    assert (code, out) == (2, "")
    assert json.loads(err)["detail"]


def test_a_wrong_verb_is_told_the_near_one(run: Run) -> None:
    assert "Did you mean 'search'?" in run("serach", "x")[2]


def test_a_bug_is_one_line_and_its_traceback_is_in_the_log(run: Run, platform: FakePlatform, tmp_path: Path) -> None:
    fill(platform)
    platform.fails = ZeroDivisionError("inner detail")
    code, out, err = run("search", "x", "-c", "books")
    assert (code, out, err.count("\n")) == (1, "", 2)
    assert "inner detail" not in err
    assert "inner detail" in (tmp_path / "home" / "run" / "logs" / "command.log").read_text()


# ---------------------------------------------------------------- ingest


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[Incoming]:
    """What the paths are found to hold."""
    items = [Incoming(key="file:///a.md", data=b"one"), Incoming(key="file:///b.md", data=b"two")]
    monkeypatch.setattr("api.incoming.listed", lambda _paths, max_bytes: list(items))
    return items


def test_ingest_prints_the_balance_and_nothing_to_do_the_second_time(run: Run, listed: list[Incoming]) -> None:
    code, out, _ = run("ingest", "x", "-c", "books")
    assert code == 0
    assert "2 documents = 2 indexed + 0 unchanged + 0 skipped + 0 failed + 0 cancelled; 2 chunks" in out
    code, out, _ = run("ingest", "x", "-c", "books")
    assert (code, out) == (0, "nothing to do: all 2 documents are unchanged (run-0002)\n")


def test_failed_documents_are_shown_with_reason_and_cure_and_the_exit_code_is_three(run: Run, listed: list[Incoming]) -> None:
    listed.append(Incoming(key="file:///c.exe", problem=Unsupported("c.exe is a program", hint="Leave it out.")))
    code, out, _ = run("ingest", "x", "-c", "books")
    assert code == 3
    assert "file:///c.exe  [load, unsupported]\n    c.exe is a program\n    → Leave it out.\n" in out
    code, out, err = run("ingest", "x", "-c", "books", "--json")
    assert (code, json.loads(out)["failed"]) == (3, 1)
    assert err == ""


def test_metadata_values_are_what_they_look_like(run: Run, listed: list[Incoming], platform: FakePlatform) -> None:
    arguments = [
        f"--meta={pair}" for pair in ("year=2024", "draft=true", 'tags=["a","b"]', 'id="007"', "zip=007", "note=a=b", "share=.5", "gone=null")
    ]
    assert run("ingest", "x", "-c", "books", *arguments)[0] == 0
    assert platform.documents("books").data[0].metadata == {
        "year": 2024,
        "draft": True,
        "tags": ["a", "b"],
        "id": "007",
        "zip": "007",
        "note": "a=b",
        "share": ".5",
        "gone": "null",
    }


def test_a_dry_run_takes_nothing_in(run: Run, listed: list[Incoming], platform: FakePlatform) -> None:
    code, out, _ = run("ingest", "x", "-c", "books", "--dry-run", "--json")
    assert (code, json.loads(out)["documents"]) == (0, ["file:///a.md", "file:///b.md"])
    assert platform.ingested == []


def test_without_waiting_a_run_is_left_in_the_queue(run: Run, listed: list[Incoming], platform: FakePlatform) -> None:
    platform.held = True
    code, out, _ = run("ingest", "x", "-c", "books", "--no-wait", "--pages", "1-3", "--content", "auto", "--lane", "interactive", "--json")
    assert (code, json.loads(out)["status"]) == (0, "running")
    assert platform.calls[0][1] == {
        "lane": "interactive",
        "source": "command line",
        "options": {"pages": "1-3", "content": "auto"},
        "tenant": "default",
    }


def test_a_mistyped_path_is_an_error_and_no_failed_document(run: Run, platform: FakePlatform, tmp_path: Path) -> None:
    code, out, err = run("ingest", str(tmp_path / "nowhere"), "-c", "books")
    assert (code, out) == (1, "")
    assert "nowhere does not exist" in err
    (tmp_path / "a.md").write_text("# A")
    code, out, _ = run("ingest", str(tmp_path), str(tmp_path / "nowhere"), "-c", "books")
    assert code == 3
    assert "2 documents = 1 indexed" in out


# ---------------------------------------------------------------- the other verbs


def test_runs_are_listed_shown_and_steered(run: Run, platform: FakePlatform) -> None:
    platform.held = True
    fill(platform)
    assert "run-0001" in run("runs", "list")[1]
    assert json.loads(run("runs", "list", "-c", "books", "--json")[1])["data"][0]["run_id"] == "run-0001"
    assert json.loads(run("runs", "pause", "run-0001", "--json")[1])["status"] == "paused"
    assert json.loads(run("runs", "resume", "run-0001", "--json")[1])["status"] == "running"
    assert json.loads(run("runs", "show", "run-0001", "--items", "indexed", "--json")[1])["data"][0]["document"] == "a.txt"
    assert "0/1" in run("runs", "show", "run-0001")[1].replace("1/1", "0/1")
    assert json.loads(run("runs", "cancel", "run-0001", "--json")[1])["status"] == "cancelled"
    assert run("runs", "cancel", "run-0001")[0] == 1
    assert run("runs", "show", "none")[0] == 1


def test_the_number_that_flower_shows_leads_to_its_documents(run: Run, platform: FakePlatform) -> None:
    fill(platform)
    shown = json.loads(run("batches", "show", "1", "--json")[1])
    assert (shown["batch_id"], shown["stages"], shown["documents"][0]["document"]) == (1, ["load", "parse", "chunk"], "a.txt")
    assert "a.txt" in run("batches", "show", "1")[1]
    assert run("batches", "show", "99")[0] == 1 and run("batches", "show", "x")[0] == 2


def test_failures_are_listed_and_shown_with_their_traceback(run: Run, platform: FakePlatform) -> None:
    platform.ingest("books", [Incoming(key="c.exe", problem=Unsupported("a program"))])
    listed = json.loads(run("failures", "list", "-c", "books", "--json")[1])
    assert (listed["data"][0]["code"], listed["data"][0]["traceback"]) == ("unsupported", None)
    shown = run("failures", "show", listed["data"][0]["document_id"])[1]
    assert "Traceback" not in shown and "--traceback" in shown
    assert "Traceback" in run("failures", "show", listed["data"][0]["document_id"], "--traceback")[1]
    assert "→ Convert it" in run("failures", "list")[1]


def test_collections_are_created_shown_and_deleted_only_when_meant(run: Run, platform: FakePlatform) -> None:
    assert run("collections", "create", "books", "--chunker", "windows:256/32")[0] == 0
    assert json.loads(run("collections", "show", "books", "--json")[1])["chunker"] == "windows:256/32"
    assert "books" in run("collections", "list")[1]
    assert run("collections", "delete", "books")[0] == 2
    assert json.loads(run("collections", "delete", "books", "--dry-run", "--json")[1])["deleted"] is False
    assert run("collections", "show", "books")[0] == 0
    assert run("collections", "delete", "books", "--yes")[0] == 0
    assert run("collections", "show", "books")[0] == 1


def test_a_document_is_found_by_id_or_by_key(run: Run, platform: FakePlatform) -> None:
    (identity,) = fill(platform)
    assert json.loads(run("documents", "show", identity, "-c", "books", "--json")[1])["text"] == "the boss approves travel"
    assert "the boss approves travel" in run("documents", "show", "a.txt", "-c", "books")[1]
    assert json.loads(run("documents", "list", "-c", "books", "--json")[1])["data"][0]["document_id"] == identity
    assert run("documents", "delete", "a.txt", "b.txt", "-c", "books", "--yes")[0] == 1
    assert run("documents", "delete", "a.txt", "-c", "books", "--yes")[0] == 0
    assert run("documents", "show", "a.txt", "-c", "books")[0] == 1


def test_audit_and_doctor_tell_by_their_exit_code(run: Run, platform: FakePlatform) -> None:
    fill(platform)
    assert json.loads(run("audit", "--json")[1])["collections"][0]["digest"] == "d" * 64
    assert (run("audit", "-c", "books")[0], run("doctor")[0]) == (0, 0)
    platform.degraded = ("2 documents missing",)
    code, out, _ = run("audit", "--json")
    assert (code, json.loads(out)["ok"]) == (1, False)
    assert run("doctor")[0] == 1


def test_status_is_readable_and_parsable(run: Run, platform: FakePlatform) -> None:
    platform.degraded = ("redis: does not answer",)
    assert "degraded: redis: does not answer" in run("status")[1]
    assert json.loads(run("status", "--json")[1])["queues"]["dujiang.load.bulk"]["consumers"] == 1


def test_settings_are_shown_with_their_origin_and_without_secrets(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("DUJIANG_STORE_URL", "elasticsearch+http://elastic:password@localhost:9200")
    _, out, err = run("config", "show", "--json")
    shown = json.loads(out)
    assert shown["llm_api_key"] == {"value": "***", "origin": "OPENAI_API_KEY"}
    assert shown["store_url"] == {"value": "elasticsearch+http://***@localhost:9200", "origin": "DUJIANG_STORE_URL"}
    assert shown["port"] == {"value": 8400, "origin": "default"}
    assert "sk-secret" not in out + err + run("config", "show")[1]


def test_a_key_is_printed_once_and_alone(run: Run, platform: FakePlatform) -> None:
    code, out, err = run("keys", "create", "reader", "-c", "books", "--permission", "read")
    assert (code, out) == (0, "dj_key-1_secret\n")
    assert "read on books" in err
    assert "secret" not in run("keys", "list")[1] + run("keys", "list", "--json")[1]
    assert run("keys", "revoke", "key-1")[0] == 2
    assert run("keys", "revoke", "key-1", "--yes")[0] == 0
    assert run("keys", "revoke", "key-9", "--yes")[0] == 1


def test_logs_are_prefixed_with_their_process(run: Run, tmp_path: Path) -> None:
    assert run("logs")[0] == 1
    folder = tmp_path / "home" / "run" / "logs"
    folder.mkdir(parents=True)
    (folder / "compute.log").write_text("one\ntwo\n")
    (folder / "api.log").write_text("three\x1b[31m\n")
    assert run("logs", "-n", "1")[1] == "api     | three�[31m\ncompute | two\n"
    assert json.loads(run("logs", "--process", "api", "--json")[1])["process"] == "api"
    assert run("logs", "--process", "none")[0] == 1
    (folder / "supervisor.log").write_text("compute  | one\ndujiang  | compute exited with -9\n")
    assert run("logs", "--process", "supervisor", "--process", "compute")[1].count("one") == 1


def test_documents_cannot_steer_the_terminal(run: Run, platform: FakePlatform) -> None:
    fill(platform, evil_txt="travel \x1b]0;owned\x07 \u202e end")
    out = run("search", "travel", "-c", "books")[1] + run("ask", "travel", "-c", "books")[1]
    assert not {"\x1b", "\x07", "\u202e"} & set(out)


@pytest.mark.parametrize("arguments", [["--help"], ["ingest", "--help"], ["ask", "--help"], ["runs", "list", "--help"], ["up", "--help"]])
def test_help_has_an_example_and_imports_nothing_heavy(arguments: list[str]) -> None:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "api.cli", *arguments], cwd=root, capture_output=True, text=True, timeout=60, check=True
    )
    assert "Example: dujiang" in done.stdout
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines() if line.startswith("import time")}
    assert not imported & {"fastapi", "sqlalchemy", "celery", "httpx", "numpy", "pydantic", "workers", "openai", "apsw", "uvicorn"}


def test_every_verb_and_subverb_has_an_example_and_json() -> None:
    import click

    def leaves(command: click.Command, path: str) -> list[tuple[str, click.Command]]:
        if isinstance(command, click.Group):
            context = click.Context(command)
            found: list[tuple[str, click.Command]] = []
            for name in command.list_commands(context):
                inner: Any = command.get_command(context, name)
                found += leaves(inner, f"{path} {name}")
            return found
        return [(path, command)]

    for path, command in leaves(cli.cli, "dujiang"):
        assert (command.epilog or "").startswith(f"Example: {path}"), path
        assert any("--json" in parameter.opts for parameter in command.params), path


def test_progress_shows_counts_rate_and_time_left() -> None:
    from api.progress import Progress

    platform = FakePlatform()
    platform.held = True
    platform.ingest("books", [Incoming(key=str(n), data=b"x") for n in range(3)])
    state = replace(platform.run("run-0001"), discovered=100, indexed=0, stages={"parse": 60, "embed": 40})
    seconds = iter([0.0, 10.0, 12.0, 13.0])
    out = io.StringIO()
    progress = Progress(out, now=lambda: next(seconds))
    progress(state)
    progress(replace(state, indexed=20, failed=5))
    progress(replace(state, indexed=30))
    progress(replace(state, indexed=100, status="done"))
    assert out.getvalue().splitlines() == [
        "0/100 | parse 60  embed 40",
        "25/100 | parse 60  embed 40 | indexed 20 | failed 5 | 2.5/s | 0:30 left",
        "100/100 | parse 60  embed 40 | indexed 100 | 7.7/s",
    ]
