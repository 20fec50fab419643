"""Bytes that a listing brought along: one pack a slice, written before the slice is."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace

from pipeline import identity
from pipeline.contracts import RawDocument, SourceItem, Stage
from pipeline.errors import PipelineError
from workers.artifacts import Artifacts, Entry
from workers.fetching import detail, sound
from workers.ledger import scans
from workers.ledger.engine import Database
from workers.ledger.intake import Submission
from workers.ledger.scans import Found

MOST_BYTES = 8_000_000
"""Held in memory before a slice is written."""


class Arrivals:
    """What one listing has brought along and not handed over yet. Used by one thread."""

    def __init__(self, db: Database, artifacts: Artifacts, tenant: str, run_id: int, *, max_bytes: int) -> None:
        self._db, self._artifacts, self._tenant, self._run_id = db, artifacts, tenant, run_id
        self._max_bytes = max_bytes
        self._bytes: dict[str, tuple[str, bytes]] = {}
        self._size = 0

    @property
    def full(self) -> bool:
        return self._size >= MOST_BYTES

    def take(self, submission: Submission, raw: RawDocument, item: SourceItem) -> Submission:
        """Keep the bytes, and give back the submission with what they tell. Bytes that cannot be taken are its failure."""
        try:
            checked = sound(raw, replace(item, key=submission.key), self._max_bytes)
        except PipelineError as error:
            return replace(submission, error=(error.code, error.detail, error.hint, False))
        told = detail(checked, item)
        self._bytes[submission.document_id] = checked.sha256, checked.data
        self._size += len(checked.data)
        facts = {**submission.metadata, **told.metadata}
        media_type = told.media_type[:128] or submission.media_type
        return replace(submission, media_type=media_type, size=len(checked.data), metadata=facts)

    def write(self, found: Sequence[Found], *, full: bool) -> list[Found]:
        """The slice with the places of its bytes; those of items whose change mark the ledger knows already are dropped. Raises Unavailable."""
        wanted = {item.submission.document_id: item for item in found if item.submission.document_id in self._bytes}
        known = scans.marks(self._db, list(wanted)) if wanted and not full else {}
        entries: list[Entry] = []
        for document_id, item in wanted.items():
            if known.get(document_id) != item.revision:
                sha256, data = self._bytes[document_id]
                entries.append(Entry(document_id, 0, Stage.LOAD, identity.artifact_key(self._tenant, sha256, Stage.LOAD, 1, ""), data))
        refs = self._artifacts.write(f"load/scan-{self._run_id}-{secrets.token_hex(6)}", entries)
        self._bytes, self._size = {}, 0
        kept = {ref.document_id: ref for ref in refs}
        return [replace(item, kept=kept.get(item.submission.document_id)) for item in found]
