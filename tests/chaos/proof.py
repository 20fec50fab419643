"""What must hold after any harm, in one place: every chaos test ends here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

import redis
from sqlalchemy import func, select

from pipeline.contracts import Stage
from tests.simulators.model_server import ModelServer
from tests.system import Counts, System, until
from workers.ledger.schema import artifact_refs, batches, documents, run_items, runs, sources
from workers.ledger.work import Ref
from workers.views import RunView

REQUEST = 128
"""Texts of a full request."""
TOLERANCE = 0.5
"""More requests than an undisturbed run's, beside what died: halves of a batch fill their requests less well."""
SETTLE_S = 20.0


@dataclass(frozen=True)
class Reference:
    """What a corpus comes to, and costs, when nothing happens."""

    counts: Counts
    requests: int
    inputs: int


@dataclass
class Trial:
    """One run over the corpus under a tenant of its own, and the proof that what was done to it cost nothing."""

    corpus: Path
    reference: Reference
    model: ModelServer
    system: System
    tenant: str
    run: RunView = field(init=False)

    def begin(self) -> Trial:
        self._before = self.model.stats()
        self.run = self.system.ingest(self.corpus, tenant=self.tenant)
        return self

    def done(self) -> int:
        """Documents that are indexed by now."""
        return int(self.scalar(select(func.count()).select_from(documents).where(documents.c.tenant == self.tenant, documents.c.status == "done")))

    def reached(self, number: int) -> None:
        """Wait until so many documents are indexed."""
        until(lambda: self.done() >= number, 40.0, f"{number} documents are done")

    def prove(self, *, seconds: float = 90.0, failed: int = 0, expected: Counts | None = None, waste: int | None = 0) -> RunView:
        """Wait for the run's end, and demand everything that an undisturbed run would have shown.

        Args:
            failed: documents that must have failed, each with its reason.
            expected: where it is not what the whole corpus comes to.
            waste: texts that may have been sent twice, beside those of batches that died; None where the model server itself failed.
        """
        ended = self.system.finish(self.run, seconds)
        balanced(ended)
        assert self.system.counts(ended, self.tenant) == (expected or self.reference.counts)
        once_each(self.system, self.tenant)
        failures_say_why(self.system, self.tenant, failed)
        nothing_left(self.system)
        outputs_are_whole(self.system, self.tenant)
        if waste is not None:
            self._paid_once(waste)
        return ended

    def _paid_once(self, waste: int) -> None:
        """Every text was sent once; what a batch had sent when its worker died may be sent again, and nothing else."""
        after = self.model.stats()
        inputs, requests = after["inputs"] - self._before["inputs"], after["embed"] - self._before["embed"]
        died = select(batches.c.chunks).where(batches.c.tenant == self.tenant, batches.c.status == "lost", batches.c.stages == "embed")
        with self.system.platform.db.read() as connection:
            lost = list(connection.scalars(died))
        again = sum(lost) + waste
        assert self.reference.inputs <= inputs <= self.reference.inputs + again, (self.reference.inputs, inputs, again)
        assert requests <= (self.reference.requests + sum(ceil(chunks / REQUEST) for chunks in lost) + ceil(waste / REQUEST)) * (1 + TOLERANCE)

    def scalar(self, statement: Any) -> Any:
        with self.system.platform.db.read() as connection:
            return connection.scalar(statement)


Begin = Callable[[System, str], Trial]
"""Begins a trial in a system under a tenant's name."""


def balanced(run: RunView) -> None:
    """Every document that was found has come to exactly one end."""
    assert run.finished
    assert run.discovered == run.indexed + run.unchanged + run.skipped + run.failed + run.cancelled


def once_each(system: System, tenant: str) -> None:
    """One row for a document, one outcome in a run, one version that answers; ledger and store were compared by the audit."""
    with system.platform.db.read() as connection:
        doubled = connection.execute(
            select(documents.c.key)
            .where(documents.c.tenant == tenant, documents.c.status != "deleted")
            .group_by(documents.c.collection_id, documents.c.key)
            .having(func.count() > 1)
        ).all()
        mine = select(runs.c.id).where(runs.c.tenant == tenant)
        pending = connection.scalar(select(func.count()).select_from(run_items).where(run_items.c.outcome == "pending", run_items.c.run_id.in_(mine)))
        shown = connection.execute(
            select(documents.c.key).where(documents.c.tenant == tenant, documents.c.status == "done", documents.c.live_version != documents.c.version)
        ).all()
    assert (doubled, pending, shown) == ([], 0, [])


def failures_say_why(system: System, tenant: str, number: int) -> None:
    """Exactly so many documents failed, and each names its stage, code, what happened and what helps."""
    found = system.platform.failures(tenant=tenant, limit=1000).data
    assert len(found) == number, [(failure.document, failure.detail) for failure in found]
    assert all(failure.stage and failure.code and failure.detail and failure.hint for failure in found), found


def nothing_left(system: System) -> None:
    """No lease, no batch, no claim of a source, no document that hangs on a batch; and in Redis no key of ours without an expiry."""

    def settled() -> bool:
        with system.platform.db.read() as connection:
            open_ = connection.scalar(select(func.count()).select_from(batches).where(batches.c.status.in_(("queued", "leased"))))
            hanging = connection.scalar(select(func.count()).select_from(documents).where(documents.c.batch_id.is_not(None)))
            claimed = connection.scalar(select(func.count()).select_from(sources).where(sources.c.claimed_by != ""))
        return not (open_ or hanging or claimed)

    until(settled, SETTLE_S, "no lease is left")
    if system.running():
        until(lambda: answers(system), SETTLE_S, "Redis is back")
        assert system.endless_keys() == set(), "Redis keys without an expiry"


def answers(system: System) -> bool:
    try:
        with system.redis() as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


def outputs_are_whole(system: System, tenant: str) -> None:
    """Every output that the ledger names for a version that answers can be read, byte for byte."""
    columns = (artifact_refs.c.document_id, artifact_refs.c.version, artifact_refs.c.stage, artifact_refs.c.key, artifact_refs.c.pack)
    columns += (artifact_refs.c.start, artifact_refs.c.length)
    with system.platform.db.read() as connection:
        rows = connection.execute(
            select(*columns)
            .join(documents, (documents.c.id == artifact_refs.c.document_id) & (documents.c.live_version == artifact_refs.c.version))
            .where(documents.c.tenant == tenant)
        ).all()
    refs = [Ref(row[0], row[1], Stage(row[2]), *row[3:]) for row in rows]
    assert len({(ref.document_id, ref.stage) for ref in refs}) == len(refs)
    assert all(system.platform.runtime.artifacts.read(refs))
