"""What the façade shows of a batch; field names are the public JSON names."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class BatchDocumentView:
    """One document of a batch, where it stands now."""

    document_id: str
    document: str
    collection: str
    run_id: str
    stage: str
    status: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class BatchView:
    """What one message stood for: the number that Flower and the logs show, and its documents."""

    batch_id: int
    status: str
    """queued, leased, done, lost."""
    stages: tuple[str, ...]
    queue: str
    lane: str
    token: int
    """How often it was issued."""
    owner: str
    collection: str
    size: int
    """Documents it was made of."""
    chunks: int
    created_at: datetime
    finished_at: datetime | None
    seconds: float
    documents: tuple[BatchDocumentView, ...]
    """As the artifacts that it wrote and the documents that still hang on it tell."""
