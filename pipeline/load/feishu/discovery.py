"""A walk over everything that a source names: each object once, all ways to it, its change mark confirmed, and marks to go on from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import cast

from pipeline.contracts import Scalar, SourceItem
from pipeline.contracts.sources import AccessLost, Json, Listed, Mark, ScanEvent, ScopeDone, ScopeFailed
from pipeline.errors import BadRequest, Cancelled, PipelineError, QuotaExhausted, RateLimited, Retryable, Unauthorised, Unavailable
from pipeline.load.feishu.answers import table, tables
from pipeline.load.feishu.client import SHORT_S, FeishuClient
from pipeline.load.feishu.places import Entry, Found, Place, list_place, safe, seconds
from pipeline.load.feishu.routes import MEDIA_TYPES, UNREADABLE

SETTLED_S = 600
"""Edit times are whole seconds of another clock: what was edited so shortly before a listing is looked at once more by the next one."""
METAS = 200
"""Objects that one call asks for."""
MOST_HELD = 2000
LONGEST_S = 10.0
"""So many objects, or objects for so long, are held back, until all ways to them are known."""
PASSES = 3
"""Times that a place is tried again, after all others, when too much was asked."""
MOST_PATHS = 2000
MOST_MARK = 900_000
VERSION = 1
"""Rises when kinds can be read that could not be before: what was left aside is then looked at again."""

_Pending = Entry | ScopeDone | ScopeFailed


class Walk:
    """One scan. Gives the events of `scan`."""

    def __init__(self, client: FeishuClient, roots: Sequence[Place], checkpoint: Json) -> None:
        self._client, self._around = client, client.around
        held = checkpoint.get("frontier")
        places = [Place.load(cast("list[object]", row)) for row in cast("list[object]", held)] if isinstance(held, list) else list(reversed(roots))
        self._frontier = places
        self._before = _paths(table(checkpoint.get("since")).get("paths"))
        self._paths = _paths(checkpoint.get("paths"))
        """Key → ways to it that this scan has seen, for objects with more than one."""
        self._whole = not isinstance(held, list)
        self._told: dict[str, str] = {}
        """Key → path of what was handed over."""
        self._held: dict[str, Entry] = {}
        self._pending: list[_Pending] = []
        self._visited = set[str]()
        self._held_since = self._around.now()

    def events(self) -> Iterator[ScanEvent]:
        """Everything, in an order that does not change while nothing does."""
        while self._frontier:
            place = self._frontier.pop()
            if place.scope in self._visited:
                continue
            error = self._one(place)
            if error is not None:
                yield from self._flush()
                yield self._mark()
                raise error
            if len(self._held) >= MOST_HELD or self._around.now() - self._held_since >= LONGEST_S:
                self._whole = False
                yield from self._flush()
                if (mark := self._mark()).checkpoint:
                    yield mark
        yield from self._flush()
        yield Mark({"since": {"paths": dict(list(self._paths.items())[:MOST_PATHS])}})

    def _one(self, place: Place) -> Retryable | None:
        """List one place; gives what ends the scan for now. Raises Unauthorised, Cancelled."""
        found = Found([], [])
        self._visited.add(place.scope)
        try:
            list_place(self._client, place, found)
        except (Unauthorised, Cancelled):
            raise
        except PipelineError as error:
            if place.tries < PASSES and self._may_pass(error):
                self._visited.discard(place.scope)
                self._frontier.insert(0, replace(place, tries=place.tries + 1))
                return error if isinstance(error, Retryable) and (error.after or 0.0) > SHORT_S else None
            if isinstance(error, Unavailable) and error.code == "unreachable":
                self._visited.discard(place.scope)
                self._frontier.append(place)
                return error
            self._take(found)
            where = f" ({place.path})" if place.path else ""
            self._pending.append(ScopeFailed(place.scope, error.code, f"{error.detail}{where}", error.hint))
            return None
        self._take(found)
        self._pending.append(ScopeDone(place.scope, 0))
        return None

    def _may_pass(self, error: PipelineError) -> bool:
        return isinstance(error, (RateLimited, QuotaExhausted)) or (isinstance(error, BadRequest) and error.code == "bad_page")

    def _take(self, found: Found) -> None:
        self._frontier += reversed(found.below)
        for entry in found.entries:
            self._see(entry)

    def _see(self, entry: Entry) -> None:
        """One sighting: the first one of an object, or another way to it."""
        key = entry.key
        held = self._held.get(key)
        first = held.path if held is not None else self._told.get(key)
        if first is not None and entry.path and first != entry.path:
            self._paths[key] = list(dict.fromkeys([*self._paths.get(key, [first]), entry.path]))
        if held is not None:
            self._merge(held, entry)
        elif first is None:
            self._held[key] = entry
            self._pending.append(entry)

    def _merge(self, held: Entry, entry: Entry) -> None:
        held.edited = max(held.edited, entry.edited)
        if not entry.real:
            return
        if held.real and held.path != entry.path:
            # It has one place only, and was moved while we walked.
            self._paths[held.key] = [path for path in self._paths.get(held.key, []) if path != held.path]
        held.path, held.title, held.url, held.real = entry.path, entry.title, entry.url or held.url, True
        held.created = entry.created or held.created

    # ------------------------------------------------------------ handing over

    def _flush(self) -> Iterator[ScanEvent]:
        lost = self._confirm(list(self._held.values()))
        for event in self._pending:
            if not isinstance(event, Entry):
                yield event
            elif event.key in lost:
                yield AccessLost(event.key, "it is listed, and may not be read")
            else:
                yield Listed(self._item(event), event.scope)
        self._told |= {key: entry.path for key, entry in self._held.items()}
        self._held, self._pending = {}, []
        self._held_since = self._around.now()

    def _mark(self) -> Mark:
        paths = dict(list(self._paths.items())[:MOST_PATHS])
        checkpoint: dict[str, object] = {"frontier": [place.dump() for place in self._frontier], "paths": paths, "since": {"paths": self._before}}
        size = sum(len(place.path) + len(place.token) + 60 for place in self._frontier)
        return Mark(checkpoint if size < MOST_MARK else {})

    def _confirm(self, entries: Sequence[Entry]) -> set[str]:
        """Edit times, titles and addresses from the metadata; gives keys that may not be read. Without the scope for it the listing counts."""
        lost = set[str]()
        by_token = {entry.token: entry for entry in entries}
        for start in range(0, len(entries), METAS):
            try:
                found, failed = metas(self._client, [(entry.kind, entry.token) for entry in entries[start : start + METAS]])
            except (Unauthorised, Cancelled):
                raise
            except PipelineError:
                continue
            for row in found:
                entry = by_token.get(str(row.get("doc_token")))
                if entry is not None:
                    entry.edited = max(entry.edited, seconds(row.get("latest_modify_time")))
                    entry.created = entry.created or seconds(row.get("create_time"))
                    entry.title = entry.title or str(row.get("title") or "")
                    entry.url = entry.url or str(row.get("url") or "")
            lost |= {by_token[token].key for token, code in failed.items() if code == 970003 and token in by_token}
        return lost

    def _item(self, entry: Entry) -> SourceItem:
        facts: dict[str, Scalar | list[str]] = {"kind": entry.kind}
        for name, moment in (("created_at", entry.created), ("updated_at", entry.edited)):
            if moment:
                facts[name] = datetime.fromtimestamp(min(moment, 250_000_000_000), UTC).isoformat()
        ways = list(self._paths.get(entry.key, []))
        if not self._whole:
            ways = list(dict.fromkeys([*ways, *self._before.get(entry.key, [])]))
        if len(set(ways) | {entry.path}) > 1:
            facts["paths"] = sorted(set(ways) | {entry.path})
        path = entry.path or safe(entry.title or entry.token)
        return SourceItem(
            key=entry.key,
            revision=self._revision(entry),
            title=entry.title,
            url=entry.url,
            path=path,
            media_type=MEDIA_TYPES.get(entry.kind, ""),
            metadata=facts,
        )

    def _revision(self, entry: Entry) -> str:
        """Empty where nobody says when it was edited: then its bytes decide."""
        if not entry.edited:
            return ""
        now = self._around.now()
        mark = f"{entry.edited}~{now:.3f}" if now - entry.edited < SETTLED_S else str(entry.edited)
        return f"{mark}.v{VERSION}" if entry.kind in UNREADABLE else mark


def metas(client: FeishuClient, objects: Sequence[tuple[str, str]]) -> tuple[list[Json], dict[str, int]]:
    """(metadata of objects, token → code of those that have none)."""
    body = {"request_docs": [{"doc_token": token, "doc_type": kind} for kind, token in objects], "with_url": True}
    answer = client.patient("metas", "/drive/v1/metas/batch_query", body=body)
    codes = {str(row.get("token")): int(str(row.get("code") or 0)) for row in tables(answer.get("failed_list"))}
    return tables(answer.get("metas")), codes


def _paths(held: object) -> dict[str, list[str]]:
    found = table(held)
    return {key: [str(path) for path in cast("list[object]", paths)] for key, paths in found.items() if isinstance(paths, list)}
