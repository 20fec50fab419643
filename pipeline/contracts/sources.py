"""What a scan of a source yields: slim entries, evidence of what is gone, and how far each scope was listed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from pipeline.contracts.documents import RawDocument, SourceItem

Json: TypeAlias = Mapping[str, object]
"""What a connector wants to find again: plain JSON values, a few kilobytes."""


class Evidence(StrEnum):
    """Why an item is said to be gone."""

    DELETED = "deleted"
    TRASHED = "trashed"
    GONE = "gone"
    UNPUBLISHED = "unpublished"
    OUT_OF_SCOPE = "out_of_scope"


class Presence(StrEnum):
    """What the source says of one key when asked."""

    ALIVE = "alive"
    GONE = "gone"
    FORBIDDEN = "forbidden"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Listed:
    """One item that the source holds now."""

    item: SourceItem
    scope: str = ""
    """The folder, space or site whose listing held it."""
    raw: RawDocument | None = None
    """Its bytes, where listing needed them anyway: they are kept, and nobody downloads it again. Together with a revision only."""


@dataclass(frozen=True, slots=True)
class Tombstone:
    """The source itself says that an item is gone: no inference from absence."""

    key: str
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class AccessLost:
    """The item exists, but we may not read it any more: hidden at once, deleted only by a person."""

    key: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ScopeDone:
    """A scope was listed to its end."""

    scope: str
    count: int
    delta: bool = False
    """True when only changes were listed, so that absence from it means nothing."""


@dataclass(frozen=True, slots=True)
class ScopeFailed:
    """A scope could not be listed to its end: nothing of it may be taken for deleted."""

    scope: str
    code: str
    detail: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """Everything before this event was handed over; a scan may be taken up again from here."""

    checkpoint: Json


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the run's warnings about something that makes the listing no less complete."""

    text: str


ScanEvent: TypeAlias = Listed | Tombstone | AccessLost | ScopeDone | ScopeFailed | Mark | Note


@dataclass(frozen=True, slots=True)
class SourceCheck:
    """One finding of `validate`."""

    name: str
    ok: bool
    detail: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """One configured source, secrets opened."""

    source_id: str
    kind: str
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    """E.g. ``folder_token``, ``entry_url``, ``max_pages``."""
    secrets: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """E.g. ``app_id``, ``app_secret``, ``token``."""
    max_bytes: int = 200_000_000
    """Largest item that the house takes; raise TooLarge without downloading the rest."""
    private: tuple[str, ...] = ()
    """Hosts and networks of the inside that may be asked although anybody can name an address (DUJIANG_PRIVATE_HOSTS)."""


@dataclass(frozen=True, slots=True)
class SourceOption:
    """One thing that a source of some kind can be told."""

    name: str
    """Lower case with underscores; ``--folder-token`` on the command line for ``folder_token``."""
    about: str
    required: bool = False
    secret: bool = False
    """Sealed in the ledger, and never shown again."""
    scope: bool = False
    """Says what is listed: after a change, what lies outside is out of scope, and a scan begins anew."""


@dataclass(frozen=True, slots=True)
class SourceKind:
    """A kind of source: what it needs to be told, and who makes its connector."""

    name: str
    about: str
    """One line for `--help`."""
    factory: str
    """``module:function``, imported on first use: ``function(spec: SourceSpec, around: Surroundings) -> Connector``."""
    options: tuple[SourceOption, ...] = ()
    events: bool = False
    """Its connector hears events: `decode_hint`."""
    local: bool = False
    """Reads this machine, so that only an administrator may set it up over HTTP."""
