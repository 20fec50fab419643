"""What the graph keeps in a store: one shape of record for all of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class GraphKind(StrEnum):
    """What a record is. A kind is written by `put`, or by `swap`, never by both."""

    PART = "part"
    """Of one edition of one document's contribution; immutable."""
    HEAD = "head"
    """Which edition of a document is live; its swap is the commit point."""
    MARK = "mark"
    """An edition that is about to take the place of another one, until what both touch has been folded."""
    LEASE = "lease"
    """Who folds, and the number that the next one must exceed."""
    ENTITY = "entity"
    RELATION = "relation"
    ALIAS = "alias"
    COMMUNITY = "community"
    REPORT = "report"
    SNAPSHOT = "snapshot"
    CACHED = "cached"
    """A model's answer, under the hash of all it was asked with."""


ELEMENTS = (GraphKind.ENTITY, GraphKind.RELATION)
"""What a graph is counted and compared by."""


@dataclass(frozen=True, slots=True)
class GraphRecord:
    """One record. `id` is derived from content, and at most 400 bytes long."""

    kind: GraphKind
    id: str
    version: int
    """The highest one wins; from 1."""
    body: bytes
    group: str = ""
    """Records of one group can be listed apart."""
    words: str = ""
    """Terms it is found by, separated by blanks, as `text.terms` makes them."""
    holds: tuple[str, ...] = ()
    """Ids of 16 to 64 hexadecimal digits that it can be listed by."""


@dataclass(frozen=True, slots=True)
class GraphAudit:
    """What a store really holds of a graph."""

    records: int
    """Entities and relations."""
    digest: str
    """Order-independent SHA-256 over (kind, id, body) of each; versions are left out."""
