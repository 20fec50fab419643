"""The same pipeline functions in one process and one loop, without queue, ledger or artifacts: what the engine is measured against.

python -m bench.loop --corpus DIR --n 1000 --url http://127.0.0.1:9000/v1 --work DIR
"""

from __future__ import annotations

import os
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from bench.corpus import files
from bench.cost import report, tree_cpu
from bench.engine import arguments, settings_of
from pipeline import chunk, embed, identity, index, parse, stores
from pipeline.contracts import Chunk, CollectionSpec, EmbeddedChunks, IndexedDocument, ParsedDocument, SourceItem, Stage
from pipeline.load import files as files_source
from workers.runtime import preload

CHUNKS_A_REQUEST_GROUP = 512
IN_FLIGHT = 8

Pending = list[tuple[str, str, ParsedDocument, tuple[Chunk, ...]]]


def main() -> None:
    given = arguments()
    settings = settings_of(given)
    # As the workers do before they are called ready: what is built once is not part of the work.
    preload(set(Stage), settings)
    embedder = embed.create(settings)
    chunker = chunk.create(settings.chunker, encoding=settings.tokenizer)
    store = stores.open_store(f"sqlite:///{Path(given.work).resolve()}/loop-store", writer=True)
    name = identity.index_name("default", "bench", 1)
    store.ensure(CollectionSpec(name, given.dim))
    began, cpu = time.perf_counter(), tree_cpu(os.getpid())
    documents = chunks = 0
    waiting: Pending = []
    flying: deque[tuple[Pending, Future[EmbeddedChunks]]] = deque()

    def land() -> None:
        group, answer = flying.popleft()
        vectors, start = answer.result().vectors, 0
        ready: list[IndexedDocument] = []
        for document_id, key, parsed, pieces in group:
            part = vectors[start : start + len(pieces)]
            start += len(pieces)
            ready.append(IndexedDocument(document_id, 1, key, parsed.title, "", parsed, pieces, part))
        index.index(store, name, ready)

    with ThreadPoolExecutor(IN_FLIGHT) as threads:

        def fly() -> None:
            group, texts = list(waiting), [piece.searched for entry in waiting for piece in entry[3]]
            waiting.clear()
            flying.append((group, threads.submit(embedder.encode, texts)))
            if len(flying) > IN_FLIGHT:
                land()

        for file in files(Path(given.corpus), given.n, changed=False):
            raw = files_source.load(SourceItem(file.key, path=str(file.path)), file.path.read_bytes())
            parsed = parse.parse(raw)
            document_id = identity.document_id("default", "bench", file.key)
            pieces = chunk.chunk(parsed, document_id, chunker)
            waiting.append((document_id, file.key, parsed, pieces))
            documents, chunks = documents + 1, chunks + len(pieces)
            if sum(len(entry[3]) for entry in waiting) >= CHUNKS_A_REQUEST_GROUP:
                fly()
        if waiting:
            fly()
        while flying:
            land()
    report(wall_s=round(time.perf_counter() - began, 3), cpu_s=round(tree_cpu(os.getpid()) - cpu, 3), docs=documents, chunks=chunks)


if __name__ == "__main__":
    main()
