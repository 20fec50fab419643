"""Building a collection anew beside the one that answers, and letting it answer: from kept bytes, without a download."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

from pipeline.errors import BadRequest, Conflict, NotFound, PipelineError, Unavailable
from pipeline.identity import index_name
from workers import collecting, forecast, withdrawal
from workers.ledger import beginning, browse, catalog, flipping, generations, shadows
from workers.ledger.generations import Building
from workers.ledger.work import CollectionRow
from workers.runtime import Runtime
from workers.views import GenerationView, ReindexView, RunView

log = logging.getLogger("dujiang.generations")


class Generations:
    """What may be asked about the builds of a collection. Safe for threads."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._db = runtime.db

    def listed(self, name: str, *, tenant: str = "default") -> tuple[GenerationView, ...]:
        """Every build that the store may hold, oldest first. Raises NotFound."""
        row = catalog.find(self._db, tenant, name)
        found = generations.listed(self._db, row.id)
        if not found:
            made = catalog.moment(row.created_at)
            return (GenerationView(row.generation, "live", row.chunker, row.embedder, row.dimension, made, made, None),)
        return tuple(
            GenerationView(
                one.generation,
                one.status,
                one.chunker,
                one.embedder,
                one.dimension,
                catalog.moment(one.created_at),
                catalog.moment(one.live_at) if one.live_at is not None else None,
                catalog.moment(one.retired_at) if one.retired_at is not None else None,
            )
            for one in found
        )

    def plan(
        self, name: str, *, embedder: str = "", chunker: str = "", options: Mapping[str, str] | None = None, tenant: str = "default"
    ) -> ReindexView:
        """What a reindex would do, told from a sample of the documents. Raises NotFound, BadRequest, Unsupported, Unavailable."""
        row = catalog.find(self._db, tenant, name)
        return forecast.forecast(self._runtime, row, self._options(row, embedder, chunker, options))

    def reindex(
        self, name: str, *, embedder: str = "", chunker: str = "", options: Mapping[str, str] | None = None, tenant: str = "default"
    ) -> RunView:
        """Begin the next generation, or go on with the one under construction; workers build it, and it answers when it is whole.

        Raises NotFound, BadRequest, Unsupported, Conflict when another one is being built.
        """
        row = catalog.find(self._db, tenant, name)
        collecting.check_store(self._runtime, row)
        building = beginning.begin(self._db, row, self._options(row, embedder, chunker, options))
        _follow(self._runtime, building)
        return browse.run(self._db, browse.run_name(building.run_id))

    def accept(self, name: str, *, tenant: str = "default") -> RunView:
        """Let a generation answer although documents failed in it; those answer no more. Raises NotFound, Conflict.

        What changed since its run ended is built first; then it is asked again.
        """
        row = catalog.find(self._db, tenant, name)
        building = next(iter(generations.under_construction(self._db, row.id)), None)
        if building is None:
            raise NotFound(
                f"no generation of {name!r} is being built", hint=f"Begin one: `dujiang collections reindex {name}`.", code="nothing_building"
            )
        if not flipping.flip(self._db, building, collecting.base_of(self._runtime, building.collection), accept=True):
            raise Conflict(
                f"the new generation of {name!r} is not built to its end yet",
                hint=f"Wait for its run, or go on with it: `dujiang collections reindex {name}`.",
                code="reindex_under_way",
            )
        withdrawal.purge(self._runtime, row)
        return browse.run(self._db, browse.run_name(building.run_id))

    def rollback(self, name: str, *, tenant: str = "default") -> RunView:
        """Return to the generation that answered before. Raises NotFound, Conflict, Unavailable.

        What was deleted or hidden since stays so; what changed since is built first.
        """
        row = catalog.find(self._db, tenant, name)
        collecting.check_store(self._runtime, row)
        number = generations.last_retained(self._db, row)
        index = index_name(row.tenant, row.name, number)
        store = self._runtime.open_store(self._runtime.settings.store_url, writer=True)
        try:
            held = dict(store.versions(index))
        except NotFound:
            held = dict[str, int]()
        shown = generations.answering(self._db, row.id)
        # Somebody late may have written a version that never answered; a store lets no older one win over it.
        ahead = [document_id for document_id, version in held.items() if document_id in shown and version > shown[document_id]]
        if ahead:
            store.delete(index, ahead)
        building = beginning.begin(self._db, row, generations.options_of(self._db, row.id, number), generation=number, held=held)
        ghosts = {document_id: version for document_id, version in held.items() if document_id not in shown}
        if ghosts:
            store.delete(index, list(ghosts), fence=ghosts)
        _step(self._runtime, building)
        return browse.run(self._db, browse.run_name(building.run_id))

    def _options(self, row: CollectionRow, embedder: str, chunker: str, options: Mapping[str, str] | None) -> dict[str, object]:
        spec, cut = embedder or row.embedder, chunker or row.chunker
        given = dict(options) if options is not None else (dict(row.chunk_options) if cut == row.chunker else {})
        self._runtime.check_chunker(cut, given)
        profile = self._runtime.profile_of(spec)
        if not spec:
            raise BadRequest("a collection needs an embedder", pointer="/embedder")
        return {
            "chunker": cut,
            "chunk_options": json.dumps(given, sort_keys=True),
            "tokenizer": row.tokenizer,
            "embedder": spec,
            "embedder_revision": profile.revision,
            "dimension": profile.dimension,
        }


def advance(runtime: Runtime) -> None:
    """Bring every generation under construction a step further; those that are whole answer from now on.

    Safe to run twice at once, and to be killed at any line. Raises Unavailable when the ledger is away.
    """
    for building in generations.under_construction(runtime.db):
        try:
            _step(runtime, building)
        except PipelineError as error:
            # A store that is away, or another's transaction: the next turn comes soon, and nobody else has to wait.
            level = logging.DEBUG if isinstance(error, Unavailable) else logging.ERROR
            log.log(level, "a generation cannot be brought on now: %s", error.detail, extra={"run": building.run_id})


def _step(runtime: Runtime, building: Building) -> None:
    db = runtime.db
    if building.cancelled:
        flipping.abandon(db, building)
        drop_surplus(runtime)
        return
    if shadows.busy(db, building):
        return
    if building.run_ended:
        if shadows.stopped(db, building):
            return  # until a person goes on with it, replays what failed, or accepts
        building = beginning.go_on(db, building)
    if _follow(runtime, building):
        shadows.chase(db, building)
    elif shadows.stopped(db, building):
        shadows.fail(db, building)
    elif flipping.flip(db, building, collecting.base_of(runtime, building.collection)):
        withdrawal.purge(runtime, building.collection)
        drop_surplus(runtime)


def _follow(runtime: Runtime, building: Building) -> int:
    """Shadows for what is new or changed, none for what is gone; gives how many were begun."""
    main = catalog.find(runtime.db, building.collection.tenant, building.collection.name)
    base = collecting.base_of(runtime, main)
    number, after = shadows.follow(runtime.db, building, base)
    while after:
        more, after = shadows.follow(runtime.db, building, base, after=after)
        number += more
    while gone := shadows.departed(runtime.db, building):
        _withdraw(runtime, building, gone)
        shadows.forget(runtime.db, building, gone)
    return number


def _withdraw(runtime: Runtime, building: Building, gone: Mapping[str, int]) -> None:
    try:
        # The fence keeps out who was about to write one of them and has not noticed yet.
        runtime.open_store(runtime.settings.store_url, writer=True).delete(building.index, list(gone), fence=gone)
    except NotFound:
        return  # nothing has been written yet


def drop_surplus(runtime: Runtime) -> None:
    """Remove builds from the store that are given up, or retired beyond what is kept. Safe to be killed. Raises Unavailable."""
    for collection_id, tenant, name, number in generations.surplus(runtime.db, runtime.settings.keep_generations):
        if not generations.give_up(runtime.db, collection_id, number):
            continue
        try:
            runtime.open_store(runtime.settings.store_url, writer=True).drop(index_name(tenant, name, number))
        except NotFound:
            pass  # dropped before, and the ledger was not told
        generations.dropped(runtime.db, collection_id, number)
