"""What people do with sources: make, change, check, sync, pause and prune them; `deleting` takes them away."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime

from pipeline import identity
from pipeline.errors import BadRequest, Cancelled, Conflict, PipelineError
from pipeline.load import connectors
from pipeline.load.connectors import SourceKind
from workers import collecting, schedule, sealing, withdrawal
from workers.fetching import spec_of
from workers.ledger import absence, browse, catalog, sources
from workers.ledger.sources import STOPPED, SourceRow
from workers.runtime import Runtime
from workers.source_views import AbsentView, SourceKindView, SourceStatusView, SourceView
from workers.views import CheckView, Page, RunView

NAME = re.compile(r"[^\W_][\w.-]{0,63}")


class Sources:
    """The verbs on sources. Safe for threads."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def kinds(self) -> list[SourceKindView]:
        """What is installed."""
        return [SourceKindView(kind.name, kind.about, kind.options, kind.local) for kind in connectors.kinds().values()]

    def needs_administrator(self, kind: str, options: Mapping[str, str]) -> bool:
        """True for what lets somebody read this machine: its folders, or the environment of its processes. Raises Unsupported."""
        return connectors.kind(kind).local or any(value.startswith(sealing.REFERENCE) for value in options.values())

    def create(
        self,
        name: str,
        kind: str,
        collection: str,
        *,
        options: Mapping[str, str],
        cron: str = "",
        timezone: str = "UTC",
        jitter_s: float = 0.0,
        tenant: str = "default",
    ) -> SourceView:
        """A new source, its secrets among the options sealed. The collection is made when it is missing. Raises BadRequest, Unsupported, Conflict."""
        if not NAME.fullmatch(name):
            raise BadRequest(
                f"{name!r} is no name of a source",
                hint="Use up to 64 letters, digits, '-', '_' and '.', beginning with a letter or digit.",
                pointer="/name",
            )
        described = connectors.kind(kind)
        connectors.check(described, options)
        schedule.check(cron, timezone, jitter_s)
        row = collecting.create(self._runtime, collection, tenant=tenant)
        source_id = identity.fingerprint({"tenant": tenant, "source": name})
        opened, sealed = _parted(self._runtime, described, source_id, options)
        with self._runtime.db.read() as connection:
            now = self._runtime.db.now(connection)
        sources.create(
            self._runtime.db,
            {
                "id": source_id,
                "tenant": tenant,
                "collection_id": row.id,
                "collection": row.name,
                "name": name,
                "kind": kind,
                "options": json.dumps(opened, sort_keys=True),
                "secrets": sealed,
                "cron": cron,
                "timezone": timezone,
                "jitter_s": jitter_s,
                "next_at": schedule.following(cron, timezone, jitter_s, source_id, now),
            },
        )
        return view(self._runtime, sources.find(self._runtime.db, tenant, name))

    def update(
        self,
        name: str,
        *,
        options: Mapping[str, str],
        cron: str | None = None,
        timezone: str | None = None,
        jitter_s: float | None = None,
        forget_deleted: bool = False,
        tenant: str = "default",
    ) -> SourceView:
        """Change what is given and leave the rest. New options let a source that was refused go on; an empty value takes an option away.

        With `forget_deleted`, what people deleted here may come back with the next sync. Raises NotFound, BadRequest.
        """
        row = sources.find(self._runtime.db, tenant, name)
        values: dict[str, object] = {}
        if options:
            described = connectors.kind(row.kind)
            secrets = sealing.unseal(self._runtime.settings, row.id, row.secrets) if not _all_secrets(described, options) else {}
            merged = {key: value for key, value in {**row.options, **secrets, **options}.items() if value}
            connectors.check(described, merged)
            opened, sealed = _parted(self._runtime, described, row.id, merged)
            values |= {"options": json.dumps(opened, sort_keys=True), "secrets": sealed}
        if cron is not None or timezone is not None or jitter_s is not None:
            chosen = (row.cron if cron is None else cron, timezone or row.timezone, row.jitter_s if jitter_s is None else jitter_s)
            schedule.check(*chosen)
            with self._runtime.db.read() as connection:
                now = self._runtime.db.now(connection)
            values |= {"cron": chosen[0], "timezone": chosen[1], "jitter_s": chosen[2], "next_at": schedule.following(*chosen, row.id, now)}
        if values:
            sources.change(self._runtime.db, row.id, values)
        if options and row.paused == STOPPED:
            sources.hold(self._runtime.db, row.id, paused=False)
            sources.hurry(self._runtime.db, row.id)
        if forget_deleted:
            absence.forget_deleted(self._runtime.db, row.id)
        return view(self._runtime, sources.find(self._runtime.db, tenant, name))

    def list(self, *, limit: int = 100, after: str = "", tenant: str = "default") -> Page[SourceView]:
        """By name."""
        rows = [row for row in sources.every(self._runtime.db, tenant) if row.name > after]
        views = tuple(view(self._runtime, row) for row in rows[:limit])
        return Page(views, views[0].name if views else None, views[-1].name if views else None, len(rows) > limit)

    def show(self, name: str, *, tenant: str = "default") -> SourceView:
        """Raises NotFound."""
        return view(self._runtime, sources.find(self._runtime.db, tenant, name))

    def _there(self, row: SourceRow) -> None:
        """A collection that was deleted is made again, and what went with it may come back."""
        if row.collection not in {found.name for found in catalog.every(self._runtime.db, row.tenant)}:
            collecting.create(self._runtime, row.collection, tenant=row.tenant)
            absence.forget_deleted(self._runtime.db, row.id)

    def status(self, name: str, *, tenant: str = "default") -> SourceStatusView:
        """A source with its last run. Raises NotFound."""
        row = sources.find(self._runtime.db, tenant, name)
        run = browse.run(self._runtime.db, browse.run_name(row.last_run_id)) if row.last_run_id is not None else None
        return SourceStatusView(view(self._runtime, row), run, absence.tally(self._runtime.db, row.id))

    def validate(self, name: str, *, tenant: str = "default") -> list[CheckView]:
        """Try the credentials from here. Raises NotFound, Unsupported, Retryable when the source does not answer."""
        row = sources.find(self._runtime.db, tenant, name)
        try:
            spec = spec_of(self._runtime.settings, row)
            found = connectors.create(spec, self._runtime.surroundings(row, lambda: None)).validate()
        except Cancelled:
            raise
        except PipelineError as error:
            return [CheckView(row.kind, False, error.detail, error.hint)]
        return [CheckView(item.name, item.ok, item.detail, item.hint) for item in found]

    def sync(self, name: str, *, full: bool = False, tenant: str = "default") -> RunView:
        """A run that workers will list for, or of the one that is under way. Raises NotFound, Conflict while it is paused."""
        row = sources.find(self._runtime.db, tenant, name)
        if row.paused:
            raise Conflict(
                f"source {name!r} is {'stopped: ' + row.last_error if row.paused == STOPPED else 'paused'}",
                hint=f"`dujiang sources {'update' if row.paused == STOPPED else 'resume'} {name}` lets it go on.",
                code="source_paused",
            )
        self._there(row)
        with self._runtime.db.write() as connection:
            run_id = sources.open_sync(connection, row, self._runtime.db.now(connection), full=full)
        return browse.run(self._runtime.db, browse.run_name(run_id))

    def pause(self, name: str, *, tenant: str = "default") -> SourceView:
        """Stop listing and downloading. Raises NotFound."""
        return self._hold(name, tenant, paused=True)

    def resume(self, name: str, *, tenant: str = "default") -> SourceView:
        """Go on from where it stood; a source that was stopped tries its credentials again. Raises NotFound."""
        return self._hold(name, tenant, paused=False)

    def _hold(self, name: str, tenant: str, *, paused: bool) -> SourceView:
        row = sources.find(self._runtime.db, tenant, name)
        sources.hold(self._runtime.db, row.id, paused=paused)
        return view(self._runtime, sources.find(self._runtime.db, tenant, name))

    def absent(self, name: str, *, limit: int = 100, after: str = "", tenant: str = "default") -> Page[AbsentView]:
        """What `prune` would delete, and why. Raises NotFound."""
        row = sources.find(self._runtime.db, tenant, name)
        found = [AbsentView(*entry) for entry in absence.absent(self._runtime.db, row.id, limit=limit + 1, after=after)]
        data = tuple(found[:limit])
        return Page(data, data[0].document_id if data else None, data[-1].document_id if data else None, len(found) > limit)

    def prune(self, name: str, *, tenant: str = "default") -> int:
        """A person's word: delete what the source no longer has, however much it is; returns how many documents. Raises NotFound, Unavailable."""
        row = sources.find(self._runtime.db, tenant, name)
        return withdrawal.prune(self._runtime, row, catalog.find(self._runtime.db, tenant, row.collection), row.last_run_id, approved=True)[0]


def _all_secrets(described: SourceKind, options: Mapping[str, str]) -> bool:
    """True when every secret is given anew, so that the sealed ones need not be opened."""
    return all(option.name in options for option in described.options if option.secret)


def _parted(runtime: Runtime, described: SourceKind, source_id: str, given: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """What may be shown, and the rest sealed."""
    secret = {option.name for option in described.options if option.secret}
    opened = {name: value for name, value in given.items() if name not in secret}
    return opened, sealing.seal(runtime.settings, source_id, {name: value for name, value in given.items() if name in secret})


def view(runtime: Runtime, row: SourceRow) -> SourceView:
    """A source as people see it: secrets by name only."""
    counted = absence.tally(runtime.db, row.id)
    with runtime.db.read() as connection:
        now, run = runtime.db.now(connection), sources.under_way(connection, row.id)
    return SourceView(
        name=row.name,
        kind=row.kind,
        collection=row.collection,
        status=_status(row, now, run),
        options=dict(row.options),
        secrets=_secrets(runtime, row),
        cron=row.cron,
        timezone=row.timezone,
        jitter_s=row.jitter_s,
        next_at=_moment(row.next_at if row.paused == 0 else None),
        last_at=_moment(row.last_at),
        last_run_id=browse.run_name(row.last_run_id) if row.last_run_id is not None else None,
        last_error=row.last_error,
        documents=sum(number for name, number in counted.items() if name not in ("deleted", "deleting", "hidden", "hiding")),
        hidden=counted.get("hidden", 0),
        deleted_here=counted.get("deleted", 0),
        held=row.held,
        hook=f"/hooks/{row.id}" if _hears(row.kind) else "",
        created_at=catalog.moment(row.created_at),
        updated_at=catalog.moment(row.updated_at),
    )


def _hears(kind: str) -> bool:
    try:
        return connectors.kind(kind).events
    except PipelineError:
        return False


def _secrets(runtime: Runtime, row: SourceRow) -> dict[str, str]:
    """Names of secrets; of those that stand in the environment, where."""
    try:
        held = sealing.unseal(runtime.settings, row.id, row.secrets)
    except PipelineError:
        return {"?": "sealed with another key"}
    return {name: value if value.startswith(sealing.REFERENCE) else "***" for name, value in held.items()}


def _status(row: SourceRow, now: float, run: int | None) -> str:
    if row.paused:
        return "stopped" if row.paused == STOPPED else "paused"
    if row.claimed_by:
        return "listing"
    if run is not None:
        return "waiting" if row.claimed_until is not None and row.claimed_until > now else "syncing"
    return "held" if row.held else "idle"


def _moment(seconds: float | None) -> datetime | None:
    return catalog.moment(seconds) if seconds is not None else None
