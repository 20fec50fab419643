"""What each stage does to the documents of a batch: read the stage before, call the pipeline, keep the output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from pipeline import chunk as chunking
from pipeline import identity
from pipeline import index as indexing
from pipeline import parse as parsing
from pipeline.chunk import packed as packed_chunks
from pipeline.contracts import EmbeddedChunks, IndexedDocument, SourceItem, Stage, Vectors
from pipeline.errors import (
    BrokenContract,
    Forbidden,
    Garbled,
    Malformed,
    NotFound,
    PipelineError,
    Rejected,
    Retryable,
    Superseded,
    Unauthorised,
    Unavailable,
    Unchanged,
    Unsupported,
)
from pipeline.load import files as loading
from pipeline.parse import packed as packed_documents
from pipeline.protocols import Embedder, Piecewise
from workers import vectors as packed_vectors
from workers.artifacts import Entry
from workers.desk import Desk, Item
from workers.downloads import download
from workers.ledger import batches, metering
from workers.ledger import refs as references
from workers.ledger.work import Spent, Work
from workers.rebuilding import bytes_of

CHUNK_VERSION = 1
EMBED_VERSION = 1
PARSED_AT_ONCE = 16
"""Documents that are given to the child together; between them a cancellation is noticed."""
STUBBORN_WAITS = 5
"""Times that a document waits for a server with errors of its own before it is asked for apart from others."""
SPREAD_S = 4.0
"""Between two of them: longer than chunks linger for company."""


def load(desk: Desk) -> None:
    """Fetch the bytes; the same bytes and options as the version that answers stop here."""
    kept = desk.kept(Stage.LOAD, [item for item in desk.alive() if item.work.source_id or item.work.shadow_of])
    uploads = [item for item in desk.alive() if not item.work.path and not item.work.source_id and not item.work.shadow_of]
    stored: dict[str, bytes] = {}
    desk.fetch(Stage.LOAD, uploads, lambda item, data: stored.update({item.work.document_id: data}))
    entries: list[Entry] = []

    def one(item: Item) -> None:
        work = item.work
        source = _source(item)
        if work.shadow_of:
            data = bytes_of(work, kept.get(work.document_id), reader, source)
        elif work.source_id:
            data = kept[work.document_id] if work.document_id in kept else download(desk, item)
        else:
            data = reader.read(loading.entry_of(source)) if work.path else stored[work.document_id]
        item.raw = loading.load(source, data)
        item.source_hash = item.raw.sha256
        if item.raw.sha256 == work.live_hash and work.fingerprint == work.live_fingerprint:
            raise Unchanged(f"{work.key} has the same bytes and options as the version that answers")
        key = identity.artifact_key(desk.batch.collection.tenant, item.raw.sha256, Stage.LOAD, 1, "")
        item.keys[Stage.LOAD] = key
        if work.document_id not in kept and (work.path or work.source_id):
            entries.append(Entry(work.document_id, work.version, Stage.LOAD, key, data))
        item.reached = Stage.LOAD

    with loading.Reader(max_bytes=desk.tools.max_bytes) as reader:
        desk.each(Stage.LOAD, [item for item in desk.alive() if item not in uploads or item.work.document_id in stored], one)
    desk.keep(Stage.LOAD, entries)


def _source(item: Item) -> SourceItem:
    work = item.work
    place = f"{work.path}!/{work.member}" if work.member else work.path
    return SourceItem(work.key, title=work.title, url=work.url, path=place, media_type=work.media_type, access=work.access, metadata=work.metadata)


def parse(desk: Desk) -> None:
    """Turn bytes into text with positions, in the guarded child process."""
    desk.fetch(Stage.LOAD, [item for item in desk.alive() if item.raw is None], _as_raw)
    keys = {_parse_key(desk, item): item for item in desk.alive()}
    for key, item in keys.items():
        item.keys[Stage.PARSE] = key
    found = desk.reuse(keys, Stage.PARSE)
    for key, outcome in zip(found, desk.tools.artifacts.each(list(found.values())), strict=True):
        desk.each(Stage.PARSE, [keys[key]], lambda item, outcome=outcome: _reload(desk, item, outcome))
    fresh = [item for item in desk.alive() if item.parsed is None]
    entries: list[Entry] = []
    for options, group in _by_options(fresh).items():
        for start in range(0, len(group), PARSED_AT_ONCE):
            entries += _parsed(desk, desk.still(group[start : start + PARSED_AT_ONCE], Stage.PARSE), dict(options))
    for item in desk.alive():
        item.reached = Stage.PARSE
    desk.keep(Stage.PARSE, entries)


def _parsed(desk: Desk, items: Sequence[Item], options: Mapping[str, str]) -> Iterator[Entry]:
    outcomes = desk.tools.parse([item.raw for item in items if item.raw is not None], options) if items else []
    for item, result in zip(items, outcomes, strict=True):
        if isinstance(result, PipelineError):
            desk.fail(item, Stage.PARSE, result)
            continue
        item.parsed = result
        yield Entry(item.work.document_id, item.work.version, Stage.PARSE, item.keys[Stage.PARSE], packed_documents.dump(result))


def _as_raw(item: Item, data: bytes) -> None:
    item.raw = loading.load(_source(item), data)
    if item.work.source_id or item.work.shadow_of:
        item.raw = replace(item.raw, charset=str(item.work.metadata.get("charset", "")))
    item.source_hash = item.raw.sha256


def _as_parsed(item: Item, data: bytes) -> None:
    item.parsed = packed_documents.load(data)


def _as_chunks(item: Item, data: bytes) -> None:
    item.chunks = packed_chunks.load(data)


def _as_searched(item: Item, data: bytes) -> None:
    item.searched = packed_chunks.searched(data)


def _as_vectors(item: Item, data: bytes) -> None:
    item.vectors = packed_vectors.load(data).vectors


def _parse_key(desk: Desk, item: Item) -> str:
    work = item.work
    options = identity.fingerprint({**_options(work), "key": work.key, "title": work.title, "media_type": work.media_type})
    return identity.artifact_key(desk.batch.collection.tenant, item.source_hash, Stage.PARSE, parsing.VERSION, options)


def _reload(desk: Desk, item: Item, outcome: bytes | Rejected) -> None:
    """Take what was parsed before; where that is gone or damaged, the bytes are in hand and are parsed anew."""
    try:
        if isinstance(outcome, Rejected):
            raise outcome
        item.parsed = packed_documents.load(outcome)
    except (NotFound, Malformed, BrokenContract):
        desk.refs = [kept for kept in desk.refs if kept.document_id != item.work.document_id or kept.stage is not Stage.PARSE]


def _by_options(items: Sequence[Item]) -> dict[tuple[tuple[str, str], ...], list[Item]]:
    groups: dict[tuple[tuple[str, str], ...], list[Item]] = {}
    for item in items:
        groups.setdefault(tuple(sorted(_options(item.work).items())), []).append(item)
    return groups


def _options(work: Work) -> dict[str, str]:
    """Options of the parser: those of the document, over how its source wants pages to be read."""
    wishes = {"content": ("full", "article", "auto"), "links": ("inline",)} if work.source_id or work.shadow_of else {}
    return {name: str(work.metadata[name]) for name, known in wishes.items() if work.metadata.get(name) in known} | dict(work.options)


def chunk(desk: Desk) -> None:
    """Cut into verbatim slices with their search terms."""
    desk.fetch(Stage.PARSE, [item for item in desk.alive() if item.parsed is None], _as_parsed)
    chunker = desk.tools.chunker(desk.batch.collection)
    options = desk.tools.chunker_fingerprint(desk.batch.collection)
    entries: list[Entry] = []

    def one(item: Item) -> None:
        work = item.work
        assert item.parsed is not None
        item.chunks = chunking.chunk(item.parsed, work.identity, chunker)
        if not item.chunks:
            raise Malformed(f"{work.key} holds no text", code="no_text", hint="Nothing can be searched in it; if it is a scan, run OCR on it first.")
        item.chunk_count = len(item.chunks)
        key = identity.artifact_key(
            desk.batch.collection.tenant,
            item.keys[Stage.PARSE],
            Stage.CHUNK,
            CHUNK_VERSION,
            identity.fingerprint({"c": options, "d": work.identity}),
        )
        item.keys[Stage.CHUNK] = key
        entries.append(Entry(work.document_id, work.version, Stage.CHUNK, key, packed_chunks.dump(item.chunks)))
        item.reached = Stage.CHUNK

    desk.each(Stage.CHUNK, desk.alive(), one)
    desk.keep(Stage.CHUNK, entries)


def embed(desk: Desk) -> None:
    """Ask for the vectors of texts that have none yet: full requests across documents, each text once."""
    desk.fetch(Stage.CHUNK, desk.alive(), _as_searched)
    embedder = desk.tools.embedder(desk.batch.collection)
    revision = embedder.profile.revision
    known = _known_vectors(desk, revision)
    hashes = {item.work.document_id: list(map(identity.text_hash, item.searched)) for item in desk.alive()}
    mine = batches.held(desk.tools.db, desk.batch)
    _ask(desk, [item for item in desk.alive() if item.work.document_id in mine], hashes, known)
    entries = _in_part(desk, [item for item in desk.items if item.work.document_id in mine], hashes, known, revision)
    for item in desk.alive():
        if item.work.document_id not in mine:
            continue
        work = item.work
        item.vectors = np.stack([known[text] for text in hashes[work.document_id]]) if hashes[work.document_id] else np.zeros((0, 0), np.float32)
        key = identity.artifact_key(desk.batch.collection.tenant, item.keys[Stage.CHUNK], Stage.EMBED, EMBED_VERSION, revision)
        data = packed_vectors.dump(revision, hashes[work.document_id], item.vectors)
        entries.append(Entry(work.document_id, work.version, Stage.EMBED, key, data, compress=False))
        item.reached = Stage.EMBED
    desk.keep(Stage.EMBED, entries)


def _known_vectors(desk: Desk, revision: str) -> dict[str, Vectors]:
    """Vectors of the versions that answer now: text that did not change is not sent again."""
    live = {item.work.document_id: item.work.live_version for item in desk.alive() if item.work.live_version is not None}
    live |= {item.work.identity: item.work.version for item in desk.alive() if item.work.shadow_of}
    known: dict[str, Vectors] = {}
    # Of those that were hidden, the vectors of the version that answered before; of those that come again, what was answered the last time.
    returning = [item.work.document_id for item in desk.alive() if _came_before(item.work)]
    if not live and not returning:
        return known
    found = [*references.of(desk.tools.db, Stage.EMBED, live).values(), *references.newest(desk.tools.db, Stage.EMBED, returning)]
    for outcome in desk.tools.artifacts.each(found):
        try:
            if isinstance(outcome, Rejected):
                raise outcome
            stored = packed_vectors.load(outcome)
        except Rejected:
            continue  # asked for anew, which costs money but loses nothing
        if stored.revision == revision:
            known.update(zip(stored.hashes, stored.vectors, strict=True))
    return known


def _came_before(work: Work) -> bool:
    return bool(work.waits or work.attempts or (work.source_id and work.live_version is None and work.version > 1))


def _in_part(desk: Desk, items: Iterable[Item], hashes: Mapping[str, Sequence[str]], known: Mapping[str, Vectors], revision: str) -> list[Entry]:
    """What was answered for documents that have to come again: it is paid for."""
    entries: list[Entry] = []
    for item in items:
        answered = [digest for digest in hashes.get(item.work.document_id, ()) if digest in known]
        if item.setback is None or item.setback.status != "retry" or not answered:
            continue
        key = identity.artifact_key(desk.batch.collection.tenant, item.keys[Stage.CHUNK], Stage.EMBED, EMBED_VERSION, f"{revision} in part")
        data = packed_vectors.dump(revision, answered, np.stack([known[digest] for digest in answered]))
        entries.append(Entry(item.work.document_id, item.work.version, Stage.EMBED, key, data, compress=False))
    return entries


def _ask(desk: Desk, items: Sequence[Item], hashes: Mapping[str, Sequence[str]], known: dict[str, Vectors]) -> None:
    """Embed what is new. A request that is refused is halved until the document at fault stands alone."""
    texts: dict[str, str] = {}
    for item in items:
        for text, digest in zip(item.searched, hashes[item.work.document_id], strict=True):
            if digest not in known:
                texts.setdefault(digest, text)
    if not texts:
        return
    digests, answers = list(texts), list[EmbeddedChunks]()
    try:
        for start, answer in _pieces(desk.tools.embedder(desk.batch.collection), list(texts.values())):
            answers.append(answer)
            known.update(zip(digests[start : start + len(answer.vectors)], answer.vectors, strict=True))
            if not desk.still(items, Stage.EMBED):
                break  # what has not been sent yet stays unsent
    except PipelineError as error:
        missing = [item for item in items if any(digest not in known for digest in hashes[item.work.document_id])]
        if len(missing) == 1 or not (_about_a_document(error) or _garbled_again(error, missing)):
            # Documents whose texts have all been answered go on.
            _apart(desk, missing, error)
        else:
            middle = len(missing) // 2
            _ask(desk, missing[:middle], hashes, known)
            _ask(desk, missing[middle:], hashes, known)
    if answers:
        desk.dimension = answers[0].vectors.shape[1]
        desk.spent.append(_spent(answers))


def _apart(desk: Desk, items: Sequence[Item], error: PipelineError) -> None:
    """A server that answers some documents with errors of its own again and again may be unable to take one text: they come back one by one."""
    old = [item for item in items if error.code == "server_error" and item.work.waits >= STUBBORN_WAITS]
    desk.fail_together([item for item in items if item not in old], Stage.EMBED, error)
    if len(items) == 1 and old and (old[0].work.attempts or metering.served_since(desk.tools.db, old[0].work.waiting_since)):
        # It was alone, and others were served meanwhile, now or when it was first blamed: the failure is its own, and costs an attempt.
        hint = "The model server fails on this document alone: look at its log, or leave the document out."
        error = Unavailable(error.detail, code=error.code, hint=hint)
    for place, item in enumerate(old):
        desk.fail(item, Stage.EMBED, error)
        if item.setback is not None and item.setback.status == "retry":
            item.setback = replace(item.setback, delay_s=item.setback.delay_s + place * SPREAD_S)


def _pieces(embedder: Embedder, texts: Sequence[str]) -> Iterator[tuple[int, EmbeddedChunks]]:
    return embedder.pieces(texts) if isinstance(embedder, Piecewise) else iter([(0, embedder.encode(texts))])


def _spent(answers: Sequence[EmbeddedChunks]) -> Spent:
    tokens: int | None = 0
    for answer in answers:
        tokens = None if tokens is None or answer.tokens is None else tokens + answer.tokens
    units, requests = sum(len(answer.vectors) for answer in answers), sum(answer.requests for answer in answers)
    return Spent("build", answers[0].model, tokens, units=units, requests=requests)


def _garbled_again(error: PipelineError, items: Sequence[Item]) -> bool:
    """The first time it may be the server's own affair, so all come again; then it may be one text that brings it about."""
    return isinstance(error, Garbled) and all(item.work.attempts for item in items)


def _about_a_document(error: PipelineError) -> bool:
    return not isinstance(error, (Retryable, Unauthorised, Forbidden, NotFound, Unsupported))


def index(desk: Desk) -> None:
    """Make each version visible and retire the older one; documents that were cancelled meanwhile are left alone."""
    desk.fetch(Stage.PARSE, desk.alive(), _as_parsed)
    desk.fetch(Stage.CHUNK, desk.alive(), _as_chunks)
    desk.fetch(Stage.EMBED, desk.alive(), _as_vectors)
    mine = batches.held(desk.tools.db, desk.batch)
    ready = [item for item in desk.alive() if item.work.document_id in mine]
    if not ready:
        return
    dimension = next((item.vectors.shape[1] for item in ready if item.vectors is not None and item.vectors.size), 0)
    _write(desk, ready, desk.batch.collection.dimension or dimension)


def _write(desk: Desk, items: Sequence[Item], dimension: int) -> None:
    """Write documents together. When that is refused, the one that is named is written alone, and the others in halves."""
    try:
        store, name = desk.tools.store(desk.batch.collection, dimension)
        written = {outcome.document_id: outcome.written for outcome in indexing.index(store, name, [_indexed(item) for item in items])}
    except PipelineError as error:
        if len(items) == 1 or not _about_a_document(error):
            desk.fail_together(items, Stage.INDEX, error)
            return
        named = [item for item in items if item.work.key == error.document]
        others = [item for item in items if item.work.key != error.document]
        middle = (len(others) + 1) // 2
        for part in (named, others[:middle], others[middle:]):
            if part:
                _write(desk, part, dimension)
        return
    for item in items:
        _judge(desk, item, written[item.work.identity])


def _judge(desk: Desk, item: Item, written: bool) -> None:
    if written:
        item.reached = Stage.INDEX
    else:
        desk.fail(item, Stage.INDEX, Superseded(f"the store already shows a newer version of {item.work.key}"))


def _indexed(item: Item) -> IndexedDocument:
    work = item.work
    assert item.parsed is not None and item.chunks is not None and item.vectors is not None
    return IndexedDocument(
        document_id=work.identity,
        version=work.version,
        key=work.key,
        title=work.title or item.parsed.title,
        url=work.url,
        parsed=item.parsed,
        chunks=item.chunks,
        vectors=item.vectors,
        metadata={**item.parsed.metadata, **work.metadata},
        access=work.access,
    )


STAGES: Mapping[Stage, Callable[[Desk], None]] = {Stage.LOAD: load, Stage.PARSE: parse, Stage.CHUNK: chunk, Stage.EMBED: embed, Stage.INDEX: index}
