"""Sources at work in the test's own process: a runtime over one ledger, its listings and its stages driven by hand."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.contracts import Question
from tests.simulators.shelf import PLUGINS
from tests.system import LOOK_S, settings_for
from workers import feeder as feeding
from workers.dispatch import Platform
from workers.feeder import Feeder
from workers.ledger import sources
from workers.ledger.work import Issue
from workers.runtime import Runtime
from workers.scanner import prune_late
from workers.sourcing import Sources
from workers.stage import run_stage
from workers.syncing import sync
from workers.views import RunView


class Bench:
    """A platform and its workers in one thread."""

    def __init__(self, home: Path, ledger_url: str = "", **given: object) -> None:
        settings = settings_for(home, **given)
        self.runtime = Runtime(replace(settings, ledger_url=ledger_url) if ledger_url else settings, node="bench")
        self.runtime.db.migrate()
        self.platform = Platform(self.runtime)

    @property
    def sources(self) -> Sources:
        return self.platform.sources

    def close(self) -> None:
        self.platform.close()

    def listing(self, owner: str = "bench:1:1") -> bool:
        """Work on one listing that waits; False when none does."""
        claim = sources.claim(self.runtime.db, owner, lease_s=60.0)
        if claim is None:
            return False
        sync(self.runtime, claim, threading.Event())
        return True

    def sync(self, name: str = "shelf", *, full: bool = False) -> RunView:
        """A whole run: listed, loaded, indexed, and what turned out to be gone deleted."""
        run_id = self.sources.sync(name, full=full).run_id
        deadline = time.monotonic() + 60.0
        while (view := self.platform.run(run_id)) and not view.finished and view.status != "paused":
            assert time.monotonic() < deadline, view
            if not self.work():
                time.sleep(LOOK_S)
        prune_late(self.runtime)
        return self.platform.run(run_id)

    def work(self, swept: Sequence[Issue] = ()) -> bool:
        """One turn of everybody, over what a sweep gave and what waits; False when there was nothing to do."""
        issues = [*swept]
        feeder = Feeder(self.runtime.db, feeding.windows(self.runtime.profile, processes=1, threads=1), issues.extend)
        busy = self.listing()
        feeder.tick()
        busy |= bool(issues)
        while issues:
            issue = issues.pop()
            feeder.send(run_stage(issue.batch_id, issue.token, self.runtime) or [])
        return prune_late(self.runtime) > 0 or busy

    def finds(self, text: str, collection: str = "docs") -> list[str]:
        """Titles of the documents that a search for a text shows, best first."""
        hits = self.platform.search(Question(text, collections=(collection,), k=20)).hits
        return list(dict.fromkeys(hit.title for hit in hits))

    def titles(self, collection: str = "docs") -> dict[str, str]:
        """Title → status of every document that is not deleted."""
        return {view.title: view.status for view in self.platform.documents(collection, limit=1000).data}

    def audit(self, collection: str = "docs") -> int:
        """How many documents the store holds. Fails the test when ledger and store disagree."""
        view = self.platform.audit(collection)
        assert view.ok, view.collections[0].differences
        return view.collections[0].documents


@contextmanager
def plugged(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """With the connectors of tests/plugins installed."""
    with patch.context() as here:
        here.syspath_prepend(str(PLUGINS))
        yield
