"""What building a collection anew would cost, told from a sample of its documents, without asking a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from pipeline import chunk as chunking
from pipeline import identity
from pipeline.contracts import Stage
from pipeline.errors import PipelineError
from pipeline.parse import packed
from workers import vectors
from workers.ledger import browse, generations, refs
from workers.ledger.work import CollectionRow
from workers.runtime import Runtime
from workers.views import ReindexView

SAMPLE = 50
"""Documents that are really cut. Ids are hashes, so the first by id are as good as drawn by lot."""


def forecast(runtime: Runtime, row: CollectionRow, options: Mapping[str, object]) -> ReindexView:
    """Counts of the whole collection, from a sample where it holds more than `SAMPLE` documents. Raises Unavailable."""
    documents, chunks = browse.totals(runtime.db, row.id)
    chunker, embedder = str(options["chunker"]), str(options["embedder"])
    tool = runtime.chunker(replace(row, chunker=chunker, chunk_options=json.loads(str(options["chunk_options"]))))
    shown = dict(sorted(generations.answering(runtime.db, row.id).items())[:SAMPLE])
    same_model = options["embedder_revision"] == row.embedder_revision
    kept = _kept(runtime, shown, row.embedder_revision) if same_model else {}
    made = embedded = tokens = read = 0
    for document_id, ref in refs.of(runtime.db, Stage.PARSE, shown).items():
        try:
            parsed = packed.load(runtime.artifacts.read([ref])[0])
        except PipelineError:
            continue  # it would be told of as a failure of the build
        read += 1
        for piece in chunking.chunk(parsed, document_id, tool):
            made += 1
            if identity.text_hash(piece.searched) not in kept.get(document_id, ()):
                embedded, tokens = embedded + 1, tokens + piece.tokens
    share = documents / read if read else 0.0
    return ReindexView(documents, chunks, chunker, embedder, round(made * share), round(embedded * share), round(tokens * share), read)


def _kept(runtime: Runtime, shown: Mapping[str, int], revision: str) -> dict[str, frozenset[str]]:
    """Document id → hashes of texts whose vectors are kept."""
    found: dict[str, frozenset[str]] = {}
    for document_id, ref in refs.of(runtime.db, Stage.EMBED, shown).items():
        try:
            stored = vectors.load(runtime.artifacts.read([ref])[0])
        except PipelineError:
            continue
        if stored.revision == revision:
            found[document_id] = frozenset(stored.hashes)
    return found
