"""One owner a data folder, run files, queue names and logs without secrets."""

from __future__ import annotations

import io
import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.contracts import Lane, Stage
from pipeline.errors import BadRequest, Conflict
from pipeline.settings import Settings
from workers import broker, logs, queues, runfile
from workers.worker import served


def test_a_data_folder_has_one_owner_and_is_free_when_it_is_gone(tmp_path: Path) -> None:
    with runfile.Owner(str(tmp_path)):
        with pytest.raises(Conflict, match=str(tmp_path)) as caught:
            runfile.Owner(str(tmp_path)).__enter__()
        assert "DUJIANG_HOME" in caught.value.hint
    with runfile.Owner(str(tmp_path)):
        pass


def test_a_run_file_comes_back_and_names_a_supervisor_that_is_gone(tmp_path: Path) -> None:
    state = runfile.State(2**22 + 1, 1.0, "redis://x", "http://a", "http://f", True, (runfile.Entry("index", "worker", 5, ("q",)),))
    runfile.write(str(tmp_path), state)
    assert runfile.read(str(tmp_path)) == state
    assert not runfile.alive(state)
    runfile.clear(str(tmp_path))
    assert runfile.read(str(tmp_path)) is None


def test_every_stage_has_a_queue_in_every_lane_with_our_prefix() -> None:
    assert len(queues.all_queues()) == len(queues.ORDER) * len(Lane)
    assert all(name.startswith("dujiang.") for name in queues.all_queues())
    assert {queues.stage_of(name) for name in queues.all_queues()} == set(queues.ORDER)
    assert {queues.stage_of(name) for name in queues.declared()} == set(Stage), "the graph's, which nothing waits for, is in the bulk lane alone"


def test_a_worker_may_be_given_stages_or_queues_and_a_wrong_name_is_refused() -> None:
    assert served("parse") == ("dujiang.parse.interactive", "dujiang.parse.bulk")
    assert served("dujiang.embed.bulk,index.bulk") == ("dujiang.embed.bulk", "dujiang.index.bulk")
    with pytest.raises(BadRequest, match="prase"):
        served("prase")


@pytest.mark.parametrize(
    ("url", "shifted", "client"),
    [
        ("redis://:p@host:6379/2", "redis://:p@host:6379/3", "redis://:p@host:6379/3"),
        ("redis://host:6379", "redis://host:6379/1", "redis://host:6379/1"),
        ("redis+socket:///run/r.sock?virtual_host=0", "redis+socket:///run/r.sock?virtual_host=1", "unix:///run/r.sock?db=1"),
    ],
)
def test_answers_live_in_the_database_after_the_queues(url: str, shifted: str, client: str) -> None:
    assert broker.with_db(url, 1) == shifted
    assert broker.client_url(shifted) == client


@pytest.mark.parametrize("form", ["text", "json"])
def test_secrets_reach_no_log_line(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    before = logging.getLogger().handlers[:]
    try:
        logs.configure(replace(Settings(), llm_api_key="sk-very-secret", log_format=form))
        try:
            raise ValueError("call to https://user:hunter2@host failed with sk-very-secret")
        except ValueError:
            logging.getLogger("dujiang.test").exception("failed %s", "Authorization: Bearer abc123", extra={"stage": "embed", "batch": 7})
    finally:
        logging.getLogger().handlers[:] = before
    text = stream.getvalue()
    assert "sk-very-secret" not in text and "hunter2" not in text and "abc123" not in text
    assert "embed" in text
    if form == "json":
        assert json.loads(text)["batch"] == 7
