"""What a person does to work under way: replay or discard what failed, pause a collection, weigh tenants."""

from __future__ import annotations

from dataclasses import replace

from pipeline.errors import BadRequest, NotFound
from workers.ledger import browse, catalog, control, failing, shares
from workers.runtime import Runtime
from workers.views import LettersView, RunView, Selection, TenantView


class Steering:
    """Safe for threads."""

    def __init__(self, runtime: Runtime) -> None:
        self._db = runtime.db

    def selected(self, selection: Selection) -> LettersView:
        """How many dead letters a selection names, by collection. Raises NotFound for a run id that is none."""
        found = failing.count(self._db, selection)
        return LettersView(sum(found.values()), found)

    def replay(self, selection: Selection) -> LettersView:
        """Begin again with them. Raises NotFound when single documents were named and none of them has failed."""
        found = self._named(selection)
        runs = tuple(browse.run(self._db, browse.run_name(number)) for number in failing.replay(self._db, selection))
        return LettersView(sum(run.discovered for run in runs), found, runs)

    def discard(self, selection: Selection) -> LettersView:
        """Take them off the list. Raises NotFound when single documents were named and none of them has failed."""
        found = self._named(selection)
        return LettersView(failing.discard(self._db, selection), found)

    def _named(self, selection: Selection) -> dict[str, int]:
        found = failing.count(self._db, selection)
        if not found and selection.document_ids:
            raise NotFound(
                f"no failed document has the id {', '.join(selection.document_ids)}",
                hint="`dujiang failures list` shows those there are.",
                code="failure_not_found",
            )
        return found

    def hold_collection(self, name: str, *, paused: bool, tenant: str = "default") -> None:
        """Pause or resume all work on a collection. Raises NotFound."""
        control.hold_collection(self._db, catalog.find(self._db, tenant, name).id, paused=paused)

    def cancel_collection(self, name: str, *, tenant: str = "default") -> tuple[RunView, ...]:
        """Cancel every run of a collection that has not ended. Raises NotFound."""
        stopped = control.stop_all(self._db, collection_id=catalog.find(self._db, tenant, name).id)
        return tuple(browse.run(self._db, browse.run_name(number)) for number in stopped)

    def tenants(self) -> tuple[TenantView, ...]:
        """Every tenant that has a collection or a weight, by name."""
        return shares.every(self._db)

    def weigh(self, tenant: str, weight: float | None = None, most: int | None = None) -> TenantView:
        """Give a tenant a share of the workers beside others: 2 gets twice as many batches as 1. What is None stays as it is.

        `most` bounds its batches of one stage at once, also while nobody else has work; 0 does not. Raises BadRequest.
        """
        if weight is not None and not 0.01 <= weight <= 1000:
            raise BadRequest(f"{weight} is no weight", hint="Give a number from 0.01 to 1000.", pointer="/weight")
        if most is not None and not 0 <= most <= 1000:
            raise BadRequest(f"{most} is no number of batches", hint="Give a number from 1 to 1000, or 0 for no bound.", pointer="/most")
        now = shares.one(self._db, tenant)
        wanted = replace(now, weight=now.weight if weight is None else weight, most=now.most if most is None else most)
        shares.weigh(self._db, tenant, wanted.weight, most=wanted.most)
        return wanted
