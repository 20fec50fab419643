"""What a whole system writes to its logs while it works, with failures of every kind: where it was, never what the documents say, and no key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.simulators.model_server import ModelServer
from tests.system import System, fill, until

WORDS = "Zwiebelfisch-kolophon"
NAME = "confidential-plan"
KEY = "sk-never-to-be-seen-4711"
CONTEXT = {"stage", "run", "batch", "token"}


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Process → its log, at the level that says most, after a run with good documents, bad ones, and a model server that fails."""
    folder = fill(tmp_path_factory.mktemp("docs") / "docs", 12)
    for number in range(3):
        (folder / f"{NAME}-{number}.md").write_text(f"# {WORDS}\n\nThe {WORDS} of {number} is told here.\n")
    (folder / f"{NAME}-broken.docx").write_bytes(b"PK\x03\x04" + WORDS.encode() * 50)
    (folder / f"{NAME}-broken.pdf").write_bytes(b"%PDF-1.7\n" + WORDS.encode() * 50)
    (folder / f"{NAME}-broken.json").write_text(f'{{"{WORDS}": ')
    with ModelServer(dim=64, fail_500_rate=1.0) as model:
        given: dict[str, Any] = {"embedder": "openai:stub", "embedder_base_url": model.url, "embedder_api_key": KEY}
        given |= {"log_level": "debug", "log_format": "json"}
        with System(tmp_path_factory.mktemp("home"), **given) as system:
            run = system.ingest(folder)
            until(lambda: model.stats()["fail_500"], 20.0, "the model server has failed")
            model.config(fail_500_rate=0.0)
            ended = system.finish(run)
            assert ended.indexed >= 15 and ended.failed >= 2, ended
        yield {path.stem: path.read_text(encoding="utf-8") for path in (system.home / "run" / "logs").glob("*.log")}


def events(logs: dict[str, str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name in ("compute", "network", "index"):
        for line in logs[name].splitlines():
            if line.startswith("{"):
                found.append(json.loads(line))
    return found


@pytest.mark.parametrize("secret", [WORDS, NAME, KEY, "station"])
def test_neither_content_nor_names_nor_keys_are_in_any_log(logs: dict[str, str], secret: str) -> None:
    assert [name for name, text in logs.items() if secret in text] == []


def test_every_event_of_a_stage_says_where_it_belongs(logs: dict[str, str]) -> None:
    done = [event for event in events(logs) if event["event"] == "stage done"]
    assert {event["stage"] for event in done} == {"load", "parse", "chunk", "embed", "index"}
    assert all(event.keys() >= CONTEXT | {"documents", "stopped", "seconds"} for event in done)


def test_a_document_that_stopped_is_told_by_its_id_with_code_and_attempt(logs: dict[str, str]) -> None:
    stopped = [event for event in events(logs) if event["event"] == "document stopped"]
    assert stopped
    assert all(event.keys() >= CONTEXT | {"document", "attempt", "status", "code"} for event in stopped)
