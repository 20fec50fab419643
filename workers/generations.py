"""Building a collection anew beside the one that answers, and letting it answer: from kept bytes, without a download."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pipeline import identity
from pipeline.errors import BadRequest, Conflict, NotFound
from workers import collecting, withdrawal
from workers.ledger import browse, catalog, flipping, generations
from workers.ledger.generations import Building
from workers.ledger.work import CollectionRow
from workers.runtime import Runtime
from workers.views import GenerationView, ReindexView, RunView


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
            return (GenerationView(row.generation, "live", row.chunker, row.embedder, row.dimension, catalog.moment(row.created_at), None, None),)
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
        """What a reindex would do. Raises NotFound, BadRequest, Unsupported."""
        row = catalog.find(self._db, tenant, name)
        wanted = self._options(row, embedder, chunker, options)
        documents, chunks = browse.totals(self._db, row.id)
        return ReindexView(documents, chunks, str(wanted["chunker"]), str(wanted["embedder"]))

    def reindex(
        self, name: str, *, embedder: str = "", chunker: str = "", options: Mapping[str, str] | None = None, tenant: str = "default"
    ) -> RunView:
        """Begin the next generation, or go on with the one under construction; workers build it, and it answers when it is whole.

        Raises NotFound, BadRequest, Unsupported, Conflict when another one is being built.
        """
        row = catalog.find(self._db, tenant, name)
        building = generations.begin(self._db, row, self._options(row, embedder, chunker, options))
        _follow(self._runtime, building)
        return browse.run(self._db, browse.run_name(building.run_id))

    def accept(self, name: str, *, tenant: str = "default") -> RunView:
        """Let a generation answer although documents failed in it; those answer no more. Raises NotFound, Conflict."""
        row = catalog.find(self._db, tenant, name)
        building = next((one for one in generations.under_construction(self._db) if one.main_id == row.id), None)
        if building is None:
            raise NotFound(
                f"no generation of {name!r} is being built", hint=f"Begin one: `dujiang collections reindex {name}`.", code="nothing_building"
            )
        _follow(self._runtime, building)
        if not flipping.flip(self._db, building, collecting.base_of(self._runtime, building.collection), accept=True):
            raise Conflict(f"the new generation of {name!r} is not built to its end yet", hint="Wait for its run.", code="reindex_under_way")
        withdrawal.purge(self._runtime, row)
        return browse.run(self._db, browse.run_name(building.run_id))

    def rollback(self, name: str, *, tenant: str = "default") -> RunView:
        """Return to the generation that answered before. Raises NotFound.

        What was deleted or hidden since stays so; what changed since is built first.
        """
        row = catalog.find(self._db, tenant, name)
        number = generations.last_retained(self._db, row)
        options = generations.options_of(self._db, row.id, number)
        building = generations.begin(self._db, row, options, generation=number)
        _follow(self._runtime, building)
        _advance(self._runtime, building)
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

    Safe to run twice at once. Raises Unavailable.
    """
    for building in generations.under_construction(runtime.db):
        if building.cancelled:
            flipping.abandon(runtime.db, building)
        elif not building.run_ended:
            _follow(runtime, building)
            _advance(runtime, building)


def drop_surplus(runtime: Runtime) -> None:
    """Remove builds from the store that are given up, or retired beyond what is kept. Raises Unavailable."""
    for collection_id, tenant, name, number in generations.surplus(runtime.db, runtime.settings.keep_generations):
        try:
            runtime.open_store(runtime.settings.store_url, writer=True).drop(identity.index_name(tenant, name, number))
        except NotFound:
            pass  # dropped before, and the ledger was not told
        generations.dropped(runtime.db, collection_id, number)


def _follow(runtime: Runtime, building: Building) -> None:
    """Shadows for what is new or changed, none for what is gone."""
    while generations.follow(runtime.db, building):
        pass
    while gone := generations.departed(runtime.db, building):
        row = building.collection
        withdrawal.out_of(runtime, [identity.index_name(row.tenant, row.name, row.generation)], gone)
        generations.forget(runtime.db, building, gone)


def _advance(runtime: Runtime, building: Building) -> None:
    moving, failed = generations.pending(runtime.db, building)
    if moving:
        return
    if failed:
        generations.fail(runtime.db, building)
    elif flipping.flip(runtime.db, building, collecting.base_of(runtime, building.collection)):
        withdrawal.purge(runtime, building.collection)
