"""Sources as the façade shows them; field names are the public JSON names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from pipeline.contracts.sources import SourceOption
from workers.views import RunView


@dataclass(frozen=True, slots=True)
class SourceView:
    """Where documents come from again and again, without its secrets."""

    name: str
    kind: str
    """feishu, yuque, web, folder, or what was installed besides."""
    collection: str
    status: str
    """idle, listing, syncing, waiting (for a quota, or after an interruption), held, paused, or stopped (credentials refused)."""
    options: Mapping[str, str]
    secrets: Mapping[str, str]
    """Name → ``***``, or ``env:NAME`` where it is read from the environment."""
    cron: str
    timezone: str
    jitter_s: float
    next_at: datetime | None
    last_at: datetime | None
    last_run_id: str | None
    last_error: str
    documents: int
    hidden: int
    """Documents that the source no longer lets us read: they are in no answer."""
    deleted_here: int
    """Documents that people deleted here: a sync does not bring them back."""
    held: int
    """Documents whose deletion waits for `prune --approve`."""
    hook: str
    """Path to which the source may send its events; empty for kinds without them."""
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class SourceKindView:
    """What there is to connect to, and what it needs to be told."""

    name: str
    about: str
    options: tuple[SourceOption, ...]
    local: bool
    """Reads the machine of the workers: over HTTP, an administrator sets it up."""


@dataclass(frozen=True, slots=True)
class SourceStatusView:
    """A source, its last run, and its documents by status."""

    source: SourceView
    run: RunView | None
    documents: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class AbsentView:
    """A document that the source no longer has."""

    document_id: str
    document: str
    title: str
    evidence: str
    """deleted, trashed, gone, unpublished, out_of_scope, or missing (in two complete listings)."""
