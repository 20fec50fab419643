"""One source's listing, from its mark to its end: every event into the ledger, and at the end what is gone out of it."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Protocol, cast

from pipeline import identity
from pipeline.contracts import Scalar, SourceItem
from pipeline.contracts.sources import AccessLost, Listed, Mark, Note, Presence, ScanEvent, ScopeDone, ScopeFailed, Tombstone
from pipeline.errors import BrokenContract, Cancelled, Malformed, PipelineError, QuotaExhausted, Retryable, Unauthorised, Unavailable
from pipeline.load import connectors
from pipeline.protocols import Connector
from workers import collecting, verdict, withdrawal
from workers.arrivals import Arrivals
from workers.fetching import key_of, scope_of, spec_of
from workers.ledger import hinted, scans, sources
from workers.ledger.intake import Submission
from workers.ledger.scans import Found
from workers.ledger.sources import Claim, Progress
from workers.runtime import Runtime

log = logging.getLogger("dujiang.sync")

SLICE = 256
PROBE = 50
"""Keys asked for at once."""
TRIES = 6
"""Interruptions without a new mark, after which a run is given up."""
MAX_MARK = 1_000_000
MAX_KEY, MAX_TEXT, MAX_METADATA = 2000, 1000, 64_000
FAR_S = 86400.0
REFUSED = "the source no longer lets us read it"


class Probing(Protocol):
    """A connector that can be asked for single items."""

    def probe(self, keys: Sequence[str]) -> Mapping[str, Presence]: ...


class Heart:
    """Renews a claim every third of its lease, from a thread, until the block ends."""

    def __init__(self, runtime: Runtime, claim: Claim) -> None:
        self._runtime, self._claim = runtime, claim
        self._stop = threading.Event()
        self.lost = threading.Event()
        """Somebody else has the source now, or it was paused, or the run is over."""
        self._thread = threading.Thread(target=self._run, name=f"claim-{claim.source.name}", daemon=True)

    def check(self) -> None:
        """Raises Cancelled when the listing is not ours any more."""
        if self.lost.is_set():
            raise Cancelled(f"the listing of {self._claim.source.name!r} was stopped")

    def __enter__(self) -> Heart:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()

    def _run(self) -> None:
        lease_s = self._runtime.lease_s
        while not self._stop.wait(min(2.0, lease_s / 3)):
            try:
                if not sources.beat(self._runtime.db, self._claim, lease_s=lease_s):
                    self.lost.set()
                    return
            except Unavailable:
                continue


def sync(runtime: Runtime, claim: Claim, stopping: threading.Event) -> None:
    """List a source for one run, under a claim. A failure of the source ends or postpones the run; a bug of the connector fails it, and is raised.

    `stopping` hands the listing back at the next event: somebody takes it up from its last mark.
    """
    with Heart(runtime, claim) as heart:
        scan = Scan(runtime, claim, heart, stopping)
        try:
            scan.run()
        except Cancelled:
            scan.hand_back()
        except Unauthorised as error:
            scan.give_up(error)
            sources.stop(runtime.db, claim.source, error.detail)
        except Retryable as error:
            scan.postpone(error)
        except PipelineError as error:
            scan.give_up(error)
        except Exception as error:
            kind = type(error).__name__
            log.error("a bug ended a listing", extra={"source": claim.source.name, "run": claim.run_id}, exc_info=True)
            scan.give_up(BrokenContract(f"the connector {claim.source.kind!r} broke off with {kind}", hint="Report it to whoever maintains it."))
            raise


class Scan:
    """The events of one listing. Used by one thread."""

    def __init__(self, runtime: Runtime, claim: Claim, heart: Heart, stopping: threading.Event) -> None:
        self._runtime, self._claim, self._heart, self._stopping = runtime, claim, heart, stopping
        self._source = claim.source
        self._state = sources.progress(claim.source)
        self._found: list[Found] = []
        self._gone: dict[str, str] = {}
        self._lost: list[str] = []
        self._changes_only = False
        self._base = collecting.base_of(runtime, claim.collection)
        self._arrivals = Arrivals(runtime.db, runtime.artifacts, claim.collection.tenant, claim.run_id, max_bytes=runtime.max_bytes)

    def run(self) -> None:
        """Everything, to the end. Raises what the connector raises, Cancelled when the claim was lost."""
        self._ours()
        spec = spec_of(self._runtime.settings, self._source)
        connector = connectors.create(spec, self._runtime.surroundings(self._source, self._check))
        if self._state.tries >= TRIES:
            raise Malformed(f"the listing of {self._source.name!r} was broken off {TRIES} times without coming further", code="scan_broken_off")
        # Counted before it happens: a connector that takes its process with it must not do so for ever.
        self._state.tries += 1
        self._flush()
        for event in connector.scan(self._state.mark):
            self._take(event)
        self._flush()
        self._close(connector)

    def _ours(self) -> None:
        """A claim that was made over options which a person changed meanwhile begins anew."""
        config = scope_of(self._source)
        if self._state.run != self._claim.run_id or self._state.config != config:
            before = self._state
            self._state = Progress(self._claim.run_id, config, before.full, complete=before.complete, listed_under=before.listed_under)

    def _check(self) -> None:
        self._heart.check()
        if self._stopping.is_set():
            raise Cancelled("this worker was told to stop")

    # ------------------------------------------------------------ events

    def _take(self, event: ScanEvent) -> None:
        match event:
            case Listed(item=SourceItem()):
                if self._gone or self._lost:
                    self._flush()
                self._found.append(self._submission(event))
            case Tombstone():
                self._gone[self._id(event.key)] = str(event.evidence)[:16]
            case AccessLost():
                self._lost.append(self._id(event.key))
            case ScopeDone():
                self._flush()
                self._done(event)
            case ScopeFailed():
                self._flush()
                self._failed(event)
            case Mark():
                self._mark(event)
            case Note():
                self._note(event.text)
            case _:
                raise BrokenContract(f"the connector {self._source.kind!r} gave a {type(event).__name__}, which is no event of a scan")
        if len(self._found) + len(self._gone) + len(self._lost) >= SLICE or self._arrivals.full:
            self._flush()

    def _done(self, event: ScopeDone) -> None:
        state = self._state
        listed = state.open.pop(event.scope, 0)
        state.ended += 1
        if event.delta:
            state.whole, self._changes_only = False, True
        elif listed < event.count:
            state.whole = False
            self._note(f"{event.scope}: {event.count} items were promised and {listed} listed; nothing of this source is taken for deleted")

    def _failed(self, event: ScopeFailed) -> None:
        state = self._state
        state.open.pop(event.scope, None)
        state.whole = False
        cure = f" {event.hint}" if event.hint else ""
        self._note(f"{event.scope} could not be listed ({event.code}): {event.detail}.{cure}")

    def _note(self, text: str) -> None:
        """A line for the run's warnings."""
        self._state.notes.append(_short(text))

    def _mark(self, event: Mark) -> None:
        try:
            size = len(json.dumps(event.checkpoint))
        except (TypeError, ValueError):
            raise BrokenContract(f"a mark of the connector {self._source.kind!r} is no JSON") from None
        if size > MAX_MARK:
            raise BrokenContract(f"a mark of the connector {self._source.kind!r} has {size:,} bytes; a megabyte is allowed")
        before = self._state.mark
        self._state.mark, self._state.tries = event.checkpoint, 0
        try:
            self._flush()
        except PipelineError:
            self._state.mark = before
            raise

    def _flush(self) -> None:
        """Hand over what was listed, together with how far we are."""
        self._check()
        if self._lost:
            # Hidden before the progress says so: whoever takes over after a crash is told again.
            withdrawal.hide(self._runtime, self._claim.collection, self._lost, REFUSED)
            scans.seen(self._runtime.db, self._claim, self._lost, detail=REFUSED)
        self._found = self._arrivals.write(self._found, full=self._state.full)
        if not scans.take(self._runtime.db, self._claim, self._found, self._gone, self._state, lease_s=self._runtime.lease_s):
            raise Cancelled(f"the listing of {self._source.name!r} was stopped")
        self._found, self._gone, self._lost = [], {}, []

    def _id(self, key: str) -> str:
        return identity.document_id(self._claim.collection.tenant, self._claim.collection.name, key_of(self._source.name, key))

    def _submission(self, event: Listed) -> Found:
        """An item as the ledger takes it. One whose key or metadata cannot be kept is a failure of its own."""
        item = event.item
        key = key_of(self._source.name, _plain(item.key))
        problem: Malformed | None = None
        if not item.key or len(item.key) > MAX_KEY or _plain(item.key) != item.key:
            problem = Malformed(
                "the key of an item is empty, longer than 2000 characters, or no text", code="bad_key", hint="Rename it at the source."
            )
            key = key[:MAX_KEY]
        try:
            metadata = _metadata(item)
        except (TypeError, ValueError):
            metadata, problem = (
                {},
                Malformed(f"the metadata of {key} cannot be kept", code="bad_metadata", hint="Report it to the connector's maintainer."),
            )
        metadata |= {"source": self._source.name}
        title, url, path = _short(item.title), _plain(item.url)[:MAX_KEY], _plain(item.path)[:MAX_KEY]
        submission = Submission(
            identity.document_id(self._claim.collection.tenant, self._claim.collection.name, key),
            key,
            title,
            url,
            path,
            media_type=_plain(item.media_type)[:128],
            size=scans.SIZE,
            metadata=metadata,
            access=item.access[:64],
            fingerprint=collecting.fingerprint(self._base, metadata, title, url, {"path": path, "access": item.access}),
        )
        if problem is not None:
            submission = replace(submission, error=(problem.code, problem.detail, problem.hint, False))
        elif event.raw is not None:
            submission = self._arrivals.take(submission, event.raw, item)
        return Found(submission, _plain(item.revision)[:MAX_KEY], event.scope)

    # ------------------------------------------------------------ the end

    def _close(self, connector: Connector) -> None:
        state = self._state
        if state.open:
            names = ", ".join(sorted(state.open)[:5])
            self._note(f"{len(state.open)} scopes were not listed to their end: {names}")
        complete = state.whole and state.ended > 0 and not state.open
        if complete:
            self._missing(connector)
            state.complete, state.listed_under = self._claim.run_id, state.config
        if self._changes_only:
            hinted.unfinished(self._runtime.db, self._claim, lease_s=self._runtime.lease_s)
        self._check()
        deleted, held = withdrawal.prune(self._runtime, self._source, self._claim.collection, self._claim.run_id)
        if held:
            self._note(
                f"{held} documents are no longer at the source, more than may go at once: `dujiang sources prune {self._source.name}` lists them, "
                "`--approve` deletes them"
            )
        if not scans.close(self._runtime.db, self._claim, state, finished=True, error=state.notes[0] if state.notes else ""):
            raise Cancelled(f"the listing of {self._source.name!r} was stopped")
        log.info("listed", extra={"source": self._source.name, "run": self._claim.run_id, "complete": complete, "deleted": deleted, "held": held})

    def _missing(self, connector: Connector) -> None:
        """Evidence for what a complete listing did not hold."""
        state, found = self._state, dict[str, str]()
        unseen = scans.unseen(self._runtime.db, self._claim)
        moved = bool(state.listed_under) and state.listed_under != state.config
        asked = self._presence(connector, [key for _, key, _, evidence in unseen if not evidence])
        forbidden = [document_id for document_id, key, *_ in unseen if asked.get(key) is Presence.FORBIDDEN]
        alive = [document_id for document_id, key, *_ in unseen if asked.get(key) is Presence.ALIVE]
        for document_id, key, seen_run, evidence in unseen:
            if evidence or document_id in forbidden:
                continue
            if moved:
                found[document_id] = "out_of_scope"
            elif asked.get(key) is Presence.GONE:
                found[document_id] = "gone"
            elif asked.get(key) is not Presence.ALIVE and state.complete is not None and (seen_run or 0) < state.complete:
                found[document_id] = "missing"
        withdrawal.hide(self._runtime, self._claim.collection, forbidden, REFUSED)
        scans.seen(self._runtime.db, self._claim, [*forbidden, *([] if moved else alive)])
        scans.mark_missing(self._runtime.db, self._claim, found)

    def _presence(self, connector: Connector, keys: Sequence[str]) -> dict[str, Presence]:
        """What the source says of single documents, by their keys here; nothing where it cannot be asked."""
        if not hasattr(connector, "probe"):
            return {}
        probing, prefix = cast("Probing", connector), key_of(self._source.name, "")
        found: dict[str, Presence] = {}
        for start in range(0, len(keys), PROBE):
            self._check()
            own = [key.removeprefix(prefix) for key in keys[start : start + PROBE]]
            found |= {prefix + key: presence for key, presence in probing.probe(own).items()}
        return found

    def give_up(self, error: PipelineError) -> None:
        """The run fails: nothing more is listed in it, and nothing taken for deleted."""
        log.warning("a listing failed", extra={"source": self._source.name, "run": self._claim.run_id, "code": error.code})
        self._note(f"{error.detail}. {error.hint}")
        scans.close(self._runtime.db, self._claim, self._state, finished=False, error=_short(error.detail))

    def hand_back(self) -> None:
        """Somebody may take it up from the last mark, at once."""
        kept = sources.by_id(self._runtime.db, self._source.id)
        state = sources.progress(kept) if kept is not None else None
        if state is not None:
            state.tries = max(0, state.tries - 1)
        sources.give_up(self._runtime.db, self._claim, kept=state)

    def postpone(self, error: Retryable) -> None:
        """Take it up from the last mark later, or give up after too many interruptions."""
        kept = sources.by_id(self._runtime.db, self._source.id)
        state = sources.progress(kept) if kept is not None else self._state
        state.tries -= not error.costs_attempt
        if state.tries >= TRIES:
            self._state = state
            self.give_up(error)
            return
        log.info("a listing waits", extra={"source": self._source.name, "run": self._claim.run_id, "code": error.code})
        sources.give_up(self._runtime.db, self._claim, wait_s=_wait(error, state.tries), kept=state, error=_short(error.detail))


def _wait(error: Retryable, tries: int) -> float:
    if isinstance(error, QuotaExhausted):
        left = (error.until - datetime.now(UTC)).total_seconds() if error.until is not None else 3600.0
        return max(1.0, min(FAR_S, left))
    return max(0.1, error.after) if error.after is not None else verdict.jitter(tries)


def _plain(text: str) -> str:
    """Without what no database keeps."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "")


def _short(text: str) -> str:
    text = _plain(text)
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def _metadata(item: SourceItem) -> dict[str, Scalar | list[str]]:
    """Raises ValueError or TypeError for what is no plain JSON, or too much."""
    for value in item.metadata.values():
        parts: list[object] = [*value] if isinstance(value, list) else [value]
        if not all(part is None or isinstance(part, str | int | float) for part in parts):
            raise TypeError("neither text nor number")
    text = json.dumps(dict(item.metadata), allow_nan=False, ensure_ascii=False)
    if len(text) > MAX_METADATA:
        raise ValueError("too much")
    found = cast("dict[str, Scalar | list[str]]", json.loads(_plain(text).replace("\\u0000", "")))
    if item.path:
        found.setdefault("path", _plain(item.path)[:MAX_KEY])
    return found
