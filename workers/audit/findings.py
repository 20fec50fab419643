"""Differences as they are found: what is wrong, in a sentence, and what a repair needs to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from pipeline.contracts import Stage
from workers.ledger.work import Ref

MISSING, VERSION, CHUNKS, VECTORS = "missing", "version", "chunks", "vectors"
FOREIGN, REVIVED, KEPT = "foreign", "revived", "kept"
OUTPUT = "output"
STUCK, HIDING, DELETION, BALANCE, LEASE = "stuck", "hiding", "deletion", "balance", "lease"
ORPHAN, ENDLESS, INDEX = "orphan", "endless", "index"

IN_STORE = frozenset({MISSING, VERSION, CHUNKS, VECTORS})
"""What is mended by writing the document again."""

NOTHING_LOST: Mapping[Stage, Ref] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference."""

    kind: str
    detail: str
    mends: bool = True
    document_id: str = ""
    name: str = ""
    """Of an index, a pack, a run or a key, where it is about one."""


@dataclass(slots=True)
class Findings:
    """Everything that was found, in order, and what is worth knowing without being wrong."""

    items: list[Finding] = field(default_factory=list[Finding])
    notes: list[str] = field(default_factory=list[str])
    versions: dict[str, int] = field(default_factory=dict[str, int])
    """Document id → version in the store, of documents that differ."""
    lost: list[Ref] = field(default_factory=list[Ref])
    """Outputs of versions that answer, which cannot be read any more."""

    def add(self, finding: Finding) -> None:
        self.items.append(finding)

    def of(self, *kinds: str) -> list[Finding]:
        """Those of some kinds that can be mended."""
        return [item for item in self.items if item.kind in kinds and item.mends]

    def ids(self, *kinds: str) -> set[str]:
        """Documents of some kinds."""
        return {item.document_id for item in self.of(*kinds)}

    def sentences(self, most: int) -> tuple[str, ...]:
        return tuple(item.detail for item in self.items[:most])
