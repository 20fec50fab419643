"""Which lane documents travel on when nobody said so."""

from __future__ import annotations

from pipeline.contracts import Lane

FEW = 4
"""Up to so many documents are somebody's upload; more are a bulk run."""


def lane_for(count: int, asked: str | None) -> Lane:
    """The lane that was asked for, else interactive for a few documents."""
    if asked:
        return Lane(asked)
    return Lane.INTERACTIVE if count <= FEW else Lane.BULK
