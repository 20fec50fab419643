"""The inline runner: the same stages in one process, also over what another process left undone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import RateLimited
from tests.system import markdown, settings_for
from workers.dispatch import Platform, open_platform
from workers.feeder import windows
from workers.inline import run_inline
from workers.ledger import batches, forming
from workers.views import Incoming, RunView


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    with open_platform(settings_for(tmp_path)) as opened:
        yield opened


def begin(platform: Platform, *numbers: int) -> RunView:
    return platform.ingest("docs", [Incoming(f"{number}.md", data=markdown(number).encode()) for number in numbers])


def test_a_run_is_driven_to_its_end_with_the_run_before_it(platform: Platform) -> None:
    first, second = begin(platform, 1, 2), begin(platform, 3)
    assert run_inline(platform.runtime, second.run_id).indexed == 1
    assert run_inline(platform.runtime, first.run_id).indexed == 2
    assert platform.audit("docs").ok


def test_what_another_process_formed_and_never_sent_is_worked_on(platform: Platform) -> None:
    run = begin(platform, 1)
    assert forming.form(platform.db, windows(platform.runtime.profile, processes=1, threads=1))
    assert run_inline(platform.runtime, run.run_id).indexed == 1


def test_what_another_process_died_on_is_worked_on_when_its_lease_has_run_out(platform: Platform) -> None:
    run = begin(platform, 1, 2)
    (issue,) = forming.form(platform.db, windows(platform.runtime.profile, processes=1, threads=1))
    assert batches.claim(platform.db, issue.batch_id, issue.token, "gone:1:1", lease_s=0.2, deadline_s=60.0)
    assert run_inline(platform.runtime, run.run_id).indexed == 2


def test_a_document_that_must_wait_is_waited_for(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    real, refused = platform.runtime.embedder, list[int]()

    def limited(collection: object) -> object:
        if not refused:
            refused.append(1)
            raise RateLimited("slow down", after=0.1)
        return real(collection)  # type: ignore[arg-type]

    monkeypatch.setattr(platform.runtime, "embedder", limited)
    run = run_inline(platform.runtime, begin(platform, 1).run_id)
    assert refused and (run.indexed, run.failed) == (1, 0)
