"""Sending documents to a Dujiang behind HTTP."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import quote

from api.results import decode
from api.system import Ingestion
from pipeline.errors import BadRequest, Gone, PipelineError, Skipped
from workers.views import FailureView, Incoming, RunView, UsageView, shape

if TYPE_CHECKING:
    from api.remote import Remote

MAX_FILES = 500
MAX_BYTES = 256_000_000
"""A request carries at most so many files and bytes, so that a failed one is cheap to repeat."""


def ingest(remote: Remote, what: Ingestion) -> RunView:
    """Upload, in several requests when there is much, and follow the runs; the balance is over all of them.

    What cannot be read here is counted as failed or skipped, as it would be on the system's own machine.
    """
    good = [item for item in what.items if item.problem is None]
    bad = [item for item in what.items if item.problem is not None]
    runs = list[RunView]()
    for part in portions(good):
        if what.on_note is not None:
            what.on_note(f"uploading {len(part)} documents to {remote.where}")
        started, unread = _upload(remote, what, part)
        bad += unread
        if started is not None:
            runs.append(started)
    if what.wait:
        runs = [remote.follow(run, what) for run in runs]
    return merged(runs, bad, what.collection)


def portions(items: Sequence[Incoming]) -> Iterator[list[Incoming]]:
    """Consecutive parts within the limits of one request."""
    part, size = list[Incoming](), 0
    for item in items:
        bytes_ = _size(item)
        if part and (len(part) >= MAX_FILES or size + bytes_ > MAX_BYTES):
            yield part
            part, size = [], 0
        part.append(item)
        size += bytes_
    if part:
        yield part


def _size(item: Incoming) -> int:
    if item.data is not None:
        return len(item.data)
    path = Path(item.path)
    return path.stat().st_size if path.is_file() else 0


def _upload(remote: Remote, what: Ingestion, part: Sequence[Incoming]) -> tuple[RunView | None, list[Incoming]]:
    unread = list[Incoming]()
    with ExitStack() as opened:
        files = list[tuple[str, tuple[str, Any, str]]]()
        about = list[dict[str, Any]]()
        for item in part:
            try:
                content = _content(item, opened, remote.max_bytes)
            except PipelineError as error:
                unread.append(replace(item, problem=error))
                continue
            files.append(("file", (Path(item.member or item.path or item.key).name, content, item.media_type or "application/octet-stream")))
            about.append({"key": item.key, "title": item.title, "url": item.url, "media_type": item.media_type, "metadata": dict(item.metadata)})
        if not files:
            return None, unread
        form = {"documents": json.dumps(about), "metadata": json.dumps(dict(what.metadata)), "options": json.dumps(dict(what.options))}
        form |= {name: value for name, value in (("lane", what.lane), ("source", what.source)) if value}
        answer = remote.send(
            "POST",
            f"/collections/{quote(what.collection, safe='')}/documents",
            data=form,
            files=files,
            headers={"Idempotency-Key": secrets.token_hex(16)},
        )
    return decode(RunView, answer), unread


def _content(item: Incoming, opened: ExitStack, max_bytes: int) -> bytes | IO[bytes]:
    """Bytes, or an open file that is streamed. Raises Gone, Forbidden, TooLarge."""
    if item.data is not None:
        return item.data
    if item.member:
        from api.incoming import contents

        return contents(item, max_bytes)
    try:
        return opened.enter_context(open(item.path, "rb"))
    except FileNotFoundError as error:
        raise Gone(f"{item.path} vanished before it was uploaded", document=item.key) from error
    except OSError as error:
        raise BadRequest(f"{item.path} cannot be read: {error.strerror}", hint="Check its permissions.") from error


def merged(runs: Sequence[RunView], bad: Sequence[Incoming], collection: str) -> RunView:
    """One balance over several runs and over what never reached the system."""
    failures = [_failure(item, collection) for item in bad if not isinstance(item.problem, Skipped)]
    skipped = len(bad) - len(failures)
    base = runs[0] if runs else _nothing(collection)
    ends = [run.finished_at for run in runs]
    finish = max((end for end in ends if end is not None), default=None) if all(ends) else None
    status = next((run.status for run in runs if not run.finished), next((run.status for run in runs if run.status != "done"), base.status))

    def total(name: str) -> int:
        return sum(int(getattr(run, name)) for run in runs)

    return replace(
        base,
        status=status,
        discovered=total("discovered") + len(bad),
        indexed=total("indexed"),
        unchanged=total("unchanged"),
        skipped=total("skipped") + skipped,
        failed=total("failed") + len(failures),
        cancelled=total("cancelled"),
        deleted=total("deleted"),
        chunks=total("chunks"),
        finished_at=finish if runs else base.finished_at,
        duration_s=(finish - base.started_at).total_seconds() if finish else base.duration_s,
        usage={name: _sum([run.usage[name] for run in runs if name in run.usage]) for name in {key for run in runs for key in run.usage}},
        model_calls=_added([run.model_calls for run in runs]),
        stages=_added([run.stages for run in runs]),
        failures=tuple([*(failure for run in runs for failure in run.failures), *failures][:100]),
        warnings=(*base.warnings, *((f"uploaded in {len(runs)} runs: {', '.join(run.run_id for run in runs)}",) if len(runs) > 1 else ())),
    )


def _added(tables: Sequence[Mapping[str, int]]) -> dict[str, int]:
    found = dict[str, int]()
    for table in tables:
        for name, count in table.items():
            found[name] = found.get(name, 0) + count
    return found


def _sum(parts: Sequence[UsageView]) -> UsageView:
    """What no part reported stays None."""
    values = dict[str, Any]()
    for name in shape(UsageView()).keys() - {"currency"}:
        known = [value for part in parts if (value := getattr(part, name)) is not None]
        values[name] = sum(known) if known else None
    values["currency"] = next((part.currency for part in parts if part.currency), "")
    return UsageView(**values)


def _failure(item: Incoming, collection: str) -> FailureView:
    problem = item.problem
    assert isinstance(problem, PipelineError)
    return FailureView("", item.key, "load", problem.code, problem.detail, problem.hint, 1, datetime.now(UTC), collection)


def _nothing(collection: str) -> RunView:
    now = datetime.now(UTC)
    return RunView("", collection, "done", 0, 0, 0, 0, 0, 0, 0, 0, now, now, 0.0, {}, {"embed": 0, "llm": 0}, ())
