"""The load stage for a document of the next generation: the bytes of the version that answers, and no others."""

from __future__ import annotations

from contextlib import suppress

from pipeline import identity
from pipeline.contracts import SourceItem
from pipeline.errors import NotFound, PipelineError
from pipeline.load import files
from workers.ledger.work import Work


def bytes_of(work: Work, kept: bytes | None, reader: files.Reader, source: SourceItem) -> bytes:
    """Kept bytes, else those of its file on this machine, where they are still the same. Nothing is downloaded.

    Raises NotFound when they are to be had nowhere: then the source has to be asked.
    """
    found = kept
    if found is None and work.path:
        with suppress(PipelineError):
            found = reader.read(files.entry_of(source))
    if found is None or identity.content_hash(found) != work.source_hash:
        raise NotFound(
            f"the bytes of {work.key} that answer now are not kept any more",
            code="source_needed",
            hint="Ingest the document again, or sync its source with --full; then reindex again.",
        )
    return found
