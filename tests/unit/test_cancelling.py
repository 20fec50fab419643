"""Work that is cancelled or deleted while a stage is at it: the stage leaves it, and its neighbours go on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline import chunk as chunking
from pipeline import parse as parsing
from pipeline.contracts import EmbeddedChunks
from tests.system import markdown, settings_for
from tests.unit.test_stages import Counting, begin, finished, formed, parsed_here, step
from workers import desk as desks
from workers import stages, verdict
from workers.dispatch import Platform, open_platform
from workers.stage import run_stage


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    """Stages look into the ledger before each document, and retries come at once."""
    monkeypatch.setattr(desks, "LOOK_S", 0.0)
    monkeypatch.setattr(verdict, "jitter", lambda tries, cap_s=0.0: 0.0)
    with open_platform(settings_for(tmp_path)) as opened:
        monkeypatch.setattr(opened.runtime, "parse", parsed_here)
        yield opened


def test_a_run_that_is_cancelled_while_its_texts_are_embedded_sends_no_further_request(platform: Platform) -> None:
    counting = Counting(platform)
    asked: list[int] = []

    def pieces(texts: Sequence[str]) -> Iterator[tuple[int, EmbeddedChunks]]:
        for place in range(len(texts)):
            asked.append(place)
            if place == 1:
                platform.cancel(run.run_id)
            yield place, counting.inner.encode(texts[place : place + 1])

    counting.pieces = pieces  # type: ignore[attr-defined]
    run = begin(platform, a=markdown(1), b=markdown(2))
    (embed,) = step(platform, formed(platform))
    assert run_stage(embed.batch_id, embed.token, platform.runtime) == []
    assert asked == [0, 1]
    ended = platform.run(run.run_id)
    assert (ended.status, ended.cancelled, ended.discovered) == ("cancelled", 2, 2)
    assert finished(platform, begin(platform, a=markdown(1), b=markdown(2))).indexed == 2


@pytest.mark.parametrize("stage", ["parse", "chunk"])
def test_a_cancellation_is_seen_between_two_documents_of_a_stage(platform: Platform, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    monkeypatch.setattr(stages, "PARSED_AT_ONCE", 1)
    done: list[str] = []

    def cancels(name: str) -> None:
        done.append(name)
        if len(done) == 2:
            platform.cancel(run.run_id)

    parse, cut = parsing.parse, chunking.chunk
    if stage == "parse":
        monkeypatch.setattr(parsing, "parse", lambda raw, options: (cancels("document"), parse(raw, options))[1])
    else:
        monkeypatch.setattr(chunking, "chunk", lambda *given: (cancels("document"), cut(*given))[1])
    run = begin(platform, a=markdown(1), b=markdown(2), c=markdown(3), d=markdown(4))
    (issue,) = formed(platform)
    assert run_stage(issue.batch_id, issue.token, platform.runtime) == []
    assert len(done) == 2
    ended = platform.run(run.run_id)
    assert (ended.status, ended.cancelled, ended.failed) == ("cancelled", 4, 0)


@pytest.mark.parametrize("answered", [False, True], ids=["new", "changed"])
def test_what_is_written_while_its_run_is_cancelled_is_taken_back(platform: Platform, monkeypatch: pytest.MonkeyPatch, answered: bool) -> None:
    if answered:
        assert finished(platform, begin(platform, a=markdown(1), b=markdown(2))).indexed == 2
    before = platform.audit("docs").collections[0].digest if answered else ""
    write = stages.indexing.index

    def cancels(*given: Any) -> Any:
        platform.cancel(run.run_id)
        return write(*given)

    run = begin(platform, a=markdown(1, edition=2), b=markdown(2, edition=2), c=markdown(3))
    with monkeypatch.context() as patch:
        patch.setattr(stages.indexing, "index", cancels)
        ended = finished(platform, run)
    assert (ended.status, ended.cancelled, ended.indexed) == ("cancelled", 3, 0)
    for other in platform.runs().data:
        finished(platform, other)
    held = platform.audit("docs")
    assert held.ok and held.collections[0].documents == (2 if answered else 0)
    assert not answered or held.collections[0].digest == before
    assert platform.run(run.run_id) == ended


def test_one_deleted_document_does_not_hold_up_its_neighbours(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begin(platform, a=markdown(1), b=markdown(2), c=markdown(3))
    (issue,) = formed(platform)
    gone = [item.document_id for item in platform.run_items(run.run_id).data if item.document == "b.md"]
    cut = chunking.chunk

    def deletes(*given: Any) -> Any:
        while gone:
            platform.delete_document("docs", gone.pop())
        return cut(*given)

    monkeypatch.setattr(chunking, "chunk", deletes)
    run_stage(issue.batch_id, issue.token, platform.runtime)
    ended = finished(platform, run)
    assert (ended.indexed, ended.cancelled + ended.skipped, ended.discovered) == (2, 1, 3)


def test_a_run_that_is_cancelled_while_its_outputs_are_read_for_the_index_writes_none(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    read = stages._as_vectors  # pyright: ignore[reportPrivateUsage]

    def cancels(*given: Any) -> Any:
        platform.cancel(run.run_id)
        return read(*given)

    run = begin(platform, a=markdown(1), b=markdown(2))
    (embed,) = step(platform, formed(platform))
    (index,) = run_stage(embed.batch_id, embed.token, platform.runtime) or formed(platform)
    monkeypatch.setattr(stages, "_as_vectors", cancels)
    written: list[object] = []
    monkeypatch.setattr(stages.indexing, "index", lambda *given: written.append(given) or [])
    assert run_stage(index.batch_id, index.token, platform.runtime) == []
    ended = platform.run(run.run_id)
    assert (ended.status, ended.cancelled, ended.indexed) == ("cancelled", 2, 0)
    held = platform.audit("docs")
    assert held.ok and held.collections[0].documents == 0 and not written
