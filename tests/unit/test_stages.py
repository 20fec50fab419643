"""Stages through `run_stage`: what a batch comes to when messages double, workers die and single documents misbehave."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select

from pipeline import chunk as chunking
from pipeline import index as indexing
from pipeline import parse as parsing
from pipeline.contracts import EmbeddedChunks, Stage
from pipeline.errors import BrokenContract, PipelineError, RateLimited, Unavailable, Unsupported
from tests.system import markdown, settings_for
from workers import stage as staging
from workers import verdict
from workers.dispatch import Platform, open_platform
from workers.feeder import windows
from workers.inline import run_inline
from workers.ledger import batches, forming, losses, schema
from workers.ledger.work import Issue
from workers.stage import run_stage
from workers.views import Incoming, RunView


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    """Parsing in this process, and retries at once: no child and no waiting."""
    monkeypatch.setattr(verdict, "jitter", lambda tries, cap_s=0.0: 0.0)
    with open_platform(settings_for(tmp_path)) as opened:
        monkeypatch.setattr(opened.runtime, "parse", parsed_here)
        yield opened


def parsed_here(raws: Sequence[Any], options: Any) -> list[Any]:
    found: list[Any] = []
    for raw in raws:
        try:
            found.append(parsing.parse(raw, options))
        except PipelineError as error:
            found.append(error)
    return found


class Counting:
    """The collection's embedder, counting texts; it can be told to fail, or to do something first."""

    def __init__(self, platform: Platform) -> None:
        row = SimpleNamespace(embedder=platform.settings.embedder)
        self.inner = platform.runtime.embedder(row)  # type: ignore[arg-type]
        self.profile = self.inner.profile
        self.texts: list[str] = []
        self.refuses = ""
        self.fails: list[PipelineError] = []
        self.first: Any = lambda: None
        platform.runtime._embedders[platform.settings.embedder] = self  # type: ignore[assignment]

    def encode(self, texts: Sequence[str]) -> EmbeddedChunks:
        self.first()
        if self.fails:
            raise self.fails.pop()
        if self.refuses and any(self.refuses in text for text in texts):
            raise BrokenContract("the model server gave too few vectors")
        self.texts += texts
        return self.inner.encode(texts)

    def close(self) -> None:
        pass


def begin(platform: Platform, *, collection: str = "docs", **texts: str) -> RunView:
    return platform.ingest(collection, [Incoming(f"{name}.md", data=text.encode()) for name, text in texts.items()])


def formed(platform: Platform) -> list[Issue]:
    """What the feeder would publish now."""
    return forming.form(platform.db, windows(platform.runtime.profile, processes=1, threads=1))


def step(platform: Platform, issues: list[Issue]) -> list[Issue]:
    """Work on these, give what comes next."""
    after = [more for issue in issues for more in run_stage(issue.batch_id, issue.token, platform.runtime) or []]
    return after + formed(platform)


def finished(platform: Platform, run: RunView) -> RunView:
    return run_inline(platform.runtime, run.run_id)


def test_a_message_that_comes_twice_is_worked_on_once(platform: Platform) -> None:
    counting = Counting(platform)
    run = begin(platform, a=markdown(1))
    issues = formed(platform)
    while issues:
        following = step(platform, issues)
        for issue in issues:
            assert run_stage(issue.batch_id, issue.token, platform.runtime) is None
        issues = following
    assert platform.run(run.run_id).indexed == 1
    assert len(counting.texts) == platform.run(run.run_id).chunks


def test_a_worker_that_dies_between_the_index_and_the_ledger_leaves_no_trace(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begin(platform, a=markdown(1), b=markdown(2))
    (index,) = step(platform, step(platform, formed(platform)))
    assert index.stage is Stage.INDEX

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(staging.batches, "commit", dies)
        with pytest.raises(KeyboardInterrupt):
            run_stage(index.batch_id, index.token, platform.runtime)
    ahead = platform.audit("docs")
    assert ahead.ok and ahead.collections[0].documents == 2, "the store is ahead of the ledger, and the audit knows that somebody is at work"
    issues = losses.expire(platform.db, index.batch_id, index.token, reason="it died")
    assert len(issues) == 2, "its documents go on in halves"
    for issue in issues:
        run_stage(issue.batch_id, issue.token, platform.runtime)
    assert platform.run(run.run_id).indexed == 2
    audited = platform.audit("docs")
    assert audited.ok and audited.collections[0].documents == 2


def test_a_lease_that_was_lost_meanwhile_commits_nothing(platform: Platform) -> None:
    counting = Counting(platform)
    run = begin(platform, a=markdown(1))
    (embed,) = step(platform, formed(platform))

    others: list[Issue] = []

    def frozen() -> None:
        counting.first = lambda: None
        (again,) = losses.expire(platform.db, embed.batch_id, embed.token, reason="it was frozen")
        others.extend(run_stage(again.batch_id, again.token, platform.runtime) or [])

    counting.first = frozen
    assert run_stage(embed.batch_id, embed.token, platform.runtime) is None
    assert [issue.stage for issue in others] == [Stage.INDEX]
    assert finished(platform, run).indexed == 1
    assert platform.audit("docs").ok


def test_a_run_cancelled_while_its_vectors_are_made_shows_nothing(platform: Platform) -> None:
    counting = Counting(platform)
    run = begin(platform, a=markdown(1), b=markdown(2))
    counting.first = lambda: platform.cancel(run.run_id)
    issues = formed(platform)
    while issues:
        issues = step(platform, issues)
    view = platform.run(run.run_id)
    assert (view.status, view.cancelled, view.indexed) == ("cancelled", 2, 0)
    assert not platform.documents("docs", status="done").data


def test_a_newer_version_wins_whatever_the_order_of_the_work(platform: Platform) -> None:
    first = begin(platform, a="# Old\n\nThe old text of this page.\n")
    (old,) = step(platform, formed(platform))
    second = begin(platform, a="# New\n\nThe new text of this page.\n")
    assert finished(platform, second).indexed == 1
    run_stage(old.batch_id, old.token, platform.runtime)
    assert platform.run(first.run_id).finished
    (document,) = platform.documents("docs").data
    assert "new text" in platform.document_text("docs", document.document_id)
    assert platform.audit("docs").ok


def test_a_bug_stops_its_document_alone_and_keeps_its_traceback(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    real = chunking.chunk

    def buggy(document: Any, *rest: Any) -> Any:
        if "trips" in document.text:
            raise ZeroDivisionError("division by zero")
        return real(document, *rest)

    monkeypatch.setattr(chunking, "chunk", buggy)
    run = finished(platform, begin(platform, good=markdown(1), bad="# Bad\n\nThis trips the chunker.\n"))
    assert (run.indexed, run.failed) == (1, 1)
    (failure,) = run.failures
    assert (failure.document, failure.stage, failure.code, failure.attempts) == ("bad.md", "chunk", "bug", 2)
    assert "ZeroDivisionError" in (platform.failure(failure.document_id).traceback or "")
    assert "division" not in failure.detail, "messages of libraries may hold content"


def test_a_bug_among_many_is_found_by_halving(platform: Platform) -> None:
    """In what a stage does for its documents together, nobody can tell whose fault it is."""
    counting = Counting(platform)

    def trips() -> None:
        raise ZeroDivisionError("division by zero")

    counting.first = trips
    run = begin(platform, a=markdown(1), b=markdown(2))
    (embed,) = step(platform, formed(platform))
    with pytest.raises(ZeroDivisionError):
        run_stage(embed.batch_id, embed.token, platform.runtime)
    counting.first = lambda: None
    assert finished(platform, run).indexed == 2
    with platform.db.read() as connection:
        halves = connection.execute(schema.batches.select().where(schema.batches.c.stages == "embed", schema.batches.c.size == 1)).all()
    assert len(halves) == 2


def test_an_embedder_that_is_not_there_fails_documents_with_its_own_reason(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_collection: object) -> object:
        raise Unsupported("embedder 'local' needs the package 'x', which is not installed", hint="pip install x")

    monkeypatch.setattr(platform.runtime, "embedder", missing)
    run = finished(platform, begin(platform, a=markdown(1), b=markdown(2)))
    assert run.failed == 2
    assert {(failure.stage, failure.code, failure.hint) for failure in run.failures} == {("embed", "unsupported", "pip install x")}


def test_a_document_that_the_model_refuses_is_found_by_halving(platform: Platform) -> None:
    counting = Counting(platform)
    counting.refuses = "number5"
    run = finished(platform, begin(platform, **{f"d{number}": markdown(number) for number in range(9)}))
    assert (run.indexed, run.failed) == (8, 1)
    assert (run.failures[0].document, run.failures[0].stage, run.failures[0].code) == ("d5.md", "embed", "broken_contract")


@pytest.mark.parametrize("named", [True, False], ids=["a store that names it", "a store that does not"])
def test_a_document_that_the_store_refuses_is_set_apart_in_a_few_writes(platform: Platform, monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    sizes: list[int] = []
    real = indexing.index

    def write(store: Any, collection: str, documents: Sequence[Any]) -> Any:
        sizes.append(len(documents))
        if any(document.key == "d5.md" for document in documents):
            raise BrokenContract("the store refused a record", document="d5.md" if named else "")
        return real(store, collection, documents)

    monkeypatch.setattr(indexing, "index", write)
    run = finished(platform, begin(platform, **{f"d{number}": markdown(number) for number in range(40)}))
    assert (run.indexed, run.failed, run.failures[0].document) == (39, 1, "d5.md")
    assert len(sizes) <= (4 if named else 13), sizes


@pytest.mark.parametrize(
    "error", [RateLimited("slow down", after=0.0), Unavailable("the model server is away", dependency=True, after=0.0)], ids=["limited", "away"]
)
def test_waiting_for_a_shared_service_costs_no_document_an_attempt(platform: Platform, error: PipelineError) -> None:
    counting = Counting(platform)
    counting.fails = [error] * (platform.settings.max_attempts + 2)
    run = begin(platform, a=markdown(1), b=markdown(2))
    assert finished(platform, run).indexed == 2
    assert not platform.failures().data


def test_documents_that_wait_for_the_same_service_come_back_in_one_batch(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the first refusal would turn a full request into one for each document."""
    delays = iter(range(1, 100))
    monkeypatch.setattr(verdict, "jitter", lambda tries, cap_s=0.0: float(next(delays)))
    counting = Counting(platform)
    counting.fails = [Unavailable("the model server is away", dependency=True)]
    begin(platform, **{f"d{number}": markdown(number) for number in range(5)})
    assert step(platform, step(platform, formed(platform))) == []
    with platform.db.read() as connection:
        waiting = set(connection.scalars(select(schema.documents.c.next_at).where(schema.documents.c.status == "retry")))
    assert len(waiting) == 1


def test_a_failure_of_its_own_is_tried_again_as_often_as_the_settings_say(platform: Platform) -> None:
    counting = Counting(platform)
    counting.fails = [Unavailable("it broke", after=0.0) for _ in range(100)]
    run = finished(platform, begin(platform, a=markdown(1)))
    assert run.failed == 1 and run.failures[0].attempts == platform.settings.max_attempts
    assert len(counting.fails) == 100 - platform.settings.max_attempts


def test_a_text_that_several_documents_share_is_embedded_once(platform: Platform) -> None:
    counting = Counting(platform)
    run = finished(platform, begin(platform, a="# Rules\n\nThe same rule for all.\n", b="# Rules\n\nThe same rule for all.\n"))
    assert (run.indexed, run.chunks, len(counting.texts)) == (2, 2, 1)


def test_the_same_bytes_in_another_collection_are_not_parsed_again(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    finished(platform, begin(platform, a=markdown(1)))

    def never(raws: Sequence[Any], options: Any) -> list[Any]:
        assert not raws
        return []

    monkeypatch.setattr(platform.runtime, "parse", never)
    assert finished(platform, begin(platform, collection="other", a=markdown(1))).indexed == 1


def test_a_document_whose_stage_output_was_removed_begins_again(platform: Platform, tmp_path: Path) -> None:
    run = begin(platform, a=markdown(1))
    issues = step(platform, formed(platform))
    for pack in (tmp_path / "artifacts" / "chunk").glob("*.pack"):
        pack.unlink()
    while issues:
        issues = step(platform, issues)
    view = finished(platform, run)
    assert view.indexed == 1 and platform.audit("docs").ok


def test_the_ledger_away_at_the_commit_leaves_the_work_to_the_next_lease(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begin(platform, a=markdown(1))
    (issue,) = formed(platform)

    def away(*_: object) -> None:
        raise Unavailable("the ledger does not answer", dependency=True)

    with monkeypatch.context() as patched:
        patched.setattr(batches, "commit", away)
        with pytest.raises(Unavailable):
            run_stage(issue.batch_id, issue.token, platform.runtime)
    for again in losses.expire(platform.db, issue.batch_id, issue.token, reason="the lease ran out"):
        run_stage(again.batch_id, again.token, platform.runtime)
    assert finished(platform, run).indexed == 1


def test_a_disk_that_refuses_stops_the_documents_and_not_the_worker(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    real, refused = platform.runtime.artifacts.write, [0]

    def full(name: str, entries: Sequence[Any]) -> Any:
        if name.startswith("chunk/") and refused[0] < 2:
            refused[0] += 1
            raise Unavailable("cannot write artifacts: No space left on device", dependency=True, after=0.0)
        return real(name, entries)

    monkeypatch.setattr(platform.runtime.artifacts, "write", full)
    run = finished(platform, begin(platform, a=markdown(1), b=markdown(2)))
    assert refused[0] == 2 and (run.indexed, run.failed) == (2, 0)


def test_page_options_are_part_of_what_makes_a_document_unchanged(platform: Platform) -> None:
    item = Incoming("a.md", data=markdown(1).encode())
    finished(platform, platform.ingest("docs", [item]))
    assert platform.ingest("docs", [replace(item)]).unchanged == 1
    assert finished(platform, platform.ingest("docs", [item], options={"pages": "1"})).indexed == 1
