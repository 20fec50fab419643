"""A collection's own search settings, and its refusals calibrated by labelled questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline import answer, calibrate
from pipeline.calibrate import CAP, Labelled
from pipeline.contracts import Question
from pipeline.errors import Unavailable
from workers.asking import Asking, settled
from workers.ledger import catalog, tuned
from workers.runtime import Runtime
from workers.tuning_views import CalibrationView


class Tunings:
    """Settings of collections over one runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def tune(self, name: str, changes: Mapping[str, object], *, tenant: str = "default") -> None:
        """Change what is named; None takes a setting back. Raises BadRequest, NotFound."""
        tuned.tune(self._runtime.db, catalog.find(self._runtime.db, tenant, name), changes)

    def calibrate(
        self, name: str, questions: Sequence[Labelled], *, cap: float = CAP, dry_run: bool = False, tenant: str = "default"
    ) -> CalibrationView:
        """Ask every question as a reader's evidence would be gathered, and keep the threshold unless it is only to be shown.

        Raises BadRequest, NotFound, Retryable when a store or an embedder is away: half of the scores would calibrate nothing.
        """
        calibrate.check(questions, cap)
        row = catalog.find(self._runtime.db, tenant, name)
        scores: dict[bool, list[float]] = {True: [], False: []}
        asking = Asking(self._runtime)
        targets = asking.targets(Question(name, (name,), tenant=tenant))
        for one in questions:
            question = settled(Question(one.question, (name,), tenant=tenant, k=0, widen="off"), targets)
            # a threshold of 0 refuses nothing, so that the pack has the score alone
            found = answer.gather(question, targets, reranker=self._runtime.reranker, options=answer.Reading(refuse_below=0.0))
            lost = next((step.degraded for step in found.steps if step.stage in {"embed", "rerank"} and step.degraded), "")
            if lost:
                raise Unavailable(f"nothing was calibrated: {lost}", dependency=True, hint="Calibrate again when it is back.")
            scores[one.answerable].append(found.confidence)
        found = calibrate.calibrate(scores[True], scores[False], cap=cap)
        if not dry_run:
            tuned.calibrate(self._runtime.db, row, found)
        before = targets[0].calibrated
        profile = targets[0].embedder.profile.refuse_below
        source = "embedder profile" if before is None else "calibrated"
        return CalibrationView(name, row.generation, found, profile if before is None else before, source, not dry_run)
