"""What is told about the answer cache."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheView:
    """What the answer cache did for questions of all processes, since Redis began to keep count."""

    hits: int
    misses: int
    waits: int
    """Of the hits: those that waited for somebody who asked the same at the same time."""
    evidence_hits: int
    """Of the misses: those whose evidence was known."""
    completion_hits: int
    """Of the misses: those whose reader had been sent the very same before."""
    entries: int
    """Answers, packs and completions that are kept; one that several collections went into counts for each."""
